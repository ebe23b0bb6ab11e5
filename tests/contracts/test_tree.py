"""Rules for the whole tree: no machine's paths, safe reading of JSON and errors, hashed pins."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest
from tests import scheduling

ROOT = Path(__file__).parents[2]
# Matches this checkout's path, root's home folder, and a package registry.
MACHINE = re.compile(
    rf"{re.escape(str(ROOT))}(?![\w-])|(?<![\w.$}}])/root/[.\w]|(?:extra-)?index-url"
)


def tracked() -> list[Path]:
    done = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True)
    if done.returncode:
        pytest.fail("the tests of the tree need git and a clone")
    return [ROOT / name for name in done.stdout.decode().split("\0") if name]


def test_no_file_contains_a_path_of_this_machine() -> None:
    own = Path(__file__)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in tracked()
        if path.is_file() and path != own and path.suffix != ".svg"
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if MACHINE.search(line)
    ]

    assert found == []


@pytest.mark.parametrize("line", [f"cd {ROOT}", f"{ROOT}/x", "/root/.pyenv/bin", "--index-url x"])
def test_the_pattern_finds_such_a_path(line: str) -> None:
    assert MACHINE.search(line)


def test_nothing_generated_is_committed() -> None:
    names = {part for path in tracked() for part in path.relative_to(ROOT).parts}

    assert names.isdisjoint({"__pycache__", ".venv", "dist", ".mypy_cache", ".ruff_cache"})


READS_ITS_OWN_JSON = {
    # These read what the process that started them, or the coordinator, wrote:
    *("agent/bootstrap.py", "agent/entry.py", "agent/tasks/host_network_spawner.py"),
    *("agent/node/probe.py", "agent/containers/exec_server.py", "backends/simulated/switch.py"),
    "backends/kubernetes/submitted/kube_jobs.py",
    *("cli/init.py", "spec/published_schema.py"),  # files of the package
}


def test_json_of_other_programs_is_read_in_one_place() -> None:
    """Plain `json.loads` may raise RecursionError, which no reader of a damaged file expects."""
    launcher = ROOT / "launcher" / "tfcluster"
    found = {
        str(path.relative_to(launcher))
        for path in launcher.rglob("*.py")
        if re.search(r"\bjson\.loads?\(", path.read_text())
    }
    assert found - {"agent/foreign_json.py"} == READS_ITS_OWN_JSON


MAY_HAVE_NO_TEXT = {
    *("OSError", "TimeoutError", "CancelledError", "Exception", "BaseException", "EOFError"),
    *("ConnectionError", "SourceChangedError", "subprocess.TimeoutExpired"),
}
STANDS_ALONE = {
    *("agent/node/probe.py", "agent/bootstrap.py", "agent/error_text.py"),
    *("agent/containers/exec_server.py", "backends/kubernetes/exec_client.py"),
}
"""Programs that a host's Python runs as single files, without tfcluster's package."""


def shown_raw(source: str) -> list[int]:
    """Return the lines that show a caught exception which may have no text."""
    found = []
    for handler in ast.walk(ast.parse(source)):
        if not isinstance(handler, ast.ExceptHandler) or handler.name is None:
            continue
        caught = {ast.unparse(node) for node in ast.walk(handler.type) if handler.type}  # type: ignore[arg-type]
        if not caught & MAY_HAVE_NO_TEXT:
            continue
        for node in (inner for line in handler.body for inner in ast.walk(line)):
            if isinstance(node, ast.FormattedValue) and node.conversion != ord("r"):
                shown = ast.unparse(node.value)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "str" and node.args:
                shown = ast.unparse(node.args[0])
            else:
                continue
            if shown in (handler.name, f"{handler.name}.strerror"):
                found.append(node.lineno)
    return found


def test_no_message_shows_an_exception_that_may_have_no_text() -> None:
    """A user once got only ``not everything was copied: `` for a TimeoutError."""
    launcher = ROOT / "launcher" / "tfcluster"
    found = [
        f"{path.relative_to(launcher)}:{number}: use agent.error_text"
        for path in launcher.rglob("*.py")
        if str(path.relative_to(launcher)) not in STANDS_ALONE
        for number in shown_raw(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize("shown", ["f'{error}'", "str(error)", "f'{error.strerror}'"])
def test_a_message_that_shows_such_an_exception_is_found(shown: str) -> None:
    assert shown_raw(f"try: pass\nexcept (ValueError, OSError) as error: say({shown})") == [2]
    assert shown_raw(f"try: pass\nexcept ValueError as error: say({shown})") == []


@pytest.mark.parametrize("pins", sorted((ROOT / "constraints").glob("*.txt")), ids=lambda p: p.name)
def test_every_release_that_setup_installs_has_hashes(pins: Path) -> None:
    """A release without hashes would let pip accept any file that an index sends."""
    releases = re.split(r"\n(?=\S)", pins.read_text().strip())
    listed = [one for one in releases if not one.startswith("#")]
    assert listed
    assert [one for one in listed if not re.search(r"--hash=sha256:[0-9a-f]{64}\b", one)] == []


def test_every_test_and_folder_of_the_scheduling_exists() -> None:
    """After a move or a renaming, an old name would silently match nothing."""
    extended = (*scheduling.EXTENDED, *scheduling.EXTENDED_WITH_TENSORFLOW)
    for beginning in (*scheduling.TOGETHER, *extended):
        path, _, test = beginning.partition("::")
        assert (ROOT / path).exists(), beginning
        assert not test or f"def {test}" in (ROOT / path).read_text(), beginning
    for folder in scheduling.BY_FILE:
        assert list((ROOT / folder).glob("test_*.py")), folder
