"""A job with a long download before its strategy is made, then a silent training loop.

It sleeps for SILENCE_S at a time, in which it reports no step and prints no line.
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
