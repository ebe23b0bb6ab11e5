"""What the stubs replay is what TensorFlow does: every recording against the real one, once."""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from tfcluster.supervision.failure import Failure

from .bare import GANG_FAULTS, PYTHONS, RECORDINGS, SITUATIONS
from .seen import ProbeAnswer

AT_ONCE = 3
"""Gangs; most of their time they wait for a heartbeat or for nobody."""
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(600)]
CASES = [(tensorflow, situation) for tensorflow in PYTHONS for situation in SITUATIONS]


@pytest.fixture(scope="module")
def real() -> Any:
    """Each situation, played by TensorFlow in the background."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        # The one that does nothing but wait first.
        order = sorted(CASES, key=lambda case: case[1] != "never-starts")
        yield {case: pool.submit(partial(SITUATIONS[case[1]], case[0])) for case in order}


@pytest.mark.parametrize(("tensorflow", "situation"), CASES)
def test_tensorflow_still_does_what_was_recorded(
    real: dict[tuple[str, str], Future[dict[str, ProbeAnswer]]], tensorflow: str, situation: str
) -> None:
    recorded = json.loads(RECORDINGS.read_text())[tensorflow]["situations"][situation]
    seen = real[tensorflow, situation].result()

    assert seen.keys() == recorded.keys()
    for role, one in seen.items():
        before = ProbeAnswer(**recorded[role])
        assert (one.exit_code, one.signal) == (before.exit_code, before.signal), (role, one)
        if one.exit_code != 0:  # of who ended well nobody asks; what its log ends with differs
            assert is_collateral(one) == is_collateral(before), (role, one)
        assert is_sigterm_caught(one) == is_sigterm_caught(before), (role, one)
        if role not in {"survivor"}:
            assert one.exception == before.exception


def is_collateral(seen: ProbeAnswer) -> bool:
    """Which of its errors TensorFlow tells a survivor differs from time to time."""
    error = {"exception": seen.exception, "message": seen.message} if seen.exception else None
    failure = Failure(
        task="worker:0",
        exit_code=seen.exit_code,
        signal=seen.signal,
        error=error,
        last_lines="\n".join(seen.last_lines),
    )
    return failure.is_collateral


def is_sigterm_caught(seen: ProbeAnswer) -> bool:
    return any("SIGTERM caught" in line for line in seen.last_lines)


def test_every_fault_of_a_gang_is_recorded() -> None:
    assert set(GANG_FAULTS) < set(SITUATIONS)
