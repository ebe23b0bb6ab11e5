"""Compare tfcluster with other launchers: `python -m benchmarks [METRIC …]`; `report FILE …`."""

from __future__ import annotations

import argparse
import math
import random
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

from benchmarks.catalog import METRICS
from benchmarks.harness import Failed, Value, measure, say
from benchmarks.report import report
from benchmarks.results import RESULTS, signed, write
from benchmarks.table import table

QUICK_ARMS = ("tfcluster", "shell")


def main() -> int:
    """Measure the chosen metrics one after the other, print tables, write every single value."""
    options = _options()
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGHUP, _leave)
    if options.metrics[:1] == ["report"]:
        return report([Path(name) for name in options.metrics[1:]])
    names = options.metrics or [n for n, e in METRICS.items() if e.is_quick or not options.quick]
    say(f"seed {options.seed}")
    failed = [name for name in names if not _measured(name, options)]
    if failed:
        say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    listed = "\n".join(f"  {name:<24}{entry.about}" for name, entry in METRICS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog=f"metrics:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("metrics", nargs="*", metavar="METRIC", help="default: all")
    parser.add_argument("--runs", type=int, help="rounds of all arms (default 10)")
    parser.add_argument(
        "--seed",
        type=int,
        default=random.randrange(1000),
        help="seed of the order of the arms (default: random)",
    )
    parser.add_argument(
        "--into",
        type=Path,
        help="folder of the CSV files (default benchmarks/results, or its quick/ with --quick)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a smoke test: one tiny run, tfcluster and shell only"
    )
    options = parser.parse_args()
    options.runs = options.runs or (1 if options.quick else 10)
    options.into = options.into or (RESULTS / "quick" if options.quick else RESULTS)
    unknown = set(options.metrics) - METRICS.keys()
    if unknown and options.metrics[0] != "report":
        parser.error(f"unknown metric: {', '.join(sorted(unknown))}; known: {', '.join(METRICS)}")
    slow = {name for name in options.metrics if name in METRICS and not METRICS[name].is_quick}
    if options.quick and slow:
        parser.error(f"{', '.join(sorted(slow))}: no smoke test; leave out the name or --quick")
    return options


def _leave(signum: int, frame: FrameType | None) -> None:
    """Raise SystemExit, so that every `with` block ends what it started."""
    raise SystemExit(128 + signum)


def _measured(name: str, options: argparse.Namespace) -> bool:
    metric = METRICS[name].make(quick=options.quick)
    if options.quick:
        metric = replace(metric, arms={arm: metric.arms[arm] for arm in QUICK_ARMS})
    more = f"--runs {options.runs} --seed {options.seed}"
    path = options.into / f"{name}.csv"
    values: list[Value] = []
    try:
        for taken in measure(
            name, metric, runs=options.runs, seed=options.seed, warms_up=not options.quick
        ):
            values += signed(taken, metric, more=more)
            write(path, values)
    except Failed as error:
        say(f"{name}: {error}")
        return False
    print(table(metric, values), flush=True)
    return not options.quick or _is_whole(name, values)


def _is_whole(name: str, values: Sequence[Value]) -> bool:
    """Return whether a smoke test has finite numbers for tfcluster and for the shell."""
    arms = {value.arm for value in values if math.isfinite(value.value)}
    if lost := set(QUICK_ARMS) - arms:
        say(f"{name}: no numbers for {', '.join(sorted(lost))}")
    return not lost and all(math.isfinite(value.value) for value in values)


if __name__ == "__main__":
    sys.exit(main())
