"""Complete checkpoints are found in directory listings, and incomplete ones are not."""

from __future__ import annotations

import pytest

from tfcluster.checkpoints.recognition import (
    CheckpointKind,
    Entry,
    find,
    number_in_name,
    oldest_first,
)

from .files import listing, prefix

SAVED_MODEL = ("m/saved_model.pb", *(f"m/{p}" for p in prefix("variables/variables")))


@pytest.mark.parametrize(
    ("names", "kind", "path", "number"),
    [
        (prefix("ckpt-12"), CheckpointKind.TF_CHECKPOINT, "ckpt-12", 12),
        (prefix("ckpt-12", shards=3), CheckpointKind.TF_CHECKPOINT, "ckpt-12", 12),
        (prefix("deep/er/cp-0007.ckpt"), CheckpointKind.TF_CHECKPOINT, "deep/er/cp-0007.ckpt", 7),
        (prefix("weights"), CheckpointKind.TF_CHECKPOINT, "weights", None),
        ((*prefix("ckpt-1"), "checkpoint"), CheckpointKind.TF_CHECKPOINT, "ckpt-1", 1),
        (
            (*prefix("model.ckpt-300"), "model.ckpt-300.meta", "graph.pbtxt"),
            CheckpointKind.ESTIMATOR,
            "model.ckpt-300",
            300,
        ),
        ((*prefix("model-5"), "model-5.meta"), CheckpointKind.ESTIMATOR, "model-5", 5),
        (SAVED_MODEL, CheckpointKind.SAVED_MODEL, "m", None),
        (("export/3/saved_model.pb",), CheckpointKind.SAVED_MODEL, "export/3", 3),
        (
            ("export/1700000000/saved_model.pb",),
            CheckpointKind.SAVED_MODEL,
            "export/1700000000",
            None,
        ),
        (("saved_model.pb",), CheckpointKind.SAVED_MODEL, ".", None),
        (("model.keras",), CheckpointKind.KERAS, "model.keras", None),
        (("weights.03.weights.h5",), CheckpointKind.WEIGHTS, "weights.03.weights.h5", 3),
        (("w.05-0.43.hdf5",), CheckpointKind.WEIGHTS, "w.05-0.43.hdf5", 5),
        (("step_40.pt",), CheckpointKind.TORCH, "step_40.pt", 40),
        (("o/12/_CHECKPOINT_METADATA", "o/12/default/d/1"), CheckpointKind.ORBAX, "o/12", 12),
        (prefix("backup/chief/ckpt-4"), CheckpointKind.BACKUP, "backup", 4),
        (prefix("chief/ckpt-4"), CheckpointKind.BACKUP, ".", 4),
        (("b/latest.weights.h5", "b/training_metadata.json"), CheckpointKind.BACKUP, "b", None),
    ],
)
def test_a_complete_checkpoint_is_found(
    names: tuple[str, ...], kind: CheckpointKind, path: str, number: int | None
) -> None:
    now = listing(*names)

    (found,) = find(now, now)

    assert (found.kind, found.path, found.number) == (kind, path, number)
    assert found.step == (number if kind is CheckpointKind.ESTIMATOR else None), (
        "others count saves, epochs"
    )


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("ckpt-1.index",), id="no shard"),
        pytest.param(("ckpt-1.data-00000-of-00001",), id="no index"),
        pytest.param(
            ("ckpt-1.index", "ckpt-1.data-00000-of-00003", "ckpt-1.data-00002-of-00003"),
            id="one of three shards missing",
        ),
        pytest.param(
            ("ckpt-1.index", "ckpt-1.data-00000-of-00002", "ckpt-1.data-00001-of-00003"),
            id="shards of two different counts",
        ),
        pytest.param((*prefix("ckpt-1"), "ckpt-1_temp/"), id="being written again"),
        pytest.param(
            (*prefix("ckpt-1"), "ckpt-1_temp_0a1b2c/part-00000-of-00001.index"),
            id="being written again by an older TensorFlow",
        ),
        pytest.param((*prefix("ckpt-1"), "ckpt-1.index.tempstate123"), id="index being written"),
        pytest.param(("7.orbax-checkpoint-tmp/_CHECKPOINT_METADATA",), id="not yet renamed"),
        pytest.param(prefix("workertemp_1/ckpt-1"), id="the temporary copy of a worker"),
        pytest.param(prefix("ckpt-1_temp/part"), id="inside a temporary folder"),
        pytest.param(("temp-170/saved_model.pb",), id="an Estimator's export in progress"),
        pytest.param(("model.keras.tmp", "model.tmp"), id="temporary files"),
        pytest.param((("model.keras", 0), ("a.weights.h5", 0)), id="empty files"),
        pytest.param(((*prefix("ckpt-1")[:1], ("ckpt-1.index", 0))), id="empty index"),
        pytest.param((*prefix("model.ckpt-3"), "graph.pbtxt"), id="Estimator without .meta yet"),
        pytest.param(SAVED_MODEL[1:], id="SavedModel without its graph"),
        pytest.param(SAVED_MODEL[:2], id="SavedModel without its variables' index"),
        pytest.param(("notes.txt", "events.out.tfevents.1", "checkpoint", "a.index"), id="others"),
    ],
)
@pytest.mark.parametrize("writer_has_exited", [True, False])
def test_an_incomplete_checkpoint_is_not_found(
    names: tuple[str | tuple[str, int], ...], writer_has_exited: bool
) -> None:
    now = listing(*names)

    assert find(now, None if writer_has_exited else now) == ()


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(listing(), id="new"),
        pytest.param(listing("ckpt-1.data-00000-of-00001"), id="index new"),
        pytest.param(listing(*prefix("ckpt-1")[:1], ("ckpt-1.index", 9)), id="grown"),
        pytest.param(listing(*prefix("ckpt-1")[:1], ("ckpt-1.index", 10, 0)), id="rewritten"),
    ],
)
def test_files_that_changed_between_two_listings_are_complete_only_if_their_writer_has_exited(
    before: tuple[Entry, ...],
) -> None:
    now = listing(*prefix("ckpt-1"))

    assert find(now, before) == ()
    assert [found.path for found in find(now, None)] == ["ckpt-1"]


