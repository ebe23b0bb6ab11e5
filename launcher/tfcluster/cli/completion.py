"""`tfcluster completion`: shell scripts that complete commands, options and file names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_INSTALL_PATHS = {
    "bash": "~/.local/share/bash-completion/completions/tfcluster",
    "zsh": '"${fpath[1]}/_tfcluster"',
    "fish": "~/.config/fish/completions/tfcluster.fish",
}


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Have the shell complete file names: a `shell_complete` callback for parameters."""
    from click.shell_completion import CompletionItem  # slow; a command that runs needs none

    return [CompletionItem(incomplete, type="file")]


def templates_named(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the names of the templates."""
    return []


@click.command("completion")
@click.argument("shell", type=click.Choice(list(_INSTALL_PATHS)))
def command(shell: str) -> None:
    """Print the completion script of SHELL.

    For the current session: eval "$(tfcluster completion bash)", or
    `tfcluster completion fish | source`.
    """
    from click.shell_completion import get_completion_class

    from tfcluster.ui.terminal import Terminal

    root = click.get_current_context().find_root().command
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(root, {}, "tfcluster", "_TFCLUSTER_COMPLETE").source()
    # Have bash complete files where click has no completion, as for a job's own arguments.
    script = script.replace("complete -o nosort -F", "complete -o nosort -o default -F")
    terminal = Terminal()
    terminal.out(script)
    if terminal.stdout.is_tty:
        terminal.say(f"to install it: tfcluster completion {shell} > {_INSTALL_PATHS[shell]}")
