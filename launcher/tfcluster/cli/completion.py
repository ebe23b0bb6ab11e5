"""`tfcluster completion`: the script that makes a shell complete commands, options and files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_HOMES = {
    "bash": "~/.local/share/bash-completion/completions/tfcluster",
    "zsh": "a file _tfcluster in a folder of $fpath",
    "fish": "~/.config/fish/completions/tfcluster.fish",
}


def files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Have the shell complete names of files: the `shell_complete` of a parameter."""
    from click.shell_completion import CompletionItem  # not for a command that runs

    return [CompletionItem(incomplete, type="file")]


@click.command("completion")
@click.argument("shell", type=click.Choice(list(_HOMES)))
def command(shell: str) -> None:
    """Print the completion script of SHELL.

    For this session: eval "$(tfcluster completion bash)", or `tfcluster completion fish | source`.
    """
    from click.shell_completion import get_completion_class

    from tfcluster.ui.terminal import Terminal

    root = click.get_current_context().find_root().command
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(root, {}, "tfcluster", "_TFCLUSTER_COMPLETE").source()
    # Where click knows nothing, as for a job's own arguments, bash completes files.
    script = script.replace("complete -o nosort -F", "complete -o nosort -o default -F")
    terminal = Terminal()
    terminal.out(script)
    if terminal.stdout.is_tty:
        terminal.say(f"to keep it: tfcluster completion {shell} > {_HOMES[shell]}")
