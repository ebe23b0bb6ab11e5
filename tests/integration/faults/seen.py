"""Observes how a TensorFlow task ended: exit, exception, last lines, without volatile details."""

from __future__ import annotations

import re
from dataclasses import dataclass

_CLOCK = re.compile(r"^(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d[.\d]*: |^[IWEF]\d{4} [\d:.]+ +\d+ ")
SIGTERM_CAUGHT = "SIGTERM caught"
_JOBS_OWN = re.compile(r"starting at step|saved step|fault |trained:")
_VOLATILE = (
    (re.compile(r"(?<=caught at )\S+"), "TIME"),
    (re.compile(r"/[^\s\"':]*/(?:site-packages|faults|lib/python3\.\d+)/"), "…/"),
    (re.compile(r"127\.0\.0\.1:\d+|\[::\]:\d+"), "127.0.0.1:PORT"),
    (re.compile(r"[Ii]ncarnation:? \(?\d+\)?"), "incarnation N"),
    (re.compile(r"\d{10}\.\d+|\b\d{15,}\b|(?<=__inference_train_function_)\d+"), "N"),
    (re.compile(r"0x[0-9a-f]+"), "0xN"),
)


@dataclass(frozen=True, slots=True)
class Observation:
    """The observed behaviour of one task in one situation."""

    exit_code: int | None
    """The exit code; None if the task continued or a signal ended it."""
    signal: int | None
    delay_s: float | None
    """The time from the fault to the end of the task; None if it continued."""
    exception: str | None
    message: str
    last_lines: tuple[str, ...]
    """The last lines of TensorFlow itself, before the traceback if there is one."""


def observe(code: int | None, text: str, delay_s: float | None) -> Observation:
    """Return the observation for a `returncode` of Popen and the whole output."""
    before, traceback = split_at_traceback(text)
    exception, message = last_exception(traceback)
    return Observation(
        exit_code=code if code is not None and code >= 0 else None,
        signal=-code if code is not None and code < 0 else None,
        delay_s=delay_s,
        exception=exception,
        message=message,
        last_lines=last_lines(before),
    )


def scrub(line: str) -> str:
    """Return the line without what differs from run to run."""
    line = _CLOCK.sub("", line)
    for pattern, word in _VOLATILE:
        line = pattern.sub(word, line)
    return line[:300]


def last_lines(text: str, most: int = 5) -> tuple[str, ...]:
    """Return the last lines, after the notice of a SIGTERM where it is further up."""
    lines = [scrub(line) for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not _JOBS_OWN.match(line)]
    caught = [line for line in lines[:-most] if SIGTERM_CAUGHT in line]
    return (*caught[-1:], *lines[-most:])


def split_at_traceback(text: str) -> tuple[str, str]:
    before, mark, last = text.rpartition("Traceback (most recent call last)")
    return (before, last) if mark else (text, "")


def last_exception(traceback: str) -> tuple[str | None, str]:
    """Return the exception's type and message; a long message keeps its first and last lines."""
    found = re.search(r"^([A-Za-z_][\w.]*): (.*)\Z", traceback, re.M | re.S)
    if found is None:
        return None, ""
    lines = [scrub(line) for line in found[2].splitlines() if line.strip()]
    kept = lines if len(lines) <= 8 else [*lines[:2], "…", *lines[-5:]]
    return found[1], "\n".join(kept)
