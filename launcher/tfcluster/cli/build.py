"""`tfcluster build`: the image that containers start from."""

from __future__ import annotations

import os
from pathlib import Path

import click

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("build")
@click.option(
    "--base",
    metavar="IMAGE",
    default="python:3.11-slim",
    show_default=True,
    help="What it is built on: Debian or Ubuntu with python3 and its venv.",
)
@click.option("--tensorflow", metavar="VERSION", help="For example 2.15 (the newest one tested).")
@click.option("--gpu", is_flag=True, help="With NVIDIA's libraries.")
@click.option(
    "-r",
    "--requirements",
    type=FILE,
    metavar="FILE",
    help="Packages of your own, as pip reads them.",
)
@click.option(
    "--join",
    "joins",
    is_flag=True,
    help="With tfcluster itself, for engines that start `tfcluster join`.",
)
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="NAME",
    help="Name of the image (tfcluster-worker:tfVERSION; without --tensorflow and --gpu also"
    " :latest); may be given again.",
)
@click.option("--network", metavar="NETWORK", help="That pip has while building, such as host.")
@click.option(
    "--ca",
    type=FILE,
    metavar="FILE",
    help="Certificates that pip trusts ($PIP_CERT, $REQUESTS_CA_BUNDLE).",
)
@click.option(
    "--pip-config",
    type=FILE,
    metavar="FILE",
    help="pip's configuration while building ($PIP_CONFIG_FILE).",
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
    """Build the worker image with this machine's docker, and print its names.

    Certificates, pip's configuration and proxies ($https_proxy …) are used while it is built, and
    are not kept in it. What docker says goes to stderr.
    """
    from tfcluster.backends.docker import worker_image
    from tfcluster.ui.terminal import Terminal

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
