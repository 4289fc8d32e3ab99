"""The stage recommend on a small shop with Spark: complete recommendations, with and without drafts, and
errors.
"""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_recommender
from tiny_recommender import item_ids, write

from dare_job.decode.model.target import Target
from dare_job.decode.trie_search.search import TopK
from dare_job.errors import ConfigError, ModelError, ThresholdError
from dare_job.models import files
from dare_job.recommend import publishing
from dare_job.recommend.catalogue import Catalogue
from dare_job.recommend.item_ids import ItemIds
from dare_job.recommend.vocabulary import Recommender
from dare_job.schemas import CANDIDATES
from dare_job.stages import recommend
from dare_job.workspace import MANIFEST

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("recommender"))


@pytest.fixture
def job_of(make_job, write_input, folder):
    """Factory of jobs that recommend to the small shop's users, with settings of the section ``recommend``.
    """
    def make(rows=None, limits=None, limit=None, **settings):
        place = write_input(rows or tiny_recommender.interactions(), users=[("u_new", None)])
        given = {"model": str(folder), "k": 4, "batch_size": 5, "rows_per_commit": 8, "drafter": None,
                 "draft_depth": "all"} | settings
        return make_job({"input": {"path": str(place)}, "recommend": given, "limits": limits or {}},
                        limit=limit)
    return make


def table(job) -> pa.Table:
    folder = job.space.candidates()
    manifest = json.loads((folder / MANIFEST).read_text())
    return pa.concat_tables([pq.read_table(folder / name) for name in sorted(manifest["files"])])


def lists(job) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in table(job).to_pylist():
        found.setdefault(row["user_id"], []).append(row["item_id"])
        assert row["rank"] == len(found[row["user_id"]])
    return found


def test_every_user_gets_k_items_as_the_search_finds_them(job_of, folder):
    job = job_of()
    manifest = recommend.run(job)
    assert table(job).schema.equals(CANDIDATES)
    found = lists(job)
    taken: dict[str, list[str]] = {}
    for user, item, _, _ in tiny_recommender.interactions():
        taken.setdefault(user, []).append(item)
    assert set(found) == set(taken) | {"u_new"} and manifest["counts"]["users"] == len(found)
    assert manifest["counts"]["popular"] == 2 and found["u0"] == found["u_new"]  # by popularity
    recommender = Recommender.open(folder)
    catalogue = Catalogue.build(recommender.ids, np.zeros(40))
    search = TopK(Target.load(folder), catalogue.trie, recommender.first_code_token, 4)
    for user in ("u3", "u22"):
        rows = catalogue.rows(taken[user])
        plain = search.search([catalogue.query(recommender, rows, ["seen"])])
        expected = {recommender.ids.items[row] for leaf in plain.leaves[0] for row in catalogue.owners[leaf]}
        assert set(found[user]) <= expected and not set(found[user]) & set(taken[user])
    assert not (job.space.work / "recommend").exists()
    assert recommend.run(job) == manifest  # nothing is recomputed


def test_disliked_items_are_excluded(job_of, make_job):
    """They are not part of a history, and are never recommended to that user."""
    rows = [(user, item, 1.0 if user == "u3" and place % 2 else 5.0, when)
            for place, (user, item, _, when) in enumerate(tiny_recommender.interactions())]
    settings = job_of(rows, k=34).config.model_dump()
    job = make_job(settings | {"history": {"min_rating": 3.0}})
    recommend.run(job)
    found, taken = lists(job), {item for user, item, *_ in rows if user == "u3"}
    disliked = {item for user, item, rating, _ in rows if (user, rating) == ("u3", 1.0)}
    assert disliked and len(found["u3"]) == 34 and not set(found["u3"]) & taken


@pytest.mark.parametrize("drafter", [
    "model", *(pytest.param(name, marks=pytest.mark.slow) for name in ("popularity", "transitions", "trie"))])
def test_drafts_change_no_recommendation(job_of, drafter, tmp_path):
    plain = job_of()
    recommend.run(plain)
    expected = lists(plain)
    if drafter == "model":
        drafter = str(write(tmp_path / "drafter", seed=7, width=16))
    job = job_of(drafter=drafter, draft_width=12)
    manifest = recommend.run(job)
    assert lists(job) == expected
    assert manifest["counts"]["accepted"] > 0 and manifest["forwards_a_user"] < 3


