"""`tfcluster ui`: serve a page that shows the runs, for this user's browser on this machine."""

from __future__ import annotations

import os
from socket import gethostname
from urllib.parse import urlsplit

import click

from tfcluster.errors import SetupError
from tfcluster.rundir.paths import home
from tfcluster.ui.terminal import Terminal


@click.command("ui")
@click.option("--port", type=click.IntRange(0, 65535), metavar="N",
              help="Port on 127.0.0.1; 0: any (default: the first from 6020 on).")  # fmt: skip
@click.option("--open", "opens", is_flag=True, help="Open the page in your browser.")
@click.option("--read-only", is_flag=True, help="Show the runs, but let the page stop none.")
def command(port: int | None, opens: bool, read_only: bool) -> None:
    """Show all runs, live and past, on a web page until Ctrl-C.

    The printed URL works on this machine only, and holds a key: who has it can read the logs of
    your runs, and stop them.
    """
    terminal = Terminal()
    try:
        from tfcluster.web.serving import serve
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("starlette", "uvicorn"):
            raise
        fix = "pip install 'tfcluster[ui]'"
        raise SetupError(f"the web page needs the package {missing}", fix=fix) from error

    def report(url: str) -> None:
        terminal.say("tfcluster ui: open this URL; Ctrl-C ends the page, the runs continue")
        terminal.out(url)
        if os.environ.get("SSH_CONNECTION"):
            place = f"{urlsplit(url).port}:127.0.0.1:{urlsplit(url).port}"
            terminal.say(f"from another machine, first: ssh -N -L {place} {gethostname()}")

    try:
        serve(
            home(), port=port, read_only=read_only, on_ready=report, browse=opens,
            say=terminal.say_wrapped,
        )  # fmt: skip
    except KeyboardInterrupt:
        terminal.say("")
