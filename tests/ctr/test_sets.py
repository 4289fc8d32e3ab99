"""Sets of texts as a whole: what they must have in common, and what is said where they do not."""

import logging

import pytest
from ctr_tables import kinds, write_features, write_texts

from dare_job.errors import DataError
from dare_job.evaluate.ctr import sets
from dare_job.evaluate.ctr.options import Options
from dare_job.publish.features import encoder_files

DT = "2025-12-31"


def write(out, entities=("user", "item"), size=4, encoder="test 1", **more):
    for entity in entities:
        write_features(out, entity, DT, [f"{entity[0]}1", f"{entity[0]}2"], kinds(2, size), [[0, 1]],
                       encoder=encoder, **more)


def read(folder, *names, equivalent=(), **more):
    given = {name: str(folder / name) for name in names}
    return sets.read(Options("sample", given, equivalent=equivalent, **more))


def test_a_pair_with_texts_of_others_is_refused_and_the_way_out_works(tmp_path):
    write(tmp_path / "strict")
    write(tmp_path / "relaxed", ["user"])
    pair = [("strict", "relaxed")]
    with pytest.raises(DataError, match=r"texts \(strict: user 4 .*, item 4 .*; relaxed: user 4 [^,]*\);"):
        read(tmp_path, "strict", "relaxed", equivalent=pair)
    found = read(tmp_path, "strict", "relaxed", equivalent=pair, entities=["user"])
    assert [[table.entity for table in tables] for tables in found.values()] == [["user"], ["user"]]


def test_sets_of_one_encoder_and_cluster_ids_of_it_are_not_warned_of(tmp_path, job_log):
    for name in ("strict", "relaxed", "clusters"):
        write(tmp_path / name)
    assert len(read(tmp_path, "strict", "relaxed", "clusters", equivalent=[("strict", "relaxed")])) == 3
    assert not job_log


def other_size(folder):
    write(folder / "b", size=6)


def other_encoder(folder):
    write(folder / "b", encoder="test 2")


def other_encoder_of_items(folder):
    write(folder / "b", ["user"])
    write(folder / "b", ["item"], encoder="test 2")


def other_files(folder):
    write(folder / "b", sha256="0123456789abcdef")


@pytest.mark.parametrize("change, said", [
    (other_size, "6 numbers of test 1"), (other_encoder, "4 numbers of test 2"),
    (other_encoder_of_items, "4 numbers of test 2"), (other_files, "4 numbers of test 1 0123456789ab")])
def test_another_size_or_encoder_is_one_warning_and_refused_in_a_pair(tmp_path, job_log, change, said):
    write(tmp_path / "a")
    change(tmp_path)
    read(tmp_path, "a", "b")
    one = "4 numbers of test 1"
    user = one if change == other_encoder_of_items else said
    assert [f"(a: user {one}, item {one}; b: user {user}, item {said})" in line for line in job_log] == [True]
    with pytest.raises(DataError, match="--equivalent a,b: the sets differ in more than their texts"):
        read(tmp_path, "a", "b", equivalent=[("a", "b")])


def test_items_of_another_encoder_within_a_single_set_are_warned_of(tmp_path, job_log):
    other_encoder_of_items(tmp_path)
    read(tmp_path, "b")
    assert len(job_log) == 1 and "not all of one size and encoder" in job_log[0]


def test_encoders_that_changed_places_are_no_pair(tmp_path):
    other_encoder_of_items(tmp_path)
    write(tmp_path / "a", ["user"], encoder="test 2")
    write(tmp_path / "a", ["item"])
    with pytest.raises(DataError, match="a: user 4 numbers of test 2, item 4 numbers of test 1; b: user"):
        read(tmp_path, "a", "b", equivalent=[("a", "b")])


def test_texts_encoded_here_are_compared_with_features_of_the_same_encoder(tmp_path, job_log, caplog):
    """The packaged encoder, really: its files tell that it is the one that made the features."""
    sha256 = encoder_files.fingerprint(encoder_files.resolve("embedded"))
    write(tmp_path / "a", size=384, encoder="by another name", sha256=sha256)
    for entity in ("user", "item"):
        write_texts(tmp_path / "b", entity, DT, [f"{entity[0]}1", f"{entity[0]}2"], ["quiet films", "seas"])
    with caplog.at_level(logging.INFO, "dare_job"):
        found = read(tmp_path, "a", "b", equivalent=[("a", "b")])
    assert not job_log and str(found["b"][0].encoder) == f"embedded {sha256[:12]}"
    assert [line for line in caplog.messages if "encoding" in line] == ["encoding 2 texts with embedded"]
    write(tmp_path / "c", size=384, sha256="f" * 64)
    with pytest.raises(DataError, match=f"of test 1 f{{12}}; b: user 384 numbers of embedded {sha256[:12]}"):
        read(tmp_path, "c", "b", equivalent=[("c", "b")])
