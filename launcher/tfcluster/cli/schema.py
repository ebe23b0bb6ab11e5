"""`tfcluster schema`: print the JSON schema of the spec, for editors and other tools."""

from __future__ import annotations

import click


@click.command("schema")
def command() -> None:
    """Print the JSON schema of the spec, version 1.

    `tfcluster init` writes it next to the spec, where editors find it without a network.
    """
    from tfcluster.spec import published_schema
    from tfcluster.ui.terminal import Terminal

    Terminal().out(published_schema.text())
