"""Slow to begin, then silent: downloads before its strategy, then a loop that says nothing.

Standing still for SILENCE_S at a time, it reports no step and prints no line.
"""

from __future__ import annotations

import sys
import time

SILENCE_S = float(sys.argv[1])


def main() -> None:
    time.sleep(SILENCE_S)  # a download
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        total = tf.Variable(0.0)

    @tf.function  # type: ignore[untyped-decorator]
    def step() -> None:
        strategy.run(lambda: total.assign_add(1.0))

    step()
    time.sleep(SILENCE_S)
    step()
    print(f"ended with {total.numpy():.0f}", flush=True)


if __name__ == "__main__":
    main()
