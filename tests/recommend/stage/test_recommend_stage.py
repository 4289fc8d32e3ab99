"""The stage recommend on a small shop with Spark: complete recommendations, with and without drafts, and
errors.
"""

import json
import shutil
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_recommender
from tiny_recommender import item_ids, write

from dare_job.config.settings import JobConfig
from dare_job.decode.model.target import Target
from dare_job.decode.trie_search.search import TopK
from dare_job.errors import ConfigError, ModelError, ThresholdError
from dare_job.job import Job
from dare_job.models import files
from dare_job.recommend import publishing
from dare_job.recommend.catalogue import Catalogue
from dare_job.recommend.vocabulary import Recommender
from dare_job.schemas import CANDIDATES, INTERACTIONS, ITEMS, USERS
from dare_job.stages import recommend
from dare_job.workspace import MANIFEST, Workspace

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("recommender"))


@pytest.fixture(scope="module")
def plain(spark, folder, tmp_path_factory):
    """A finished job without drafts, and its manifest; tests that write to its ``out`` copy it."""
    place = tmp_path_factory.mktemp("plain")
    for name, schema, rows in (("interactions", INTERACTIONS, tiny_recommender.interactions()),
                               ("users", USERS, [("u_new", None)]), ("items", ITEMS, [])):
        rows = [dict(zip(schema.names, row, strict=True)) for row in rows]
        pq.write_table(pa.Table.from_pylist(rows, schema), place / f"{name}.parquet")
    config = JobConfig.model_validate({"out": str(place / "out"), "input": {"path": str(place)},
                                       "recommend": settings(folder)})
    job = Job(config, Workspace(place / "out", date(2026, 1, 2)), "run-1")
    job.__dict__["spark"] = spark
    return job, recommend.run(job)


def settings(folder, **more) -> dict:
    return {"model": str(folder), "k": 4, "batch_size": 5, "rows_per_commit": 8, "drafter": None,
            "draft_depth": "all"} | more


@pytest.fixture
def job_of(make_job, write_input, folder):
    """Factory of jobs that recommend to the small shop's users, with settings of the section ``recommend``.
    """
    def make(rows=None, sections=None, **more):
        place = write_input(rows or tiny_recommender.interactions(), users=[("u_new", None)])
        return make_job({"input": {"path": str(place)}, "recommend": settings(folder, **more)}
                        | (sections or {}))
    return make


def table(job) -> pa.Table:
    folder = job.space.candidates()
    manifest = json.loads((folder / MANIFEST).read_text())
    return pa.concat_tables([pq.read_table(folder / name) for name in sorted(manifest["files"])])


def lists(job) -> dict[str, list[str]]:
    """Items by served user, in order."""
    found: dict[str, list[str]] = {}
    for row in table(job).to_pylist():
        if row["error"] is None:
            found.setdefault(row["user_id"], []).append(row["item_id"])
            assert row["rank"] == len(found[row["user_id"]])
    return found


def test_every_user_gets_k_items_as_the_search_finds_them(plain, folder):
    job, manifest = plain
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
        leaves = search.search([catalogue.query(recommender, rows, ["interacted"])]).leaves[0]
        expected = {recommender.ids.items[row] for leaf in leaves for row in catalogue.owners[leaf]}
        assert set(found[user]) <= expected and not set(found[user]) & set(taken[user])
    assert not (job.space.work / "recommend").exists()
    assert recommend.run(job) == manifest  # nothing is recomputed


def test_neither_drafts_nor_an_interruption_change_recommendations(plain, job_of, tmp_path, monkeypatch):
    """Finished chunks are not recomputed; ``test_recommend_killed`` kills a run."""
    job = job_of(drafter=str(write(tmp_path / "drafter", seed=7, width=16)), draft_width=12)

    def full(*arguments):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(publishing, "write", full)
        with pytest.raises(OSError, match="no space"):
            recommend.run(job)
    assert not job.space.candidates().exists()
    chunks = next((job.space.work / "recommend").glob("*/chunks"))
    some = sorted(chunks.glob("part-*.parquet"))
    some[0].unlink()
    (chunks / f".{some[0].name}.x.partial").write_bytes(b"half")
    manifest = recommend.run(job)
    gone = manifest["workers"]["users"]
    assert len(some) > 1 and 0 < gone < manifest["counts"]["users"]
    assert lists(job) == lists(plain[0])
    assert manifest["counts"]["accepted"] > 0 and manifest["forwards_per_user"] < 3


