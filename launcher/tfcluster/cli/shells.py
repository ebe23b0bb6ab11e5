"""The completion of bash, zsh and fish: their scripts, and the answers to them.

click's mechanism with scripts of our own: click's complete no file names where a command completes
nothing, nor words that bash breaks at a colon (``worker:1``), and need bash 4.4 (macOS has 3.2). A
script passes the command line up to the cursor; each line of the answer is a word, a tab and its
description. Without an answer, the shell completes file names.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar, Final

import click
from click.shell_completion import CompletionItem, ShellComplete, split_arg_string

VARIABLE: Final = "_TFCLUSTER_COMPLETE"
"""Set by the script to ``bash_complete`` and the like."""
_LINE: Final = "_TFCLUSTER_LINE"
"""The command line up to the cursor."""
_BREAKS: Final = "_TFCLUSTER_BREAKS"
"""bash's COMP_WORDBREAKS: what it completes begins after the last of these characters."""
_CURSOR: Final = "\1"

_BASH: Final = f"""\
_tfcluster_completion() {{
    local word about
    COMPREPLY=()
    while IFS=$'\\t' read -r word about; do
        COMPREPLY+=("$word")
    done < <({VARIABLE}=bash_complete {_LINE}="${{COMP_LINE:0:COMP_POINT}}" \\
        {_BREAKS}="$COMP_WORDBREAKS" "${{1/#\\~/$HOME}}" 2>/dev/null)
}}
complete -o default -o nosort -F _tfcluster_completion tfcluster 2>/dev/null ||
    complete -o default -F _tfcluster_completion tfcluster
"""
_ZSH: Final = f"""\
#compdef tfcluster

_tfcluster() {{
    local word about line
    local -a plain described
    line="${{(j: :)words[1,CURRENT-1]}} $PREFIX"
    while IFS=$'\\t' read -r word about; do
        if [[ -n $about ]]; then
            described+=("${{word//:/\\\\:}}:$about")
        else
            plain+=("$word")
        fi
    done < <({VARIABLE}=zsh_complete {_LINE}="$line" ${{~words[1]}} 2>/dev/null)
    [[ $PREFIX == --*=* ]] && compset -P '--*='
    if (( $#described )); then
        _describe -V tfcluster described
    elif (( $#plain )); then
        compadd -V tfcluster -a plain
    else
        _files
    fi
}}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _tfcluster "$@"
else
    (( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit }}
    compdef _tfcluster tfcluster
fi
"""
_FISH: Final = f"""\
function __tfcluster_complete
    set -l line (commandline -cp | string collect)
    set -l program (commandline -opc)[1]
    set -l found (env {VARIABLE}=fish_complete {_LINE}=$line $program 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete --command tfcluster --no-files --keep-order --arguments '(__tfcluster_complete)'
"""


class _Shell(ShellComplete):
    """The completion of one shell."""

    def get_completion_args(self) -> tuple[list[str], str]:
        # The mark shows whether the last word has ended: it may have quotes, or a backslash.
        words = split_arg_string(os.environ[_LINE] + _CURSOR)
        return words[1:-1], words[-1].removesuffix(_CURSOR)

    def format_completion(self, item: CompletionItem[Any]) -> str:
        about = " ".join((item.help or "").split())
        return f"{item.value}\t{about}"

    def source(self) -> str:
        return self.source_template

    def complete(self) -> str:
        args, incomplete = self.get_completion_args()
        self.ctx_args["obj"] = [*args]  # for completers
        items = self.get_completions(args, incomplete)
        option = incomplete.partition("=")[0] if incomplete.startswith("--") else incomplete
        if option != incomplete:  # --task=wor: click completes the value
            for item in items:
                item.value = f"{option}={item.value}"
        for item in items:
            item.value = item.value[self.start_of_word(incomplete) :]
        return "\n".join(self.format_completion(item) for item in items)

    def start_of_word(self, incomplete: str) -> int:
        """Return where the part of `incomplete` begins that the shell replaces."""
        return 0


class Bash(_Shell):
    """bash, which breaks words; the descriptions would be part of the words."""

    name: ClassVar[str] = "bash"
    source_template: ClassVar[str] = _BASH

    def start_of_word(self, incomplete: str) -> int:
        breaks = set(os.environ.get(_BREAKS, "")) & {":", "="}
        return max((incomplete.rfind(character) for character in breaks), default=-1) + 1


class Zsh(_Shell):
    """zsh, whose script has set the option of ``--task=wor`` aside."""

    name: ClassVar[str] = "zsh"
    source_template: ClassVar[str] = _ZSH

    def start_of_word(self, incomplete: str) -> int:
        return incomplete.find("=") + 1 if incomplete.startswith("--") else 0


class Fish(_Shell):
    """fish, which replaces whole words."""

    name: ClassVar[str] = "fish"
    source_template: ClassVar[str] = _FISH


SHELLS: Final[dict[str, type[ShellComplete]]] = {kind.name: kind for kind in (Bash, Zsh, Fish)}


def answer(cli: click.Command, instruction: str) -> int:
    """Print what completes the command line, or nothing; return the exit code.

    `instruction`: ``bash_complete``, or ``bash_source`` for the script, as click has them.
    """
    shell, _, wish = instruction.partition("_")
    try:
        completion = SHELLS[shell](cli, {}, "tfcluster", VARIABLE)
        text = completion.source() if wish == "source" else completion.complete()
        if text:
            os.write(1, f"{text}\n".encode())
    except Exception:  # it would be shown in the middle of the user's prompt
        return 1
    return 0
