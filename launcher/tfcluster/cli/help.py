"""`tfcluster help`: print the documentation that is installed with the package."""

from __future__ import annotations

import click

from tfcluster.cli.completion import page_names


@click.command("help")
@click.argument("page", required=False, metavar="[PAGE[#SECTION]]", shell_complete=page_names)
def command(page: str | None) -> None:
    """Print a page of the documentation or one section of it; without PAGE, list the pages.

    Example: tfcluster help failures#sigkill

    The options of a command: tfcluster COMMAND --help
    """
    from tfcluster.cli.main import COMMANDS
    from tfcluster.errors import UsageError
    from tfcluster.ui import pages
    from tfcluster.ui.terminal import Terminal

    terminal, found = Terminal(), pages.titles()
    if page in COMMANDS and page not in found:
        raise UsageError(f"{page} is a command", fix=f"tfcluster {page} --help")
    if page is not None:
        terminal.out(pages.read(page).rstrip("\n"))
        return
    width = max(map(len, found))
    terminal.out("\n".join(f"{name:{width}}  {title}" for name, title in found.items()))
