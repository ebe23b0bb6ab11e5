"""`tfcluster completion`: the script that makes a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_HOMES = {
    "bash": "~/.local/share/bash-completion/completions/tfcluster",
    "zsh": "a file _tfcluster in a folder of $fpath",
    "fish": "~/.config/fish/completions/tfcluster.fish",
}


@click.command("completion")
@click.argument("shell", type=click.Choice(list(_HOMES)))
def command(shell: str) -> None:
    """Print the completion script of SHELL.

    For this session: eval "$(tfcluster completion bash)", or `tfcluster completion fish | source`.
    """
    from tfcluster.ui.terminal import Terminal

    root = click.get_current_context().find_root().command
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(root, {}, "tfcluster", "_TFCLUSTER_COMPLETE").source()
    terminal = Terminal()
    terminal.out(script)
    if terminal.stdout.is_tty:
        terminal.say(f"to keep it: tfcluster completion {shell} > {_HOMES[shell]}")
