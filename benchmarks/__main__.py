"""Measure tfcluster beside the plain shell: ``python -m benchmarks [METRIC …] [--runs 5]``."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchmarks import (
    containers,
    gathering,
    idle,
    log_throughput,
    many_hosts,
    overhead,
    supervision,
)
from benchmarks.harness import Metric, measure, table, write_csv

METRICS: dict[str, Metric] = {
    "log-throughput": log_throughput.METRIC,
    "start-overhead": overhead.START,
    "exit-overhead": overhead.EXIT,
    "stop-after-failure": supervision.STOP,
    "restart": supervision.RESTART,
    "many-hosts": many_hosts.UP,
    "containers": containers.UP,
    "gather": gathering.COPY,
    "gather-beside-training": gathering.BESIDE,
    "idle-memory": idle.MEMORY,
    "idle-cpu": idle.CPU,
}
RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Run the chosen metrics one after the other, print tables, write every single value."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("metrics", nargs="*", metavar="METRIC", help=f"of {', '.join(METRICS)}")
    parser.add_argument("--runs", type=int, default=5, help="of each variant, interleaved")
    options = parser.parse_args()
    if unknown := set(options.metrics) - METRICS.keys():
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(METRICS)}")
    values = []
    for name in options.metrics or METRICS:
        measured = measure(name, METRICS[name], runs=options.runs)
        print(table(METRICS[name], measured), flush=True)
        values += measured
    path = RESULTS / f"{time.strftime('%Y%m%d-%H%M%S')}.csv"
    write_csv(path, values)
    print(f"every value: {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
