"""`tfcluster help` prints the pages and sections that hints name, from the installed package."""

from __future__ import annotations

import shutil
from email.message import Message
from importlib import metadata
from pathlib import Path

import pytest

from tfcluster.errors import UsageError
from tfcluster.supervision.failure import CIRCUMSTANCES
from tfcluster.supervision.known_errors import MESSAGES
from tfcluster.ui import pages

LATE = "docs/failures.md#late"
PAGE = """\
# Failures, all

<a id="late"></a>
### A task is late

Its log says more.

```console
# no heading
```

#### In `fit`

Deeper.

<a id="next"></a>
### Another
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "failures.md": PAGE,
        "tutorials/tuner.md": "# `tuner`: a search\n",
        "tutorials/index.md": "# Tutorials\n",
        "index.md": "# Start here\n\n![A picture](pictures/x.svg)\n\nRead on.\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(pages, "folder", lambda: tmp_path)


def test_every_hint_names_a_section_that_help_prints() -> None:
    places = {known.docs for known in (*MESSAGES, *CIRCUMSTANCES.values())}
    assert len(places) > 40
    for place in places:
        assert pages.read(pages.topic(place)).startswith("### ")


def test_in_a_checkout_a_hint_names_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = pages.folder().parent
    monkeypatch.chdir(checkout)
    assert pages.reference(LATE) == LATE
    monkeypatch.chdir(checkout / "cluster_specs")
    assert pages.reference(LATE) == "../docs/failures.md#late"


def test_elsewhere_a_hint_names_the_command_that_prints_the_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert pages.reference(LATE) == "`tfcluster help failures#late`"
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    assert pages.reference(LATE) == "`tfcluster help failures#late`"


def test_where_the_documentation_is_published_a_hint_names_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_CHECKOUT", tmp_path / "none")
    package = Message()
    monkeypatch.setattr(metadata, "metadata", lambda name: package)
    package["Project-URL"] = "Source, https://code.invalid"
    package["Project-URL"] = "Documentation, https://docs.invalid/tfcluster"
    assert pages.reference(LATE) == "https://docs.invalid/tfcluster/failures.html#late"
    monkeypatch.setenv("TFCLUSTER_DOCS_URL", "https://ours.invalid/")
    assert pages.reference("docs/guides/hosts.md") == "https://ours.invalid/guides/hosts.html"


def test_pages_are_listed_with_their_titles(installed: None) -> None:
    assert pages.titles() == {
        "failures": "Failures, all",
        "index": "Start here",
        "tuner": "tuner: a search",
        "tutorials": "Tutorials",
    }


def test_no_two_pages_have_one_name() -> None:
    files = [*pages.folder().rglob("*.md")]
    assert len(pages.titles()) == len(files) > 30


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("docs/guides/hosts.md#keys", "hosts#keys"),
        ("hosts.md", "hosts"),
        ("reference/spec.md", "spec"),
        ("docs/tutorials/index.md", "tutorials"),
        ("docs/index.md", "index"),
        ("docs/ko/index.md", "ko"),
        ("ko/keras_mnist.md", "ko/keras_mnist"),
        ("", ""),
    ],
)
def test_a_page_is_named_by_its_file_or_its_folder(place: str, name: str) -> None:
    assert pages.topic(place) == name


@pytest.mark.parametrize("name", ["failures#late", "failures.md#late", "docs/failures.md#late"])
def test_a_section_ends_at_the_next_heading_of_its_level(installed: None, name: str) -> None:
    text = pages.read(name)
    assert text.startswith("### A task is late\n")
    assert text.endswith("#### In `fit`\n\nDeeper.\n")
    assert "# no heading" in text
    assert pages.read("failures#in-fit") == "#### In `fit`\n\nDeeper.\n"
    assert pages.read("index") == "# Start here\n\nRead on.\n", "without its pictures"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("failure", "no page is called 'failure'\n  → did you mean 'failures'?"),
        ("x", "no page is called 'x'\n  → `tfcluster help` lists the pages"),
        ("../failures", "no page is called '../failures'\n  → did you mean 'failures'?"),
        (
            "failures#lat",
            "the page 'failures' has no section 'lat'\n  → did you mean 'late'?",
        ),
    ],
)
def test_an_unknown_page_or_section_is_reported_with_a_similar_name(
    installed: None, name: str, message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        pages.read(name)
    assert str(refused.value) == message
