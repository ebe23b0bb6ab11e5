"""Blocks of lines show a progress bar's last state, get prefixes, and lose control characters."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfcluster.rundir.task_logs import latest_state, latest_states
from tfcluster.ui.lines import (
    prefix_lines,
    sanitize,
    sanitize_text,
    select_lines,
)

BLOCKS = st.lists(
    st.lists(st.sampled_from([b"a", b"10%", b"\r", b" ", b"\x00"]), max_size=8).map(b"".join),
    min_size=1,
    max_size=6,
).map(lambda lines: b"".join(line + b"\n" for line in lines))


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"plain\n", b"plain\n"),
        (b"10%\r20%\r30%\n", b"30%\n"),
        (b"dos line\r\n", b"dos line\n"),
        (b"10%\r20%\r\n", b"20%\n"),
        (b"a\n10%\r20%\nb\n", b"a\n20%\nb\n"),
        (b"\n\r\n", b"\n\n"),
    ],
)
def test_a_progress_bar_is_shown_in_its_last_state(written: bytes, shown: bytes) -> None:
    assert latest_states(written) == shown


@given(BLOCKS)
def test_the_latest_state_of_a_block_is_that_of_each_line(block: bytes) -> None:
    alone = [latest_state(line) + b"\n" for line in block[:-1].split(b"\n")]
    assert latest_states(block) == b"".join(alone)


@given(BLOCKS)
def test_every_line_gets_the_prefix_once(block: bytes) -> None:
    alone = [b"w:0 | " + line + b"\n" for line in block[:-1].split(b"\n")]
    assert prefix_lines(block, b"w:0 | ") == b"".join(alone)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"tab\tand \xe2\x94\x82\n", "tab\tand │\n"),
        (b"bell\x07 null\x00 del\x7f\n", "bell␇ null␀ del␡\n"),
        (b"not utf-8: \xff\xfe\n", "not utf-8: ��\n"),
        (b"\x1b[2Jcleared\x1b[H\n", "cleared\n"),
        (b"\x1b]0;renamed\x07window\n", "window\n"),
        (b"c1 \xc2\x9b2J\n", "c1 �2J\n"),
        ("right-to-left \u202egnp.exe\n".encode(), "right-to-left �gnp.exe\n"),
        (b"\x1b[31mred\x1b[0m\n", "red\n"),
        (b"lonely \x1b\n", "lonely ␛\n"),
    ],
)
def test_a_screen_gets_no_control_sequence(written: bytes, shown: str) -> None:
    assert sanitize(written, colours=False).decode() == shown


def test_a_task_s_colours_end_with_their_line() -> None:
    assert sanitize(b"\x1b[31mred\nnext\n", colours=True) == (b"\x1b[31mred\x1b[0m\nnext\x1b[0m\n")


@given(st.binary(max_size=200))
def test_no_control_character_reaches_the_screen(content: bytes) -> None:
    shown = sanitize(content + b"\n", colours=False).decode()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown)


@given(st.text(alphabet="\x1b[]31;?mJ\x07\x9ba\n", max_size=60))
def test_only_colours_reach_a_coloured_screen(text: str) -> None:
    shown = sanitize(text.encode() + b"\n", colours=True).decode()
    without_colours = re.sub("\x1b\\[[0-9;:]*m", "", shown)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", without_colours)


def test_text_is_sanitized_too() -> None:
    assert sanitize_text("a\x1b[2Jb\x07") == "ab␇"


def test_grep_keeps_whole_lines_only() -> None:
    assert select_lines(b"loss 1\nacc 2\nloss 3\n", re.compile(rb"loss \d$")) == b"loss 1\nloss 3\n"
    assert select_lines(b"acc 2\n", re.compile(rb"loss")) == b""
