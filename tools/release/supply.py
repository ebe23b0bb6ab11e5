"""Vulnerabilities and licences of the packages that the wheel and the images bring."""

from __future__ import annotations

import functools
import json
import re
import sys
from pathlib import Path

from .archives import wheel
from .build_hooks import without_hashes
from .commands import ROOT, TOOLS, Failed, NotRun, install, run

FOLDER = ROOT / "build" / "release"
ALLOWED = re.compile(
    r"""
        MIT(-CMU|-0|\ License)? | 0BSD | ISC | ISC\ License.* | Zlib | Unlicense | CC0-1\.0
        | BSD(\ License|-[23]-Clause) | 3-Clause\ BSD\ License
        | Apache(-2\.0|\ Software\ License|\ License\ 2\.0)
        | PSF-2\.0 | Python-2\.0(\.1)? | Python\ Software\ Foundation\ License | CNRI-Python
        | MPL-2\.0 | Mozilla\ Public\ License\ 2\.0\ \(MPL\ 2\.0\)
    """,
    re.VERBOSE,
)
"""Licences that bind only the package's own code."""
STATED = {"namex": "Apache-2.0"}
"""Package → the licence in its file LICENSE, where the metadata have none."""
_JSON = ("--format", "json")


def audit() -> str:
    """Find packages with known vulnerabilities. Raises Failed, or NotRun without a service."""
    found, unknown, counts = list[str](), list[str](), list[str]()
    for name, folder in _environments().items():
        (packages,) = (folder / "lib").glob("python3*/site-packages")
        options = (*_JSON, "--progress-spinner", "off", "--path", packages)
        answer = json.loads(run(TOOLS / "pip-audit", *options, codes=(0, 1)))["dependencies"]
        others = [package for package in answer if package["name"] != "tfcluster"]
        counts.append(f"{name}: {len(others)} packages")
        # pip-audit ends with 0 if its service knows no package, as behind a mirror of the index.
        unknown += [package["name"] for package in others if "skip_reason" in package]
        found += [
            f"{name}: {package['name']} {package['version']} has {hole['id']},"
            f" fixed in {', '.join(hole['fix_versions']) or 'no release'}"
            for package in others
            for hole in package.get("vulns", ())
        ]
    if found:
        raise Failed("\n".join(found))
    if unknown:
        names = sorted(set(unknown))
        raise NotRun(f"the service does not know {len(names)} packages, such as {names[0]}")
    return ", ".join(counts)


def check_licences() -> str:
    """List the licences in build/release. Raises Failed for one that is not allowed."""
    counts, refused = [], []
    for name, folder in _environments().items():
        options = (*_JSON, "--from", "mixed", "--python", folder / "bin" / "python")
        lines = []
        for package in json.loads(run(TOOLS / "pip-licenses", *options)):
            licence = STATED.get(package["Name"]) or package["License"].splitlines()[0]
            lines.append(f"{package['Name']} {package['Version']}: {licence}")
            if not is_allowed(licence):
                refused.append(f"{name}: {lines[-1]}: not in ALLOWED of tools/release/supply.py")
        (FOLDER / f"licences-{name}.txt").write_text("\n".join([*lines, ""]))
        counts.append(f"{name}: {len(lines)} packages")
    if refused:
        raise Failed("\n".join(refused))
    return ", ".join(counts)


def is_allowed(licence: str) -> bool:
    """Return whether a package with this licence may be used: an SPDX expression, or classifiers.

    Of alternatives one is enough; of licences that apply together each must be allowed.
    """
    return any(
        all(ALLOWED.fullmatch(part.strip()) for part in re.split(r" AND |;", alternative))
        for alternative in licence.split(" OR ")
    )


@functools.cache
def _environments() -> dict[str, Path]:
    """Return an environment with the packages of the wheel, and one with those of the images."""
    pins = FOLDER / "constraints.txt"
    FOLDER.mkdir(parents=True, exist_ok=True)
    newest = without_hashes((ROOT / "constraints" / "newest.txt").read_text(encoding="utf-8"))
    pins.write_text(newest)
    found = re.search(r"^tensorflow==((\d+\.\d+)\S*)", newest, re.MULTILINE)
    assert found is not None
    of_wheel, of_images = FOLDER / "packages-wheel", FOLDER / "packages-images"
    install(of_wheel, sys.executable, f"{wheel()}[ui,kubernetes]")
    # As in docker/pip-install.
    companions = ("tensorflow-datasets", "importlib-resources", "tensorflow-metadata")
    image = (f"tensorflow-cpu=={found[1]}", *companions, "keras-tuner", f"{wheel()}[kubernetes]")
    python = install(of_images, sys.executable, *image, "--constraints", str(pins)) / "python"
    uv = (TOOLS / "uv", "pip", "install", "--quiet", "--no-deps", "--python", python)
    run(*uv, f"tf-keras=={found[2]}.*", "--constraints", pins)
    return {"wheel": of_wheel, "images": of_images}