def test_the_recommender_has_its_own_dtype(job_of, make_job, job_log):
    job = job_of(drafter="trie")
    manifest, settings = recommend.run(job), job.config.model_dump()
    assert manifest["settings"]["dtype"] == "float32"
    assert recommend.run(make_job(settings | {"model": {"dtype": "bfloat16"}})) == manifest and not job_log
    wide = np.sort(table(job)["score"].drop_null().to_numpy())
    narrow = make_job(settings | {"recommend": settings["recommend"] | {"dtype": "bfloat16"}})
    assert recommend.run(narrow)["fingerprint"] != manifest["fingerprint"]
    assert (
        "recommend.dtype = bfloat16: with drafts, some recommendations will differ from those of beam"
        in job_log[0]
    )
    apart = np.abs(np.sort(table(narrow)["score"].drop_null().to_numpy()) - wide)
    assert 1e-3 < apart.max() < 2


@pytest.mark.parametrize("settings", [
    {}, {"temperature": 1.0}, {"temperature": 1.0, "verify": "relaxed"}, {"dtype": "bfloat16"}])
def test_the_drafter_counts_where_results_depend_on_it(job_of, folder, tmp_path, settings):
    """Recommendations that another drafter could change are recomputed; others are kept."""
    small = [str(write(tmp_path / name, seed=seed, width=16)) for name, seed in (("a", 7), ("b", 8))]
    (tmp_path / "moved").mkdir()
    moved = str(shutil.copytree(small[0], tmp_path / "moved" / "a"))
    found = {}
    for drafter in (None, "trie", "popularity", *small, moved):
        job, made_by = job_of(drafter=drafter, **settings), {"model": {"sha256": "m"}}
        if place := recommend._drafter(job):
            made_by["drafter"] = {"sha256": files.fingerprint(place)}
        found[drafter] = recommend._fingerprint(job, "input", made_by)
    assert len(set(found.values())) == (5 if settings else 1) and found[moved] == found[small[0]]


@pytest.mark.slow
def test_sampled_recommendations_of_another_drafter_are_recomputed(job_of):
    """``relaxed`` recommendations are lossy, so they are not kept after drafts are turned off."""
    drawn = {"temperature": 1.0, "verify": "relaxed", "draft_width": 6, "draft_whole": 1}
    first = recommend.run(job_of(drafter="popularity", **drawn))
    again = recommend.run(job_of(**drawn))
    assert again["fingerprint"] != first["fingerprint"] and again["settings"]["drafter"] is None


@pytest.mark.slow
def test_sampled_recommendations_do_not_depend_on_batches(job_of):
    settings = {"temperature": 1.0, "drafter": "transitions", "draft_width": 6}
    job = job_of(batch_size=3, **settings)
    recommend.run(job)
    expected = lists(job)
    job.space.candidates().rename(job.space.out / "before")
    job = job_of(batch_size=8, **settings)
    recommend.run(job)
    assert lists(job) == expected and all(len(set(found)) == 4 for found in expected.values())


def test_finished_chunks_are_not_recomputed(job_of, monkeypatch):
    """``test_recommend_killed`` kills a run."""
    job = job_of()

    def full(*arguments):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(publishing, "write", full)
        with pytest.raises(OSError, match="no space"):
            recommend.run(job)
    assert not job.space.candidates().exists()
    folder = next((job.space.work / "recommend").glob("*/chunks"))
    some = sorted(folder.glob("part-*.parquet"))
    some[0].unlink()
    (folder / f".{some[0].name}.x.partial").write_bytes(b"half")
    manifest = recommend.run(job)
    gone = manifest["workers"]["users"]
    assert (
        len(some) > 1 and 0 < gone < manifest["counts"]["users"] and set(map(len, lists(job).values())) == {4}
    )


def test_items_that_share_an_id_come_in_order_of_popularity_or_alone(job_of, folder):
    rows = [*tiny_recommender.interactions(), *(("u99", "i39", None, 1_700_000_000 + at) for at in range(9))]
    job = job_of(rows, k=40, exclude=[])
    recommend.run(job)
    found = lists(job)["u5"]
    assert sorted(found) == sorted(item_ids().items) and found.index("i39") + 1 == found.index("i38")
    job = job_of(rows, k=39, exclude=["duplicates"])
    recommend.run(job)
    assert "i38" not in lists(job)["u5"] and "i38" not in lists(job)["u_new"]