def test_the_recommender_has_its_own_dtype(plain, make_job, tmp_path, job_log):
    """The limit of users, which here saves time, takes the first ones."""
    job, manifest = plain
    shutil.copytree(job.space.out, tmp_path / "out")
    before = job.config.model_dump() | {"out": str(tmp_path / "out")}
    assert manifest["settings"]["dtype"] == "float32"
    assert recommend.run(make_job(before | {"model": {"dtype": "bfloat16"}})) == manifest and not job_log
    changed = before["recommend"] | {"dtype": "bfloat16", "drafter": "trie"}
    narrow = make_job(before | {"recommend": changed}, limit=3)
    assert recommend.run(narrow)["fingerprint"] != manifest["fingerprint"]
    assert (
        "recommend.dtype = bfloat16: with drafts, some recommendations will differ from those of beam"
        in job_log[0]
    )
    assert sorted(lists(narrow)) == ["u0", "u1", "u10"]
    scores = [{row["user_id"]: row["score"] for row in table(one).to_pylist() if row["rank"] == 1}
              for one in (job, narrow)]
    apart = [abs(scores[0][user] - scores[1][user]) for user in ("u1", "u10")]
    assert 1e-4 < max(apart) < 2


def test_disliked_items_are_excluded_and_a_failing_user_affects_nobody_else(job_of):
    """Disliked items are not part of a history, and are never recommended to that user."""
    rows = [(user, item, 1.0 if user == "u3" and place % 2 else 5.0, when)
            for place, (user, item, _, when) in enumerate(tiny_recommender.interactions())]
    rows += [("u77", f"i{item}", 5.0, 1_700_000_000 + item) for item in range(37)]
    liked = {"history": {"min_rating": 3.0}}
    with pytest.raises(ThresholdError, match="1 of 25 users"):
        recommend.run(job_of(rows, liked | {"limits": {"max_error_share": 0.01}}, k=34))
    job = job_of(rows, liked, k=34, drafter="transitions")
    assert recommend.run(job)["counts"]["errors"] == 1
    row = next(row for row in table(job).to_pylist() if row["user_id"] == "u77")
    assert row["rank"] is None and "fewer than 34 items are left, 3," in row["error"]
    found, taken = lists(job), {item for user, item, *_ in rows if user == "u3"}
    disliked = {item for user, item, rating, _ in rows if (user, rating) == ("u3", 1.0)}
    assert disliked and not set(found["u3"]) & taken
    assert {len(items) for items in found.values()} == {34} and len(found) == 24


@pytest.mark.parametrize("changes", [
    {}, {"temperature": 1.0}, {"temperature": 1.0, "verify": "relaxed"}, {"dtype": "bfloat16"}])
def test_the_drafter_counts_where_results_depend_on_it(make_job, folder, tmp_path, changes):
    """Recommendations that another drafter could change are recomputed; others are kept."""
    small = [str(write(tmp_path / name, seed=seed, width=16)) for name, seed in (("a", 7), ("b", 8))]
    (tmp_path / "moved").mkdir()
    moved = str(shutil.copytree(small[0], tmp_path / "moved" / "a"))
    found = {}
    for drafter in (None, "trie", "popularity", *small, moved):
        job = make_job({"recommend": settings(folder, drafter=drafter, **changes)})
        made_by = {"model": {"sha256": "m"}}
        if place := recommend._drafter(job):
            made_by["drafter"] = {"sha256": files.fingerprint(place)}
        found[drafter] = recommend._fingerprint(job, "input", made_by)
    assert len(set(found.values())) == (5 if changes else 1) and found[moved] == found[small[0]]


def test_invalid_settings_are_rejected(job_of, tmp_path, folder, monkeypatch):
    with monkeypatch.context() as patch:  # before the input is read
        patch.setattr(recommend, "prepare_input", lambda *given: pytest.fail("it was prepared"))
        with pytest.raises(ConfigError, match="recommend.k = 41.*40"):
            recommend.run(job_of(k=41))
    with pytest.raises(ConfigError, match="item ids differ"):
        recommend.run(job_of(drafter=str(write(tmp_path / "other", ids=item_ids(seed=9)))))
    with pytest.raises(ConfigError, match="is not a recommender"):
        (tmp_path / "plain").mkdir()
        recommend.run(job_of(model=str(tmp_path / "plain")))
    with pytest.raises(ModelError, match=r"^recommend\.drafter = '/no/such': .*does not exist; it is one of "
                                         "trie, popularity, transitions, or a small recommender's folder$"):
        recommend.run(job_of(drafter="/no/such"))
    with pytest.raises(ModelError, match="does not exist"):
        recommend.run(job_of(model=str(tmp_path / "none")))
    job = job_of(model=None)
    assert recommend.run(job) == {} and not job.space.candidates().exists()
