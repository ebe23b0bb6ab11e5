"""A worker that only records when it ran its first instruction: `python -S stub.py MODE`.

    meet N      wait until all N have started, then exit
    sleep       keep running
    fail N      the same, but number 1 exits with 3 when the file `go` exists
    swallow N   the same, and the others ignore SIGTERM
    crash N     number 1 kills itself in the first attempt; in the second all exit

It runs under every launcher, each with its own variables for a task's number and attempt.
"""

import time

began = time.monotonic()

import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402

FAULTY = "1"
STAYS_S = 300


def write(name: str, text: str) -> None:
    """Write a file atomically: readers never see a part of it."""
    with open(name + ".new", "w") as file:
        file.write(text)
    os.rename(name + ".new", name)


def wait_for(count: int, prefix: str) -> None:
    while sum(name.startswith(prefix) and name[-4:] != ".new" for name in os.listdir()) < count:
        time.sleep(0.005)


def main(mode: str, count: int) -> None:
    env = os.environ
    number = env.get("TFCLUSTER_TASK", env.get("RANK", "")).rpartition(":")[2]
    again = env.get("TFCLUSTER_ATTEMPT", "1") != "1" or env.get("ATTEMPT", "0") != "0"
    attempt = int(again or env.get("TORCHELASTIC_RESTART_COUNT", "0") != "0")
    if mode == "swallow":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    write(f"stamp-{attempt}-{number}", f"{os.getpid()} {began}")
    if mode == "meet":
        wait_for(count, f"stamp-{attempt}-")
    elif mode == "sleep" or (number != FAULTY and not attempt):
        time.sleep(STAYS_S)
    elif not attempt:
        wait_for(count, "stamp-0-")
        wait_for(1, "go")
        write("failed", str(time.monotonic()))
        if mode == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit(3)
    write(f"left-{attempt}-{number}", f"{os.getpid()} {time.monotonic()}")


if __name__ == "__main__":
    main(sys.argv[1], int([*sys.argv, "0"][2]))
