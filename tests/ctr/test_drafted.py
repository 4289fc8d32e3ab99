"""Relaxed text also rests on its drafts: where these may have seen more than the prompt, its date counts."""

import json
import logging
from dataclasses import replace
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ctr_tables import kinds, write_features, write_texts
from prompted import prompted, rated

from dare_job.errors import DataError
from dare_job.evaluate.ctr import examples, knowledge, leakage
from dare_job.evaluate.ctr import knowledge as ctr_knowledge
from dare_job.workspace import MANIFEST

DT = "2026-01-30"  # behind all data
OLD = "out/knowledge/entity=user/dt=2026-01-29"


@pytest.mark.parametrize("manifest, columns, drafted", [
    ({"previous": OLD}, {"relaxed_tokens": [0, 3, None]}, {"b", "c"}),
    ({"previous": OLD}, {"relaxed_tokens": [0, 0, 0]}, set()),
    ({"previous": OLD}, {}, {"a", "b", "c"}),
    ({"previous": None}, {"relaxed_tokens": [0, 3, None]}, set()),
    ({}, {"relaxed_tokens": [0, 3, 0]}, {"b"})],
    ids=["old text", "strict", "no counts", "first night", "nothing said"])
def test_relaxed_texts_are_drafted_unless_there_was_no_old_text(manifest, columns, drafted):
    assert ctr_knowledge.drafted(pa.table({"entity_id": ["a", "b", "c"], **columns}), manifest) == drafted


@pytest.fixture
def published(tmp_path):
    """Factory: texts of window ``old`` as a run publishes them, u3's and u5's with relaxed tokens."""
    data = rated()
    known = prompted(data, "old", date.fromisoformat(DT))

    def write(name: str, previous: str | None, features: bool = False, relaxed=("u3", "u5")):
        words = [f"likes {user}" for user in known.ids]
        folder = write_texts(tmp_path / name, "user", DT, known.ids, words)
        table = pq.read_table(folder / "part-0.parquet")
        table = table.append_column("prompt_sha256", pa.array([known.prompts[user] for user in known.ids]))
        counts = [int(user in relaxed) for user in known.ids]
        pq.write_table(table.append_column("relaxed_tokens", pa.array(counts, pa.int32())),
                       folder / "part-0.parquet")
        (folder / MANIFEST).write_text(json.dumps(
            {"settings": known.settings, "previous": previous, "files": {"part-0.parquet": {}}}))
        if features:
            write_features(tmp_path / name, "user", DT, known.ids, kinds(60), texts=words)
        (table,) = knowledge.read(tmp_path / name, None, ["user"], False,
                                  lambda texts: (kinds(len(texts)), None))
        return leakage.bounded(table, data)
    return data, write


@pytest.mark.parametrize("features", [False, True])
def test_after_a_night_before_relaxed_texts_count_by_their_date(published, caplog, features):
    _, write = published
    with caplog.at_level(logging.INFO, "dare_job"):
        found = write("relaxed", OLD, features)
    end = leakage.first_second(date(2026, 1, 31))
    assert [user for user, second in zip(found.ids, found.usable_from, strict=True) if second == end] == [
        "u3", "u5"]
    assert "the prompts of 58 of 60 users were reproduced from the interactions" in caplog.text
    assert ("WARNING", "2 users' texts have relaxed tokens from drafts of previous texts, so they may depend "
            "on all interactions before their run; every set uses only later labels of these users") in [
                (line.levelname, line.getMessage()) for line in caplog.records]


def test_on_a_first_night_the_prompt_proves_them(published):
    _, write = published
    relaxed, strict = write("relaxed", None), write("strict", OLD, relaxed=())
    assert np.array_equal(relaxed.usable_from, strict.usable_from)
    assert (relaxed.usable_from < leakage.first_second(date(2026, 1, 30))).all()


def test_labels_that_old_text_may_have_told_are_refused_or_left_out(published):
    """The night before saw all of u3's history: its labels begin behind the date, in all sets alike."""
    data, write = published
    strict, relaxed = write("strict", OLD, relaxed=()), write("relaxed", OLD)
    found = examples.make(data, leakage.first_labels([strict]), 5)
    leakage.refuse("strict", strict, found)
    with pytest.raises(DataError, match=r"relaxed: \d+ of \d+ label rows .* u[35] \(generated from"):
        leakage.refuse("relaxed", relaxed, found)
    fewer = examples.make(data, leakage.first_labels([strict, relaxed]), 5)
    for name, table in (("strict", strict), ("relaxed", relaxed)):
        leakage.refuse(name, table, fewer)
    users = [{made.users.ids[user - 1] for user in made.user} for made in (found, fewer)]
    assert users[0] - users[1] == {"u3", "u5"}


def test_what_the_data_lacks_is_not_counted(published, caplog):
    data, write = published
    table = replace(prompted(data, "old", date.fromisoformat(DT)), drafted=frozenset({"u3", "gone"}))
    with caplog.at_level(logging.INFO, "dare_job"):
        leakage.bounded(table, data)
    assert "1 users' texts have relaxed tokens" in caplog.text
