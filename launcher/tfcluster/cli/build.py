"""`tfcluster build`: build the worker image that containers start from."""

from __future__ import annotations

import os
from pathlib import Path

import click

from tfcluster.backends.docker import worker_image
from tfcluster.ui.terminal import Terminal

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("build")
@click.option(
    "--base",
    metavar="IMAGE",
    default="python:3.11-slim",
    show_default=True,
    help="Base image: Debian or Ubuntu with python3 and its venv module.",
)
@click.option("--tensorflow", metavar="VERSION", help="Such as 2.15 (default: the newest tested).")
@click.option("--gpu", is_flag=True, help="Include NVIDIA's libraries.")
@click.option(
    "-r",
    "--requirements",
    type=FILE,
    metavar="FILE",
    help="Your own packages, a requirements file for pip.",
)
@click.option(
    "--join",
    "joins",
    is_flag=True,
    help="Include tfcluster itself, for schedulers and orchestrators that start `tfcluster join`.",
)
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="NAME",
    help="Name of the image (default: tfcluster-worker:tfVERSION; without --tensorflow and --gpu"
    " also :latest); may be repeated.",
)
@click.option("--network", metavar="NETWORK", help="Network of pip during the build, such as host.")
@click.option(
    "--ca",
    type=FILE,
    metavar="FILE",
    help="CA certificates that pip trusts (default: $PIP_CERT, $REQUESTS_CA_BUNDLE).",
)
@click.option(
    "--pip-config",
    type=FILE,
    metavar="FILE",
    help="pip's configuration during the build (default: $PIP_CONFIG_FILE).",
)
def command(
    base: str,
    tensorflow: str | None,
    gpu: bool,
    requirements: Path | None,
    joins: bool,
    tags: tuple[str, ...],
    network: str | None,
    ca: Path | None,
    pip_config: Path | None,
) -> None:
    """Build the worker image with this machine's docker and print its names.

    Certificates, pip's configuration and proxies ($https_proxy …) are used during the build and
    are not stored in the image. docker's output goes to stderr.
    """

    options = worker_image.BuildOptions(
        base=base,
        tensorflow=tensorflow,
        has_gpu=gpu,
        requirements=requirements,
        joins=joins,
        tags=tags,
        network=network,
        ca=ca,
        pip_config=pip_config,
    )
    Terminal().out("\n".join(worker_image.build(options, os.environ)))
