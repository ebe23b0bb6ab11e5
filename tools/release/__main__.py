"""Checks a release from the build to the images: `make release-check`, or steps by their names.

    .venv-release/bin/python -m tools.release [STEP …]
    .venv-release/bin/python -m tools.release prepare OWNER

Without a step, all but `ready` run, and what a person has to do is printed. Exit codes: 0 all steps
are OK, 1 one failed, 3 none failed but one could not run on this machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from . import archives, images, installs, publishing, readme, supply
from .commands import TOOLS, Failed, NotRun, run, say


def twine() -> str:
    """Check the metadata as the index does. Raises Failed."""
    run(TOOLS / "twine", "check", "--strict", archives.wheel(), archives.sdist())
    return "wheel and sdist"


def site() -> str:
    """Build the documentation site. Raises Failed."""
    run("make", "docs")
    return "build/site"


STEPS: dict[str, Callable[[], str]] = {
    "build": archives.build,
    "contents": archives.check_contents,
    "twine": twine,
    "readme": readme.check_readme,
    "licences": supply.check_licences,
    "audit": supply.audit,
    "install": installs.check_installs,
    "example": installs.run_example,
    "site": site,
    "images": images.check_images,
    "ready": publishing.check_ready,
}


def main(arguments: list[str]) -> int:
    """Run the steps and return the exit code."""
    if arguments[:1] == ["prepare"] and len(arguments) == 2:
        publishing.prepare(arguments[1])
        return 0
    if unknown := [name for name in arguments if name not in STEPS]:
        say(f"no step is called {', '.join(unknown)}; the steps are {', '.join(STEPS)}")
        return 2
    results = [_run(name) for name in arguments or [name for name in STEPS if name != "ready"]]
    say("")
    for state, line in results:
        say(f"{state:<8} {line}")
    if not arguments:
        publishing.print_what_is_left()
    states = {state for state, _ in results}
    return 1 if "FAILED" in states else 3 if "NOT RUN" in states else 0


def _run(name: str) -> tuple[str, str]:
    say(f"{name}: {(STEPS[name].__doc__ or '').splitlines()[0].partition(' Raises')[0]}")
    started = time.monotonic()
    try:
        state, text = "OK", STEPS[name]()
    except Failed as error:
        state, text = "FAILED", str(error)
    except NotRun as error:
        state, text = "NOT RUN", f"not run here: {error}"
    say(f"    {state}: {text}")
    return state, f"{name} ({time.monotonic() - started:.0f} s): {text.splitlines()[0]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
