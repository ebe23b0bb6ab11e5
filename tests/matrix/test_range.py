"""The tested range of Keras releases agrees with the list of releases that the matrix tests."""

from __future__ import annotations

import re

from tfcluster_workers.keras3 import release

from .releases import ROOT, releases


def test_the_tested_range_is_that_of_the_listed_releases() -> None:
    assert (releases()[0], releases()[-1]) == release.TESTED


def test_at_least_four_minor_releases_are_tested() -> None:
    minors = {release.rpartition(".")[0] for release in releases()}
    assert len(minors) >= 4
    assert releases()[0].startswith("3.3.")


def test_the_newest_release_is_the_one_that_make_setup_installs() -> None:
    """A newer Keras in the constraints must be added to the matrix and to the range."""
    pinned = re.findall(r"^keras==(\S+)", (ROOT / "constraints/newest.txt").read_text(), re.M)
    assert releases()[-1] == pinned[-1]
