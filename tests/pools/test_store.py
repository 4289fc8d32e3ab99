"""Saved pools: written atomically, refused when damaged or incompatible, memory-mapped."""

import json
import os

import numpy as np
import pytest

from pools import PoolError, manifest
from pools.draft import draft
from pools.index import Index
from pools.store import Store, names, sample_ids

META = {"tokenizer": "t1", "model": "m1", "prompt": "p1", "entity": "user", "dt": "2026-01-02"}


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    Index.build(list(rng.integers(0, 9, (40, 30))), kind="attribute").save(tmp_path / "global", META)
    return tmp_path / "global"


def tree(index):
    row, length, budget = np.array([[1, 2, 3]], np.int32), np.array([3]), np.array([9])
    batch = draft(row, length, budget, [[index]])
    return [getattr(batch, name).tolist() for name in ("tokens", "parents", "scores", "sources")]


def test_a_saved_pool_is_the_built_one(folder, tmp_path):
    built = Index.build(list(np.random.default_rng(0).integers(0, 9, (40, 30))), kind="attribute")
    opened = Index.open(folder, "t1")
    assert tree(opened) == tree(built)
    assert isinstance(opened.tokens, np.memmap)
    assert (opened.texts, opened.token_count, opened.kind) == (40, 1200, "attribute")
    assert opened.manifest.items() >= {**META, "texts": 40, "token_count": 1200, "version": 2}.items()
    first = built.save(tmp_path / "again", META)
    assert first == opened.manifest  # same texts, same bytes
    assert built.array_bytes / built.token_count < 12


def test_saving_again_replaces_the_pool_and_leaves_no_files(folder):
    held = Index.open(folder)
    before = tree(held)
    Index.build([[1, 2, 3, 4]]).save(folder, META)
    assert Index.open(folder).texts == 1
    assert tree(held) == before  # readers keep the mapped files
    assert os.listdir(folder.parent) == ["global"]


def test_a_failed_save_keeps_the_old_pool(folder, monkeypatch):
    def fail(path):
        raise OSError("disk full")

    monkeypatch.setattr(manifest, "digest", fail)
    with pytest.raises(OSError):
        Index.build([[1]]).save(folder, META)
    monkeypatch.undo()
    assert Index.open(folder).texts == 40
    assert os.listdir(folder.parent) == ["global"]


@pytest.mark.parametrize("name", ["tokens", "suffixes", "ranks", "shared", "least", "vocab", "starts",
                                  "weights"])
def test_damaged_files_are_refused(folder, name):
    path = folder / f"{name}.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(PoolError, match=f"{name}.npy is damaged"):
        Index.open(folder)
    path.write_bytes(content[:-1])
    with pytest.raises(PoolError, match=rf"{name}.npy has \d+ bytes"):
        Index.open(folder, verify=False)
    path.unlink()
    with pytest.raises(PoolError, match=f"{name}.npy is missing"):
        Index.open(folder, verify=False)


def rewrite(folder, **changes):
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_damaged_manifests_are_refused(folder):
    rewrite(folder, tokenizer="t2")
    with pytest.raises(PoolError, match="checksum"):
        Index.open(folder, "t2")
    rewrite(folder, version=99)
    with pytest.raises(PoolError, match="format version 99"):
        Index.open(folder)
    rewrite(folder, format="x")
    with pytest.raises(PoolError, match="not the manifest"):
        Index.open(folder)
    for text in ("{", "[]", ""):
        (folder / "manifest.json").write_text(text)
        with pytest.raises(PoolError, match="manifest.json"):
            Index.open(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(PoolError, match="does not exist"):
        Index.open(folder)


def test_another_tokenizer_is_refused(folder):
    with pytest.raises(PoolError, match="tokenizer t1, but the model has t2"):
        Index.open(folder, "t2")


def test_empty_pool_is_saved_and_opened(tmp_path):
    Index.build([]).save(tmp_path / "empty", META)
    assert tree(Index.open(tmp_path / "empty"))[0] == [[0] * 9]


def test_store_opens_lazily_and_keeps_the_most_recently_used(folder):
    for name in ("a", "b"):
        Index.build([[1, 2]]).save(folder.parent / name, META)
    store = Store(folder.parent, "t1", capacity=2)
    assert names(folder.parent) == ["a", "b", "global"] and names(folder / "missing") == []
    first = store.get("a")
    assert store.get("a") is first
    store.get("b"), store.get("a"), store.get("global")
    assert store.get("a") is first
    assert "b" in store and "c" not in store
    with pytest.raises(PoolError, match="c/manifest.json does not exist"):
        store.get("c")


def test_sample_does_not_depend_on_order():
    ids = [f"u{i}" for i in range(500)]
    chosen = sample_ids(ids, 50, seed=3)
    assert len(chosen) == 50
    assert sample_ids(reversed(ids), 50, seed=3) == chosen != sample_ids(ids, 50, seed=4)
    assert len(sample_ids(ids + ["new"], 50, seed=3) & chosen) >= 49
    assert sample_ids(ids, 500) == sample_ids(ids, 10**9) == set(ids)
