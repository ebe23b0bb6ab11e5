"""Make a virtual environment for one of the supported TensorFlow versions: `make setup` calls it.

Runs under any Python 3 with the standard library only, because nothing is installed yet.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TICK_S = 20.0
EXIT_NO_PYTHON = 3


def main():
    """Install everything that the constraints pin; return 3 if there is no suitable Python.

    Only files whose hash is in the constraints are installed; limits that this machine's pip has
    for its own choices would only contradict them.
    """
    options = _options()
    os.environ["PIP_CONSTRAINT"] = os.devnull
    python = find_python(options.python, options.oldest, options.newest)
    if python is None:
        wanted = f"Python {options.oldest} to {options.newest}"
        say(f"{options.folder}: no {wanted} found; install one, or set {options.variable}=…")
        return EXIT_NO_PYTHON
    folder = ROOT / options.folder
    version = _version_of(python)
    say(f"{options.folder}: Python {version[0]}.{version[1]}, {options.what}; takes some minutes")
    started = time.monotonic()
    if not _is_of(folder, version):
        shutil.rmtree(folder, ignore_errors=True)
        _run([python, "-m", "venv", str(folder)], options.folder)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps"]
    pip += ["--disable-pip-version-check", "--no-input", "--no-build-isolation"]
    pins = ROOT / options.constraints
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as tools:
        tools.write(build_tools(pins.read_text()))
        tools.flush()
        for wanted in (tools.name, str(pins)):
            install = [*pip, "--require-hashes", "--requirement", wanted]
            _run(install, options.folder, tries=3)  # pip does not repeat a download that broke off
    if options.editable:
        _run([*pip, "--editable", options.editable], options.folder)
    say(f"{options.folder}: ready after {time.monotonic() - started:.0f} s")
    return 0


def build_tools(pins):
    """Return the lines of the build tools and of what they import, with their hashes.

    Source packages need them installed first: builds without isolation fetch nothing else.
    """
    releases = re.split(r"\n(?=\S)", pins)
    return "".join(
        f"{one}\n" for one in releases if re.match(r"(packaging|setuptools|wheel)==", one)
    )


def find_python(chosen, oldest, newest):
    """Return the path of a Python in the range, or None: the chosen one, or PATH, pyenv, uv."""
    low, high = _parsed(oldest), _parsed(newest)
    for candidate in [chosen] if chosen else _candidates(low, high):
        version = _version_of(candidate)
        if version and low <= version <= high:
            return candidate
    return None


def _candidates(low, high):
    yield sys.executable
    yield "python3"
    roots = [Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()]
    for minor in range(high[1], low[1] - 1, -1):
        yield f"python3.{minor}"
        for root in roots:
            yield from sorted(map(str, root.glob(f"versions/3.{minor}.*/bin/python")), reverse=True)
        if shutil.which("uv"):
            found = subprocess.run(
                ["uv", "python", "find", "--no-python-downloads", f"3.{minor}"],
                capture_output=True,
                text=True,
            )
            yield found.stdout.strip()


def _version_of(python):
    """Return a version such as (3, 11), or None if it does not run (a pyenv shim without one)."""
    show = "import sys, ensurepip; print(*sys.version_info[:2])"
    try:
        done = subprocess.run([python, "-c", show], capture_output=True, text=True)
        return tuple(int(part) for part in done.stdout.split()) or None
    except (OSError, ValueError):
        return None


def _parsed(version):
    return tuple(int(part) for part in version.split("."))


def _is_of(folder, version):
    python = folder / "bin" / "python"
    return python.exists() and _version_of(str(python)) == version


def _run(command, label, tries=1):
    """Run quietly, report every 20 s that it is still running, show the output of a failure.

    `tries`: how often it is run until it succeeds.
    """
    done = threading.Event()
    ticker = threading.Thread(target=_tick, args=(label, done), daemon=True)
    with tempfile.TemporaryFile("w+") as output:
        ticker.start()
        try:
            code = subprocess.run(
                command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT
            ).returncode
        finally:
            done.set()
        if code:
            output.seek(0)
            say("".join(output.readlines()[-30:]).rstrip())
            say(f"{label}: failed: {' '.join(command)}")
            if tries == 1:
                raise SystemExit(1)
    if code:
        _run(command, label, tries - 1)


def _tick(label, done):
    started = time.monotonic()
    while not done.wait(TICK_S):
        say(f"{label}: installing, {time.monotonic() - started:.0f} s so far")


def say(text):
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _options():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--editable", help="this project")
    parser.add_argument("--constraints", required=True)
    parser.add_argument("--oldest", required=True)
    parser.add_argument("--newest", required=True)
    parser.add_argument("--what", required=True, help="for the progress line")
    parser.add_argument("--python", default="", help="use this one")
    parser.add_argument("--variable", default="PYTHON", help="the make variable that sets it")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
