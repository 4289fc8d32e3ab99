"""Ids from vectors: alike items share codes, collisions end, and a seed decides everything."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from dare_job.cli import app
from dare_job.embed import vectors as vector_files
from dare_job.errors import ConfigError, DataError
from dare_job.recommend.item_ids import ItemIds
from dare_job.training.item_ids import assign, quantiser
from dare_job.training.item_ids.assign import make_ids
from dare_job.training.item_ids.settings import Settings

SMALL = Settings(levels=3, codes=8, inner=8, hidden=32, epochs=80, batch=64, rate=3e-3)
WIDE = replace(SMALL, codes=32, epochs=20)


def _clouds(items=240, clouds=6, size=16, seed=0):
    """Vectors in clouds (n, size), and the cloud of each."""
    rng = np.random.default_rng(seed)
    owners = np.arange(items) % clouds
    centres, noise = 4 * rng.normal(size=(clouds, size)), rng.normal(size=(items, size))
    return (centres[owners] + noise).astype(np.float32), owners


def test_alike_items_share_their_first_code():
    vectors, owners = _clouds()
    ids, record = make_ids(list(map(str, range(240))), vectors, SMALL, "share")
    first = ids.codes[:, 0]
    pure = sum(np.bincount(owners[first == code]).max() for code in np.unique(first))
    assert pure >= 0.95 * len(owners)
    assert record["unexplained"] < 0.5 and min(record["codes_used"]) >= 6


def test_a_seed_decides():
    vectors, _ = _clouds()
    names = list(map(str, range(240)))
    ids = [make_ids(names, vectors, replace(WIDE, seed=seed), "reassign")[0].codes for seed in (0, 0, 1)]
    assert (ids[0] == ids[1]).all() and (ids[0] != ids[2]).any()


@pytest.mark.parametrize("rule", ["reassign", "level", "share"])
def test_collisions(rule):
    vectors, _ = _clouds(items=60)
    vectors[30:36] = vectors[24:30]  # the same items again
    ids, record = make_ids(list(map(str, range(60))), vectors, WIDE, rule)
    assert record["collided"] >= 6
    assert assign.count_collisions(ids.codes) == (record["collided"] if rule == "share" else 0)
    assert ids.length == (4 if rule == "level" else 3)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), min_size=1, max_size=18), st.integers(0, 99))
def test_reassignment_changes_last_codes_alone(rows, seed):
    codes = np.array(rows)
    distances = np.random.default_rng(seed).random((len(rows), 6))
    if np.bincount(codes[:, 0]).max() > 6:
        with pytest.raises(ConfigError, match="--codes or --levels"):
            assign.reassigned(codes, distances)
        return
    found = assign.reassigned(codes, distances)
    assert assign.count_collisions(found) == 0 and (found[:, 0] == codes[:, 0]).all()
    for prefix in range(3):
        rows = codes[:, 0] == prefix
        if assign.count_collisions(codes[rows]) == 0:
            assert (found[rows] == codes[rows]).all()


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=18))
def test_levels_number_those_that_share(rows):
    found = assign.with_collision_level(np.array(rows))
    assert assign.count_collisions(found) == 0 and (found[:, :2] == np.array(rows)).all()
    assert found[:, 2].max() == max(rows.count(row) for row in rows) - 1


def test_reconstruction_gains_by_levels():
    vectors, _ = _clouds()
    errors = [quantiser.fit(vectors, replace(SMALL, levels=levels))[1]["unexplained"]
              for levels in (1, 3)]
    assert errors[1] < errors[0]


def _ran(*arguments):
    found = CliRunner().invoke(app, ["recommender", "item-ids", *map(str, arguments)])
    if found.exception:
        raise found.exception
    return json.loads(found.stdout.splitlines()[-1])


def test_command_on_vectors(tmp_path):
    vectors, _ = _clouds(items=50)
    vector_files.write_vectors(tmp_path / "v.parquet", [f"i{n}" for n in range(50)], vectors)
    np.save(tmp_path / "v.npy", vectors)
    small = ("--levels", 2, "--codes", 16, "--epochs", 5)
    found = _ran("--vectors", tmp_path / "v.parquet", "--save", tmp_path / "ids.json", *small)
    assert found["items"] == found["distinct"] == 50 and found["sizes"] == [16, 16]
    ids = ItemIds.load(tmp_path / "ids.json")
    assert ids.items[:2] == ("i0", "i1")
    _ran("--vectors", tmp_path / "v.npy", "--save", tmp_path / "again.json", *small)
    again = ItemIds.load(tmp_path / "again.json")
    assert again.items[:2] == ("0", "1") and (again.codes == ids.codes).all()


def test_command_on_texts(tmp_path):
    things = ("car", "hat", "tea", "pen")
    titles = [f"{colour} {thing}" for colour in ("red", "blue", "green") for thing in things]
    pq.write_table(pa.table({"item_id": list(range(12)), "title": titles}), tmp_path / "items.parquet")
    found = _ran("--text", tmp_path / "items.parquet", "--save", tmp_path / "ids.json", "--levels", 2,
                 "--codes", 4, "--epochs", 3, "--collisions", "level")
    assert found["distinct"] == 12 and ItemIds.load(tmp_path / "ids.json").items == tuple(map(str, range(12)))


def test_wrong_vectors(tmp_path):
    np.save(tmp_path / "v.npy", np.array([[1.0, np.nan]]))
    with pytest.raises(DataError, match="finite numbers"):
        _ran("--vectors", tmp_path / "v.npy", "--save", tmp_path / "ids.json")
    with pytest.raises(ConfigError, match="either --vectors or --text"):
        _ran("--save", tmp_path / "ids.json")


@pytest.mark.parametrize("vectors", [np.ones((1, 4), np.float32), np.ones((5, 4), np.float32)])
def test_vectors_that_do_not_differ_have_nothing_to_explain(vectors):
    """The command's line stays JSON."""
    assert quantiser.fit(vectors, replace(SMALL, levels=2))[1]["unexplained"] is None
