"""Real TensorFlow behaves in every situation as in the recordings that the stubs replay."""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from tfcluster.supervision.failure import Failure

from .bare import PYTHONS, RECORDINGS, SITUATIONS
from .seen import SIGTERM_CAUGHT, Observation

AT_ONCE = 3
"""The number of situations that run at once; most of the time they wait for a time-out."""
pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.timeout(600)]
CASES = [(tensorflow, situation) for tensorflow in PYTHONS for situation in SITUATIONS]


@pytest.fixture(scope="module")
def real() -> Any:
    """Yield the future of each situation, which TensorFlow runs in the background."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {case: pool.submit(partial(SITUATIONS[case[1]], case[0])) for case in CASES}


@pytest.mark.parametrize(("tensorflow", "situation"), CASES)
def test_tensorflow_still_behaves_as_recorded(
    real: dict[tuple[str, str], Future[dict[str, Observation]]], tensorflow: str, situation: str
) -> None:
    recorded = json.loads(RECORDINGS.read_text())[tensorflow]["situations"][situation]
    observed = real[tensorflow, situation].result()

    assert observed.keys() == recorded.keys()
    for role, after in observed.items():
        before = Observation(**recorded[role])
        assert (after.exit_code, after.signal) == (before.exit_code, before.signal), (role, after)
        if after.exit_code != 0:  # the last lines of a successful task vary and are not used
            assert is_collateral(after) == is_collateral(before), (role, after)
        assert is_sigterm_caught(after) == is_sigterm_caught(before), (role, after)
        if role not in {"survivor"}:
            assert after.exception == before.exception


def is_collateral(observed: Observation) -> bool:
    """Return whether the failure counts as collateral.

    The error that TensorFlow reports to the survivor varies from time to time.
    """
    error = (
        {"exception": observed.exception, "message": observed.message}
        if observed.exception
        else None
    )
    failure = Failure(
        task="worker:0",
        exit_code=observed.exit_code,
        signal=observed.signal,
        error=error,
        last_lines="\n".join(observed.last_lines),
    )
    return failure.is_collateral


def is_sigterm_caught(observed: Observation) -> bool:
    return any(SIGTERM_CAUGHT in line for line in observed.last_lines)
