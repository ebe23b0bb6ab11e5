"""The options that all example jobs share have the documented meaning and error messages."""

from __future__ import annotations

import argparse

import pytest
from tests.documentation import unprinted

from tfcluster_workers import reporting
from tfcluster_workers.errors import JobError, OptionError
from tfcluster_workers.jobs.parts import job_errors, options


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    options.add_data(parser)
    options.add_training(parser)
    options.add_strategy(parser)
    return parser.parse_args(arguments)


def test_the_default_options() -> None:
    chosen = parse()
    assert (chosen.dataset, chosen.shard_policy, chosen.cache) == ("synthetic_digits", "data", True)
    assert (chosen.epochs, chosen.global_batch, chosen.prefetch) == (3, 96, options.AUTOTUNE)
    assert (chosen.strategy, chosen.logical_cpus, chosen.examples) == (None, 1, None)


@pytest.mark.parametrize(
    ("given", "size"), [("auto", -1), ("0", 0), ("4", 4)], ids=["auto", "none", "four"]
)
def test_prefetch_takes_a_number_or_auto(given: str, size: int) -> None:
    assert parse("--prefetch", given).prefetch == size


@pytest.mark.parametrize(
    "wrong",
    [
        ("--prefetch", "-2"),
        ("--prefetch", "some"),
        ("--epochs", "0"),
        ("--examples", "0"),
        ("--global-batch", "-96"),
        ("--shard-policy", "hint"),
        ("--strategy", "none"),
    ],
)
def test_an_impossible_value_is_refused_by_name(
    wrong: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(*wrong)
    assert ended.value.code == 2
    assert f"argument {wrong[0]}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "replicas", "size"),
    [
        ((), 1, 96),
        ((), 3, 96),
        (("--global-batch", "4"), 2, 4),
        (("--replica-batch", "32"), 3, 96),
        (("--replica-batch", "1"), 4, 4),
    ],
)
def test_the_global_batch(given: tuple[str, ...], replicas: int, size: int) -> None:
    assert options.global_batch(parse(*given), replicas) == size


def test_a_batch_smaller_than_the_replicas_is_refused_with_a_suggestion() -> None:
    with pytest.raises(OptionError, match=r"batch 2 is smaller than the 3 replicas.*try 3$"):
        options.global_batch(parse("--global-batch", "2"), 3)
    with pytest.raises(OptionError) as refused:
        options.global_batch(parse("--global-batch", "1"), 2)
    said = f"keras_mnist: {refused.value}"
    assert unprinted("tutorials/options.md", "--global-batch 1", said) == []


def test_a_batch_that_cannot_be_split_is_refused_with_a_suggestion() -> None:
    with pytest.raises(OptionError, match=r"batch 100 cannot be split evenly over 3.*try 99$"):
        options.global_batch(parse("--global-batch", "100"), 3)


def test_the_learning_rate_grows_with_the_batch_only_on_request() -> None:
    assert options.learning_rate_scale(parse(), 384) == 1.0
    assert options.learning_rate_scale(parse("--scale-learning-rate"), 384) == 4.0


def test_a_job_error_ends_the_job_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    reported = dict[str, object]()
    monkeypatch.setattr(reporting, "error", lambda **event: reported.update(event))
    with pytest.raises(SystemExit) as ended, job_errors.exit_with_message("keras_mnist"):
        raise JobError("no such thing; try another")
    assert ended.value.code == "keras_mnist: no such thing; try another"
    assert (reported["exception"], reported["message"]) == (
        "JobError",
        "no such thing; try another",
    )


def test_other_errors_keep_their_traceback() -> None:
    with pytest.raises(ZeroDivisionError), job_errors.exit_with_message("keras_mnist"):
        raise ZeroDivisionError
