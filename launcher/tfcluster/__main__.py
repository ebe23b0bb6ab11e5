"""The command `tfcluster`, also as ``python -m tfcluster``.

Python 3.9 and 3.10 get the package for `tfcluster_workers`: here they learn how to use it.
"""

import sys


def explain_old_python() -> str:
    """Return why this Python cannot run tfcluster, and what to do; empty if it can."""
    if sys.version_info < (3, 11):
        version = "{}.{}".format(*sys.version_info[:2])
        return (
            f"tfcluster: this is Python {version}, and tfcluster itself needs 3.11; its tasks may"
            " run in this one\n"
            "  → install it for another Python: uv tool install --python 3.12 tfcluster\n"
            f"  → and name this one for the tasks: tfcluster up --python {sys.executable}"
        )
    return ""


def entry() -> None:
    """Run the command, unless this Python is too old."""
    if problem := explain_old_python():
        sys.stderr.write(f"{problem}\n")
        sys.exit(3)
    from tfcluster.cli.main import entry as run

    run()


if __name__ == "__main__":
    entry()