@pytest.mark.parametrize("drafter", [None, pytest.param("transitions", marks=pytest.mark.slow)])
def test_k_items_as_long_as_enough_are_left(job_of, tmp_path, drafter):
    """40 items share 10 ids, fewer than the 12 recommended items."""
    codes = np.tile(item_ids().codes[:10], (4, 1))  # i0, i10, i20 and i30 have the first one
    place = write(tmp_path / "shared", ids=ItemIds(item_ids().items, codes, tiny_recommender.SIZES))
    taken = {"u_whole": (0, 10, 20, 30), "u_12": [*range(28)], "u_11": [*range(29)], "u_all": [*range(40)]}
    rows = [(user, f"i{item}", None, 1_700_000_000 + 60 * at)
            for user, items in taken.items() for at, item in enumerate(items)]
    job = job_of([*tiny_recommender.interactions(), *rows], model=str(place), k=12, drafter=drafter,
                 limits={"max_error_share": 0.1})
    assert recommend.run(job)["counts"]["errors"] == 2
    errors = {row["user_id"]: row["error"] for row in table(job).to_pylist() if row["error"]}
    assert sorted(errors) == ["u_11", "u_all"] and "fewer than 12 items are left, 11," in errors["u_11"]
    found = lists_of_served(job)
    assert {len(set(items)) for items in found.values()} == {12}
    assert set(found["u_12"]) == {f"i{item}" for item in range(28, 40)}
    recommender, counts = Recommender.open(place), np.bincount(
        [int(item[1:]) for _, item, *_ in [*tiny_recommender.interactions(), *rows] if item != "unknown"])
    catalogue = Catalogue.build(recommender.ids, counts.astype(float))
    plain = TopK(Target.load(place), catalogue.trie, recommender.first_code_token, 10)
    for user in ("u_whole", "u_12"):
        history = [*taken[user]]
        leaves = plain.search([catalogue.query(recommender, history, [])]).leaves[0]
        due = [row for leaf in leaves for row in catalogue.owners[leaf] if row not in history]
        assert found[user] == [f"i{row}" for row in due[:12]]


def test_a_failing_user_affects_nobody_else(job_of):
    greedy = [("u77", f"i{item}", None, 1_700_000_000 + item) for item in range(37)]
    rows = [*tiny_recommender.interactions(), *greedy]
    with pytest.raises(ThresholdError, match="1 of 25 users"):
        recommend.run(job_of(rows, limits={"max_error_share": 0.01}))
    job = job_of(rows)
    manifest = recommend.run(job)
    assert manifest["counts"]["errors"] == 1
    row = next(row for row in table(job).to_pylist() if row["user_id"] == "u77")
    assert row["rank"] is None and "fewer than 4 items are left, 3," in row["error"]
    assert {len(found) for user, found in lists_of_served(job).items()} == {4}


def lists_of_served(job) -> dict[str, list]:
    found: dict[str, list] = {}
    for row in table(job).to_pylist():
        if row["error"] is None:
            found.setdefault(row["user_id"], []).append(row["item_id"])
    return found


def test_a_limit_takes_the_first_users(job_of):
    job = job_of(limit=3)
    recommend.run(job)
    assert sorted(lists(job)) == ["u0", "u1", "u10"]


def test_invalid_settings_are_rejected(job_of, tmp_path, folder, monkeypatch):
    with monkeypatch.context() as patch:  # before the input is read
        patch.setattr(recommend, "prepare_input", lambda job: pytest.fail("it was prepared"))
        with pytest.raises(ConfigError, match="recommend.k = 41.*40"):
            recommend.run(job_of(k=41))
    with pytest.raises(ConfigError, match="item ids differ"):
        recommend.run(job_of(drafter=str(write(tmp_path / "other", ids=item_ids(seed=9)))))
    with pytest.raises(ConfigError, match="is no recommender"):
        (tmp_path / "plain").mkdir()
        recommend.run(job_of(model=str(tmp_path / "plain")))
    with pytest.raises(ModelError, match=r"^recommend\.drafter = '/no/such': .*does not exist; it is one of "
                                         "trie, popularity, transitions, or a small recommender's folder$"):
        recommend.run(job_of(drafter="/no/such"))
    with pytest.raises(ModelError, match="does not exist"):
        recommend.run(job_of(model=str(tmp_path / "none")))
    job = job_of(model=None)
    assert recommend.run(job) == {} and not job.space.candidates().exists()
