"""A stub worker: notes when its first line ran and when it left, nothing else."""

import time

began = time.time()

import os  # noqa: E402

with open(f"stamp-{os.getpid()}", "w") as file:
    file.write(f"{began} {time.time()}")
