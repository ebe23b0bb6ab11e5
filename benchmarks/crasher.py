"""A stub worker of four: notes when its first line ran; in the first attempt one of them dies.

    crasher.py obey|swallow

Under tfcluster, under torchrun, or under the bare loop of `supervision`, each with its variables.
"""

import time

began = time.time()

import glob  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402

GANG, FAULTY = 4, "1"


def stamp(name: str, value: float) -> None:
    with open(f"{name}.new", "w") as file:
        file.write(repr(value))
    os.rename(f"{name}.new", name)


def main() -> None:
    env = os.environ
    number = env.get("TFCLUSTER_TASK", env.get("RANK", "")).rpartition(":")[2]
    is_first = env.get("TFCLUSTER_ATTEMPT") == "1" or env.get("TORCHELASTIC_RESTART_COUNT") == "0"
    if not is_first:
        stamp(f"again-{number}", began)
        return
    if sys.argv[1] == "swallow":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stamp(f"first-{number}", began)
    if number == FAULTY:
        while len(glob.glob("first-?")) < GANG:
            time.sleep(0.01)
        time.sleep(0.5)
        stamp("crashed", time.time())
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(120)


main()
