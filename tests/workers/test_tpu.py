"""Strategy `tpu` reports a resolver that fails, never answers or cannot be imported."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tfcluster_workers import strategy
from tfcluster_workers.errors import NoTpuError

from .conftest import PYTHONS, run_plain


@dataclass(frozen=True)
class Resolver:
    """The part of a cluster resolver that the strategy uses first."""

    address: str

    def master(self) -> str:
        return self.address


@pytest.fixture
def nowhere() -> Iterator[str]:
    """Return a local address at which nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"grpc://127.0.0.1:{held.getsockname()[1]}"


def test_a_failing_resolver_is_reported_with_its_message_and_the_fix() -> None:
    def resolver() -> Resolver:
        raise ValueError("Please provide a TPU Name to connect to.")

    with pytest.raises(NoTpuError) as caught:
        strategy.make("tpu", tpu_resolver=resolver)
    assert "ValueError: Please provide a TPU Name to connect to." in str(caught.value)
    assert "Set TPU_NAME" in str(caught.value)


def test_a_resolver_that_never_answers_times_out() -> None:
    answer = threading.Event()

    def resolver() -> Resolver:
        answer.wait()
        return Resolver("")

    with pytest.raises(NoTpuError, match=r"did not answer within 0\.2 s"):
        strategy.make_tpu_strategy(resolver, timeout_s=0.2)
    answer.set()


def test_the_time_out_is_below_ten_seconds() -> None:
    assert strategy.TPU_TIMEOUT_S <= 9


def test_an_unreachable_address_is_named(nowhere: str) -> None:
    with pytest.raises(NoTpuError, match=rf"no answer from {nowhere[7:]} \("):
        strategy.make_tpu_strategy(lambda: Resolver(nowhere))


def test_a_resolver_that_cannot_be_imported_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(strategy.RESOLVER_VARIABLE, "no_such_module:resolver")
    with pytest.raises(NoTpuError, match="TFCLUSTER_TPU_RESOLVER=no_such_module:resolver: No mod"):
        strategy.make_tpu_strategy()


# -- with a real TensorFlow ------------------------------------------------------------------------


@pytest.mark.tensorflow
def test_tensorflow_resolver_that_waits_for_the_metadata_server_times_out() -> None:
    """The server accepts the request and never answers; urlopen has no time-out."""
    code = (
        "import tensorflow\n"
        "from tfcluster_workers import strategy\n"
        "try: strategy.make_tpu_strategy(timeout_s=2)\n"
        "except strategy.NoTpuError as error: print(error)\n"
    )
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        host = f"127.0.0.1:{mute.getsockname()[1]}"
        python = PYTHONS["tf215"]
        ended = run_plain(python, "-c", code, TPU_NAME="my-tpu", GCE_METADATA_HOST=host)
    assert "the resolver did not answer within 2 s" in ended.stdout