def test_old_shards_of_another_count_do_not_hide_the_newer_checkpoint() -> None:
    old = tuple((name, 10, 1) for name in prefix("ckpt-1", shards=2)[:-1])
    new = tuple((name, 10, 5) for name in prefix("ckpt-1", shards=1))

    (found,) = find(listing(*old, *new), None)

    assert [entry.path for entry in found.files] == list(prefix("ckpt-1"))


def test_several_checkpoints_are_found_oldest_first_by_number_whatever_their_times() -> None:
    rows = [(name, 10, 100 - step) for step in (1, 2, 3) for name in prefix(f"ckpt-{step}")]

    assert [found.number for found in find(listing(*rows), None)] == [1, 2, 3]


def test_checkpoints_of_several_series_are_found_oldest_first_by_time() -> None:
    rows = [(name, 10, 5) for name in prefix("fine-1")]
    rows += [(name, 10, step) for step in (1, 2) for name in prefix(f"coarse-{step}")]

    found = find(listing(*rows), None)

    assert [one.name for one in found] == ["coarse-1", "coarse-2", "fine-1"]


def test_known_steps_decide_before_the_numbers_of_names() -> None:
    """Keras counts epochs anew after a restart of a script that does not pass `initial_epoch`."""
    rows = [(name, 10, 1) for epoch in (1, 2, 3) for name in prefix(f"epoch-{epoch}")]
    steps = {1: 400, 2: 200, 3: 300}
    found = find(listing(*rows), None)

    by_step = oldest_first(found, lambda one: one.age(step=steps[one.number or 0], saved_ns=1))

    assert [one.number for one in by_step] == [2, 3, 1]


def test_a_saved_model_next_to_checkpoints_holds_only_its_own_files() -> None:
    now = listing("saved_model.pb", "assets/words.txt", "model.keras", *prefix("ckpt-1"))

    files = {found.kind: [entry.path for entry in found.files] for found in find(now, None)}

    assert files[CheckpointKind.SAVED_MODEL] == ["assets/words.txt", "saved_model.pb"]
    assert set(files) == {
        CheckpointKind.SAVED_MODEL,
        CheckpointKind.KERAS,
        CheckpointKind.TF_CHECKPOINT,
    }


def test_a_rewritten_graph_does_not_make_another_checkpoint() -> None:
    names = (*prefix("model.ckpt-3"), "model.ckpt-3.meta")
    (first,) = find(listing(*names, ("graph.pbtxt", 10, 1)), None)
    (second,) = find(listing(*names, ("graph.pbtxt", 20, 9)), None)

    assert first == second
    assert first.saved_ns == second.saved_ns
    assert [entry.path for entry in first.companions] == ["graph.pbtxt"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("ckpt-1", "ckpt-2", True),
        ("w.01-0.90.weights", "w.02-0.85.weights", True),
        ("a/ckpt-1", "b/ckpt-1", False),
        ("fold1", "fold2", False),
        ("best", "last", False),
    ],
)
def test_successive_checkpoints_are_one_series(one: str, other: str, same: bool) -> None:
    first, second = find(listing(*prefix(one), *prefix(other)), None)

    assert (first.series == second.series) is same


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("ckpt-12", 12),
        ("model.ckpt-300", 300),
        ("cp-0003.ckpt", 3),
        ("weights.03.weights.h5", 3),
        ("model-05-0.43.keras", 5),
        ("model_epoch12.keras", 12),
        ("step=40.keras", 40),
        ("resnet50.keras", None),
        ("resnet50-7.keras", 7),
        ("model_v2.keras", None),
        ("model.keras", None),
    ],
)
def test_the_number_in_a_checkpoint_s_name_is_found(name: str, number: int | None) -> None:
    assert number_in_name(name) == number


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(prefix("b/chief/ckpt-4"), id="Keras 2"),
        pytest.param(("b/latest.weights.h5", "b/training_metadata.json"), id="Keras 3"),
    ],
)
def test_a_backup_that_changes_between_any_two_listings_is_found(names: tuple[str, ...]) -> None:
    before, now = listing(*names), listing(*((name, 10, 2) for name in names))
    assert [(found.kind, found.path) for found in find(now, before)] == [
        (CheckpointKind.BACKUP, "b")
    ]


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param(("training_metadata.json", 24, 4), id="of older weights"),
        pytest.param(("training_metadata.json", 0, 6), id="being written"),
    ],
)
def test_new_weights_without_their_own_metadata_are_not_a_backup(
    metadata: tuple[str, int, int],
) -> None:
    torn = listing(("latest.weights.h5", 100, 5), metadata)
    assert find(torn, None) == ()
