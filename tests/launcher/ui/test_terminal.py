"""Data goes to stdout, messages to stderr, and colours only to a screen."""

from __future__ import annotations

import fcntl
import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TextIO

import pytest

from tfcluster.ui.terminal import Terminal

OpenScreen = Callable[..., tuple[int, TextIO]]


def pipe() -> tuple[int, TextIO]:
    reader, writer = os.pipe()
    return reader, io.TextIOWrapper(os.fdopen(writer, "wb", buffering=0), write_through=True)


def test_data_and_messages_do_not_mix(capfd: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(environ={})
    terminal.out("data")
    terminal.say("message")
    terminal.emit_json({"a": [1, "é"]})
    assert capfd.readouterr() == ('data\n{"a": [1, "é"]}\n', "message\n")


def test_a_sentence_is_wrapped_only_on_a_screen(open_screen: OpenScreen) -> None:
    user, screen = open_screen(columns=20)
    sentence = "worker:1 ended, see /a/rather/long/path/of/a/log"
    Terminal(screen, screen, environ={"NO_COLOR": "1"}).say_wrapped(sentence, "red")
    assert os.read(user, 200) == b"worker:1 ended, see\r\n    /a/rather/long/path/of/a/log\r\n"
    piped = io.StringIO()
    Terminal(piped, piped, environ={}).say_wrapped(sentence)
    assert piped.getvalue() == f"{sentence}\n"


def test_paths_that_are_not_utf8_are_written_unchanged(capfd: pytest.CaptureFixture[str]) -> None:
    reader, stdout = pipe()
    Terminal(stdout, environ={}).out("/tmp/\udcff")
    assert os.read(reader, 100) == b"/tmp/\xff\n"
    os.close(reader)
    stdout.close()


@pytest.mark.parametrize(
    ("environ", "coloured", "has_status"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, False, False),
        ({"TERM": "xterm", "CI": "true"}, False, False),
    ],
)
def test_the_environment_chooses_colours_and_status_line(
    open_screen: OpenScreen, environ: Mapping[str, str], coloured: bool, has_status: bool
) -> None:
    _, screen = open_screen()
    terminal = Terminal(screen, screen, environ=environ)
    assert terminal.has_colour(terminal.stderr) is coloured
    assert (terminal.paint("x", "red") == "\x1b[31mx\x1b[0m") is coloured
    assert terminal.has_footer is has_status
    assert Terminal(io.StringIO(), io.StringIO(), environ=environ).paint("x", "red") == "x"


def test_width_is_that_of_the_screen_or_of_columns(open_screen: OpenScreen) -> None:
    _, screen = open_screen(columns=40)
    assert Terminal(screen, screen, environ={}).width == 40
    assert Terminal(screen, screen, environ={"COLUMNS": "66"}).width == 66
    assert Terminal(io.StringIO(), io.StringIO(), environ={"COLUMNS": "nonsense"}).width == 100


def test_a_closed_stdout_is_reported_once_and_never_raised() -> None:
    reader, stdout = pipe()
    stderr = io.StringIO()
    terminal = Terminal(stdout, stderr, environ={})
    terminal.closed_note = "training goes on"
    assert terminal.out("read")
    os.close(reader)
    assert not terminal.out("unread")
    assert not terminal.out_lines(b"unread\n")
    assert stderr.getvalue() == "stdout is closed; training goes on\n"
    assert terminal.stdout.error == "Broken pipe"
    stdout.close()


def test_a_missing_stdout_counts_as_closed() -> None:
    code = (
        "from tfcluster.ui.terminal import Terminal; t = Terminal(); t.out('x'); t.say('message')"
    )
    closed = f'exec {sys.executable} -c "{code}" >&-'
    done = subprocess.run(["sh", "-c", closed], stderr=subprocess.PIPE, text=True, check=True)
    assert done.stderr == "message\n"


def test_a_non_blocking_pipe_gets_everything() -> None:
    reader, stdout = pipe()
    flags = fcntl.fcntl(stdout.fileno(), fcntl.F_GETFL)
    fcntl.fcntl(stdout.fileno(), fcntl.F_SETFL, flags | os.O_NONBLOCK)
    read = bytearray()

    def read_all() -> None:
        while block := os.read(reader, 4096):
            read.extend(block)

    slow = threading.Thread(target=read_all)
    slow.start()
    assert Terminal(stdout, io.StringIO(), environ={}).out_lines(b"x" * 500_000)
    stdout.close()
    slow.join()
    os.close(reader)
    assert len(read) == 500_000


def test_a_stream_without_a_descriptor_gets_text_without_surrogates() -> None:
    stream = io.StringIO()
    terminal = Terminal(stream, stream, environ={})
    terminal.say("note: \ud800!")
    terminal.out_lines(b"data \xff\n")
    assert stream.getvalue() == "note: ?!\ndata �\n"


def test_stdout_on_a_pipe_disables_the_status_line(open_screen: OpenScreen) -> None:
    reader, stdout = pipe()
    assert not Terminal(stdout, open_screen()[1], environ={}).has_footer
    os.close(reader)
    stdout.close()
