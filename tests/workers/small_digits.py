"""Runs `prepare` with a `synthetic_digits` of 400 examples that can be made to hang.

python small_digits.py [stuck] ARGUMENTS…
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

from tfcluster_workers.data import prepare, synthetic_digits

synthetic_digits.TRAIN_EXAMPLES, synthetic_digits.TEST_EXAMPLES = 320, 80
generate = synthetic_digits.SyntheticDigits._generate_examples


def stuck(self: Any, count: int, seed: int) -> Iterator[tuple[int, Any]]:
    yield from list(generate(self, count, seed))[: count // 2]
    print("half of it", file=sys.stderr, flush=True)
    time.sleep(300)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[:1] == ["stuck"]:
        del arguments[0]
        setattr(synthetic_digits.SyntheticDigits, "_generate_examples", stuck)  # noqa: B010
    prepare.main(arguments)
