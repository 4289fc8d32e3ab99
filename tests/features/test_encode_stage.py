"""The stage encode on small published dates: tables, what is encoded again, what is refused."""

import hashlib
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from encoders import WORDS, mean_pooled, tiny_bert, without_numbers
from small_texts import manifest, publish, rows, table

from dare_job import pipeline, schemas
from dare_job.config.settings import EncodeSettings, JobConfig
from dare_job.errors import ConfigError, DataError, ModelError
from dare_job.publish.features import build, encode_tasks
from dare_job.publish.features.inputs import PreviousFeatures, refit_reason
from dare_job.publish.features.write import Written
from dare_job.publish.snapshots.clean import clean
from dare_job.stages import encode

pytestmark = [pytest.mark.spark, pytest.mark.slow]
DOCS = Path(__file__).parents[2] / "docs"
DAY, NEXT = "2026-01-02", "2026-01-03"
NONE = {"i1": None}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("bert"))


ENCODE = {"clusters": [4, 3], "batch_size": 4}


def texts(count: int, seed: int = 0) -> dict[str, str]:
    generator = random.Random(seed)
    return {f"u{number:03d}": " ".join(generator.choices(WORDS, k=generator.randint(2, 12))) + f" {number}"
            for number in range(count)}


USERS = texts(43)  # 44 rows have a text
USERS |= {"u043": USERS["u000"], "none": None, "blank": " \n"}


@pytest.fixture(autouse=True)
def small_row_groups(monkeypatch):
    monkeypatch.setattr(build, "ROW_GROUP_ROWS", 8)


@pytest.fixture
def job_of(make_job, bert):
    """Factory: a job of a date that encodes with the tiny BERT; settings of ``encode`` by name."""
    def make(day: str = DAY, **settings):
        return make_job({"encode": {"model": str(bert)} | ENCODE | settings}, day)
    return make


@pytest.fixture(scope="module")
def encoded(job_in, bert, tmp_path_factory):
    """DAY with the features of USERS and of three items, and what the stage returned."""
    job = job_in(tmp_path_factory.mktemp("encoded") / "out", {"encode": {"model": str(bert)} | ENCODE})
    publish(job.space.out, DAY, USERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "ROW_GROUP_ROWS", 8)
        return job, encode.run(job)


@pytest.fixture
def night(encoded, job_of):
    """A copy of it, to go on from."""
    shutil.copytree(encoded[0].space.out, job_of().space.out)
    return job_of()


