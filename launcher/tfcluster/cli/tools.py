"""`tfcluster env`, `export`, `import`, `schema`, `build`, `help`: what prints or makes files."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import click

from tfcluster.backends.docker import worker_image
from tfcluster.cli.completion import page_names, task_names
from tfcluster.cli.options import WithJobArgs, bundled, plan_options, write_output
from tfcluster.coordinator import manual_start
from tfcluster.errors import UsageError
from tfcluster.export import FORMATS
from tfcluster.export.request import Request
from tfcluster.export.request import export as export_plan
from tfcluster.spec import PlanOptions, published_schema
from tfcluster.spec.source import read_stdin, read_text
from tfcluster.ui import pages, plan_view
from tfcluster.ui.terminal import Terminal

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_TITLES = {
    "needed": "needed before a start",
    "missing": "without counterpart",
    "changed": "mapped with another meaning",
}


@click.command("env")
@click.argument("spec", metavar="SPEC|RUN")
@click.argument("task_name", metavar="TASK", shell_complete=task_names)
@plan_options()
def env(spec: str, task_name: str, changes: PlanOptions) -> None:
    """Print the environment of TASK (worker:1) of SPEC, for a shell that starts it by hand.

    With a RUN of `up --except TASK` instead of SPEC, the ports are those of that run. The last
    line, a comment, holds the command that starts the task.

    Example: eval "$(tfcluster env cluster.json worker:1)" && python train.py
    """
    start = manual_start.build(spec, task_name, changes)
    lines = plan_view.format_exports(start.plan, start.task, start.env, known=os.environ)
    Terminal().out("\n".join(lines))


@click.command("export", cls=WithJobArgs)
@click.argument("spec", required=False)
@click.option("--format", "tool", type=click.Choice(list(FORMATS)), required=True,
              help="The tool that reads the file.")  # fmt: skip
@click.option("-o", "--output", "target", metavar="FILE", default="-",
              help="The file to write (default: -, stdout).")  # fmt: skip
@plan_options()
def export(spec: str | None, tool: str, target: str, changes: PlanOptions) -> None:
    """Write the tasks of SPEC (./tfcluster.json) as a file of another tool, and start nothing.

    compose: a Compose file with a service for each task, which starts without tfcluster. sbatch:
    the script of a Slurm job, in which tfcluster starts the tasks. kubernetes: the objects that
    `up` creates. The file says what it needs. Secrets are never written.

    ARGS after -- are appended to the job's own.
    """
    file = None if target == "-" else Path(target).absolute()
    request = Request(
        spec=spec,
        options=changes,
        file=file.name if file is not None else "",
        folder=str(file.parent if file is not None else Path.cwd()),
        tfcluster=_own_command(),
        user=f"{os.getuid()}:{os.getgid()}",
        environ=os.environ,
    )
    exported = export_plan(tool, request)
    write_output(exported.text, target, example="FILE")
    for need in exported.needs:
        Terminal().say(f"the file needs {need}")


def _own_command() -> tuple[str, ...]:
    """Return the command that starts this tfcluster in any folder."""
    script = Path(sys.executable).with_name("tfcluster")
    return (str(script),) if script.exists() else (sys.executable, "-P", "-m", "tfcluster")


@click.command("import")
@click.argument("manifest")
@click.option("-o", "--output", "target", metavar="FILE", default="-",
              help="The spec to write (default: -, stdout).")  # fmt: skip
def import_(manifest: str, target: str) -> None:
    """Turn MANIFEST, a Kubeflow TFJob in YAML or JSON (-: stdin), into a spec.

    The spec has the backend kubernetes. What it cannot say, what it says otherwise and what is
    still needed is listed on stderr, each with its place in the manifest.
    """
    from tfcluster.tfjob.conversion import convert

    is_stdin = manifest == "-"
    text = read_stdin("manifest") if is_stdin else read_text(manifest, "manifest", "check the path")
    spec, notes = convert(text, "stdin" if is_stdin else manifest)
    write_output(json.dumps(spec, indent=2, ensure_ascii=False) + "\n", target, example="FILE.json")
    terminal = Terminal()
    for kind, title in _TITLES.items():
        if lines := [str(note) for note in notes if note.kind == kind]:
            terminal.say("\n".join([f"{title} ({len(lines)}):", *(f"  {line}" for line in lines)]))
    if target != "-":
        terminal.say(f"next: tfcluster plan {shlex.quote(target)}")


@click.command("schema")
def schema() -> None:
    """Print the JSON schema of the spec, version 1.

    `tfcluster init` writes it next to the spec, where editors find it without a network.
    """
    Terminal().out(published_schema.text())


_build_options = (
    click.option("--base", metavar="IMAGE", default="python:3.11-slim", show_default=True,
                 help="Base image: Debian or Ubuntu with python3 and its venv module."),
    click.option("--tensorflow", metavar="VERSION",
                 help="Such as 2.15 (default: the newest tested)."),
    click.option("--gpu", "has_gpu", is_flag=True, help="Include NVIDIA's libraries."),
    click.option("-r", "--requirements", type=_FILE, metavar="FILE",
                 help="Your own packages, a requirements file for pip."),
    click.option("--join", "joins", is_flag=True,
                 help="Include tfcluster itself, for schedulers and orchestrators that start"
                 " `tfcluster join`."),
    click.option("--tag", "tags", multiple=True, metavar="NAME",
                 help="Name of the image (default: tfcluster-worker:tfVERSION; without"
                 " --tensorflow and --gpu also :latest); may be repeated."),
    click.option("--network", metavar="NETWORK",
                 help="Network of pip during the build, such as host."),
    click.option("--ca", type=_FILE, metavar="FILE",
                 help="CA certificates that pip trusts (default: $PIP_CERT, $REQUESTS_CA_BUNDLE)."),
    click.option("--pip-config", type=_FILE, metavar="FILE",
                 help="pip's configuration during the build (default: $PIP_CONFIG_FILE)."),
)  # fmt: skip


@click.command("build")
@bundled(_build_options, options=worker_image.BuildOptions)
def build(options: worker_image.BuildOptions) -> None:
    """Build the worker image with this machine's docker and print its names.

    Certificates, pip's configuration and proxies ($https_proxy …) are used during the build and
    are not stored in the image. docker's output goes to stderr.
    """
    Terminal().out("\n".join(worker_image.build(options, os.environ)))


@click.command("help")
@click.argument("page", required=False, metavar="[PAGE[#SECTION]]", shell_complete=page_names)
def help_(page: str | None) -> None:
    """Print a page of the documentation or one section of it; without PAGE, list the pages.

    Example: tfcluster help failures#sigkill

    The options of a command: tfcluster COMMAND --help
    """
    from tfcluster.cli.main import COMMANDS

    terminal, titles = Terminal(), pages.titles()
    if page in COMMANDS and page not in titles:
        raise UsageError(f"{page} is a command", fix=f"tfcluster {page} --help")
    if page is not None:
        terminal.out(pages.read(page).rstrip("\n"))
        return
    width = max(map(len, titles))
    terminal.out("\n".join(f"{name:{width}}  {title}" for name, title in titles.items()))