def test_a_table_has_the_schema_the_order_and_the_row_groups_that_readers_rely_on(encoded, bert):
    job, found = encoded[0], encoded[1]["user"]
    assert found == manifest(job)
    assert found["counts"] == {"rows": 44, "encoded": 44, "reused": 0, "without_text": 2}
    names, folder = sorted(found["files"]), job.space.features("user")
    files = [pq.ParquetFile(folder / name) for name in names]
    assert [file.metadata.row_group(at).num_rows for file in files for at in range(file.num_row_groups)] == [
        8] * 5 + [4]
    name, file = names[0], files[0]
    assert file.schema_arrow.equals(schemas.features(16, 2))
    said = {key.decode(): value.decode() for key, value in file.schema_arrow.metadata.items()}
    assert said["dare_job.schema_version"] == "1" and said["dare_job.dt"] == DAY
    assert said["dare_job.encoder"] == str(bert)
    assert said["dare_job.encoder_sha256"] == found["encoder"]["sha256"]
    assert said["dare_job.codebook_sha256"] == found["codebook"]["sha256"]
    read = table(job)
    assert read["id"].to_pylist() == list(range(1, 45))
    by_name = {row["entity_id"]: row for row in read.to_pylist()}
    assert by_name.keys() == USERS.keys() - {"none", "blank"}
    for user in ("u000", "u017", "u042"):
        np.testing.assert_allclose(by_name[user]["vector"], mean_pooled(bert, USERS[user]), atol=1e-5)
        assert by_name[user]["text_sha256"] == hashlib.sha256(USERS[user].encode()).hexdigest()
    assert all(row["cluster_1"] // 3 == row["cluster_0"] in range(4) for row in by_name.values())
    assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == found["files"][name]["sha256"]
    ids = pq.read_table(job.space.out / "features" / "ids" / "entity=user")
    assert ids["entity_id"].to_pylist() == sorted(by_name) and found["ids"] == 44
    assert found["new_clusters"] == "no previous clusters"
    assert 0 <= found["encoding"]["padding_share"] < 0.5
    assert not (job.space.work / "encode").exists()


def test_who_has_the_same_text_is_encoded_once(encoded):
    assert encoded[1]["user"]["encoding"]["texts"] == 43
    assert rows(encoded[0])["u000"]["vector"] == rows(encoded[0])["u043"]["vector"]


def test_a_second_run_does_nothing_and_takes_no_spark(night, encoded):
    before = {path: path.stat().st_mtime_ns for path in (night.space.out / "features").rglob("*")}
    night.__dict__["spark"] = None
    assert encode.run(night) == encoded[1]
    assert {path: path.stat().st_mtime_ns for path in (night.space.out / "features").rglob("*")} == before


def test_the_next_night_encodes_what_changed_and_keeps_ids_and_clusters(night, job_of):
    after = job_of(NEXT)
    changed = {"u003": "never quiet", "a-new": "old crime films", "u039": None}
    publish(night.space.out, NEXT, {name: text for name, text in USERS.items() if name != "u007"} | changed)
    found = encode.run(after)["user"]
    assert found["counts"] == {"rows": 43, "encoded": 2, "reused": 41, "without_text": 3}
    assert found["encoding"]["texts"] == 2 and found["new_clusters"] is None and found["ids"] == 45
    old, new = rows(night), rows(after)
    same = old.keys() & new.keys() - {"u003"}
    assert len(same) == 41 and all(old[name] == new[name] for name in same)
    assert new["u003"]["id"] == old["u003"]["id"] and new["u003"]["vector"] != old["u003"]["vector"]
    assert new["a-new"]["id"] == 45
    assert table(after)["id"].to_pylist() == sorted(row["id"] for row in new.values())
    drift = found["drift"]
    assert drift["ratio"] == pytest.approx(1, abs=0.3)
    assert found["codebook"] == manifest(night)["codebook"]
    assert (after.space.features("user") / found["codebook"]["file"]).read_bytes() == (
        night.space.features("user") / found["codebook"]["file"]).read_bytes()
    assert encode.run(after)["item"]["encoding"]["texts"] == 0  # no item changed


def test_another_encoder_encodes_all_texts_again_and_keeps_the_ids(night, job_of, tmp_path):
    after = job_of(NEXT, model=str(tiny_bert(tmp_path / "other", seed=3, dim=24)))
    publish(night.space.out, NEXT, USERS | {"a": "war"}, items=NONE)
    found = encode.run(after)["user"]
    assert (found["counts"]["encoded"], found["encoding"]["texts"]) == (45, 44)
    assert found["new_clusters"] == "the encoder changed"
    assert {len(row["vector"]) for row in rows(after).values()} == {24}
    assert {name: row["id"] for name, row in rows(night).items()}.items() <= {
        name: row["id"] for name, row in rows(after).items()}.items()


@pytest.mark.parametrize(("settings", "texts", "why"), [
    ({}, 44, None), ({"refit": True}, 44, "encode.refit"), ({"clusters": [5]}, 44, "encode.clusters changed"),
    ({}, 3, "the previous clusters were fitted to too few texts"), ({}, 2, None)])
def test_why_clusters_are_fitted_again(settings, texts, why):
    """Clusters of 44 texts, or of two for ``texts`` of now."""
    asked = EncodeSettings(**ENCODE | settings)
    encoder = {"sha256": "e", "window": None}
    fitted = {"sizes": [4, 3], "texts": 44 if texts == 44 else 2}
    before = PreviousFeatures(DAY, Path(), {"encoder": encoder, "codebook": fitted})
    assert refit_reason(before, encoder, asked, texts) == why
    for nothing in (None, replace(before, manifest={"encoder": encoder, "codebook": None})):
        assert refit_reason(nothing, encoder, asked, texts) == (
            "encode.refit" if asked.refit else "no previous clusters")


def test_clusters_of_too_few_texts_are_fitted_again_once_there_are_more(job_of, job_log):
    publish(job_of().space.out, DAY, texts(3), items=NONE)
    encode.run(job_of())
    assert any("3 texts of users are fewer than 4 clusters" in said for said in job_log)
    assert len({row["cluster_1"] for row in rows(job_of()).values()}) == 3
    publish(job_of().space.out, NEXT, texts(30), items=NONE)
    reason = encode.run(job_of(NEXT))["user"]["new_clusters"]
    assert reason == "the previous clusters were fitted to too few texts"


@pytest.mark.parametrize(("distance", "ratio", "told"), [(50.0, 1.25, False), (52.0, 1.3, True)])
def test_clusters_that_no_longer_fit_are_told(make_job, job_log, distance, ratio, told):
    """Ten vectors, at 4.0 from their clusters on average when these were fitted."""
    book, drift = build._drift({"error": 4.0, "fitted": DAY}, Written(rows=10, distance=distance))
    assert book["error"] == 4.0 and drift == {
        "error": distance / 10, "ratio": pytest.approx(ratio)}
    encode._warn(make_job(day=NEXT), "user", {"codebook": book, "drift": drift})
    assert len(job_log) == told
    assert all("1.30 times as far from their clusters as on 2026-01-02" in said
               and "encode.refit=true" in said for said in job_log)


def test_a_failed_night_keeps_the_vectors_that_it_finished(job_of, monkeypatch):
    """It fails where texts change while they are encoded, and on a full disk.

    In the end its table is cut into files of whole row groups.
    """
    monkeypatch.setattr(build, "ROW_GROUP_ROWS", 2)
    job, whole = job_of(clusters=[]), encode_tasks.encode
    publish(job.space.out, DAY, texts(37), items=NONE)

    def full(*_):
        raise OSError(28, "full")

    with monkeypatch.context() as patch:
        patch.setattr(encode_tasks, "encode", lambda job, task, texts, rows, folder: whole(
            job, task, texts.where("text_sha256 < '8'"), rows, folder))
        with pytest.raises(DataError, match=r"\d of 37 texts have a vector, because 2026-01-02 was publ"):
            encode.run(job)
    with monkeypatch.context() as patch:
        patch.setattr("dare_job.publish.features.write.write", full)
        with pytest.raises(OSError, match="full"):
            encode.run(job)
    assert not list((job.space.out / "features").glob("entity=*/*"))
    found = encode.run(job)["user"]  # two slots, four tasks each
    assert found["encoding"]["texts"] == 0 and found["counts"] == {
        "rows": 37, "encoded": 37, "reused": 0, "without_text": 0}
    sizes = [file["rows"] for _, file in sorted(found["files"].items())]
    assert sum(sizes) == 37 and set(sizes[:-1]) == {4} and sizes[-1] == 1
    assert table(job)["id"].to_pylist() == list(range(1, 38))
    assert not [name for name in table(job).column_names if name.startswith("cluster")]


def test_texts_that_cannot_be_encoded_are_refused_by_name(job_of):
    job = job_of()
    with pytest.raises(DataError, match="2026-01-02 is not published in .*run `dare-job run --from publish "
                                        "--date 2026-01-02`"):
        encode.run(job)
    publish(job.space.out, DAY, texts(4), date="2026-01-01", items=NONE)
    with pytest.raises(DataError, match="entity=user/dt=2026-01-02 contains texts of 2026-01-01"):
        encode.run(job)
    publish(job.space.out, DAY, [("a", "war"), ("b", "love"), ("a", None), ("b", "space")], items=NONE)
    with pytest.raises(DataError, match="contains user 'a', 'b' more than once: publish 2026-01-02 again"):
        encode.run(job)
    assert not list((job.space.out / "features").glob("entity=*/*"))
    publish(job.space.out, DAY, {"a": None})
    assert set(encode.run(job)) == {"item"}  # no user has a text


@pytest.mark.release  # its Python worker ends, and the next one imports all again
def test_an_encoder_that_gives_no_numbers_ends_the_stage(job_of, tmp_path):
    broken = tiny_bert(tmp_path / "broken")
    without_numbers(broken, "war")
    job = job_of(model=str(broken))
    publish(job.space.out, DAY, {"a": "old films", "b": "war films"}, items=NONE)
    with pytest.raises(ModelError, match="broken returns NaN or Inf for the text 'war films'") as found:
        encode.run(job)
    assert found.value.exit_code == 6 and not list((job.space.out / "features").glob("entity=*/*"))


def test_damage_of_what_the_next_night_needs_is_named(night, job_of):
    publish(night.space.out, NEXT, USERS | {"new": "war"}, items=NONE)
    folder = night.space.features("user")
    book = folder / manifest(night)["codebook"]["file"]
    whole = book.read_bytes()
    book.write_bytes(whole[:-8] + b"damaged!")
    with pytest.raises(DataError, match=f"{book} is damaged .*encode.refit=true"):
        encode.run(job_of(NEXT))
    book.write_bytes(whole)
    ids = night.space.out / "features" / "ids" / "entity=user" / "ids.parquet"
    pq.write_table(pq.read_table(ids)[:5], ids)
    with pytest.raises(DataError, match="ids.parquet contains 5 of 44 entities that have an id"):
        encode.run(job_of(NEXT))
    assert not list(folder.parent.glob(".*"))  # nothing unfinished is left


@pytest.mark.parametrize(("settings", "damage", "name"), [
    # its Python worker ends, and the next one imports all again
    pytest.param({}, float("nan"), "'u003'", marks=pytest.mark.slow, id="reused"),
    pytest.param({"refit": True}, None, "'[0-9a-f]{64}'", id="clustered")])
def test_a_damaged_vector_of_before_is_named_with_its_folder(night, job_of, settings, damage, name):
    publish(night.space.out, NEXT, USERS, items=NONE)
    folder = night.space.features("user")
    file = sorted(folder.glob("part-*.parquet"))[0]
    read = pq.read_table(file)
    lists = [damage and [damage] * 16 if name == "u003" else vector for name, vector in zip(
        read["entity_id"].to_pylist(), read["vector"].to_pylist(), strict=True)]
    pq.write_table(read.set_column(2, "vector", pa.array(lists, pa.list_(pa.float32()))), file)
    with pytest.raises(DataError, match=f"{folder}: the vector of {name} is missing.*: restore that folder"):
        encode.run(job_of(NEXT, **settings))
    assert not list(folder.parent.glob(f"*{NEXT}*"))


def test_clean_removes_old_features_and_keeps_the_newest_and_the_ids(night, job_of):
    """The next features start from these; clusters of other sizes take no encoding."""
    out, days = night.space.out, [f"2026-01-0{number}" for number in range(2, 7)]
    for day in days[1:]:
        publish(out, day, USERS, items=NONE)
    shutil.rmtree(out / "features" / "entity=item")
    for day in days[1:3]:
        shutil.copytree(night.space.features("user"), night.space.features("user", day))
    found = clean(out, 1)
    assert [entry["date"] for entry in found["removed"]] == days[:2]
    (kept,) = [entry for entry in found["kept"] if entry["date"] == days[2]]
    assert kept["reason"].startswith("its features of users are the newest")
    assert {path.name for path in out.glob("features/entity=*/*")} == {f"dt={days[2]}"}
    assert (out / "features" / "ids" / "entity=user" / "ids.parquet").exists()
    again = encode.run(job_of(days[4], clusters=[5]))["user"]
    assert again["new_clusters"] == "encode.clusters changed"
    assert (again["encoding"]["texts"], again["counts"]["reused"]) == (0, 44)
    assert [entry["date"] for entry in clean(out, 1)["removed"]] == [days[2]]


def test_without_an_encoder_the_stage_says_so_and_does_nothing(make_job, capsys):
    job = make_job({})
    job.__dict__["spark"] = None
    assert pipeline.run_stage(job, "encode") == {}
    assert "no features (encode.model is not set)" in capsys.readouterr().err
    assert not (job.space.out / "features").exists()


def test_settings_of_clusters_are_checked(make_job):
    assert EncodeSettings(clusters=[]).clusters == [] and JobConfig().encode.model is None
    with pytest.raises(ValueError, match="do not fit into 32 bits"):
        EncodeSettings(clusters=[65536, 65536])


def test_an_executor_without_the_extra_is_told(job_of, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    job = job_of()
    publish(job.space.out, DAY, texts(2), items=NONE)
    with pytest.raises(ConfigError, match="sentence_transformers: run `make install EXTRAS=encode`"):
        encode.run(job)


def test_the_examples_of_the_documents_read_what_the_stage_leaves(encoded):
    """docs/how-to/features.md: the join by id; read-the-output.md: torch-rechub's reader of the table."""
    job = encoded[0]
    join, stream = (re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)[at]
                    for page, at in (("how-to/features.md", 0), ("how-to/read-the-output.md", 2)))
    names = {"rows": pd.DataFrame({"user_id": ["u032", "nobody", "u000", "u032"]})}
    exec(join.replace("OUT/", f"{job.space.out}/"), names)  # noqa: S102  ours
    assert names["rows"]["user"].tolist() == [33, 0, 1, 33]
    known = rows(job)
    found = names["features"].set_index("id")["cluster_1"].to_dict()
    assert found == {row["id"]: row["cluster_1"] for row in known.values()}
    here = f'"{job.space.features("user")}"'
    exec(stream.replace('"out/demo/features/entity=item/dt=2026-01-02"', here), names)  # noqa: S102
    assert names["table"].shape == (45, 16) and not names["table"][0].any()
    assert names["table"][1:].tolist() == table(job)["vector"].to_pylist()
    assert names["table"][33].tolist() == known["u032"]["vector"]
