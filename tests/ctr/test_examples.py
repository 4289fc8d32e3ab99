"""Label rows: histories strictly before the label, attributes as codes, parts by time."""

import numpy as np
import pandas as pd
import pytest
from ctr_tables import DAY_S, FIRST, made, source

from dare_job.errors import DataError
from dare_job.evaluate.ctr import examples
from dare_job.evaluate.ctr.source import Source


def test_histories_are_those_of_a_plain_loop():
    found, rows = made(rows=600, labels_from=FIRST + 5 * DAY_S), source(rows=600).interactions
    clicks = rows[rows["label"] > 0]
    for place in range(0, len(found.label), 7):
        user = found.users.ids[found.user[place] - 1]
        before = clicks[(clicks["user_id"] == user) & (clicks["timestamp"] < found.second[place])]
        expected = [int(found.items.ids.get_loc(item)) + 1 for item in before["item_id"]][-5:]
        assert found.history[place].tolist() == [0] * (5 - len(expected)) + expected


def test_a_click_of_the_same_second_is_not_history():
    rows = pd.DataFrame({"user_id": "u", "item_id": list("abcdefghij"), "label": [1.0, 0.0] * 5,
                         "timestamp": [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]})
    found = examples.make(Source(rows.assign(split=["train"] * 6 + ["valid"] * 2 + ["test"] * 2),
                                 rows[["user_id"]].assign(attributes=None),
                                 rows[["item_id"]].assign(title=None, attributes=None)), None, 3)
    assert found.history[:4].tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 1], [0, 0, 1]]


def test_parts_follow_each_other_in_time_and_earlier_rows_are_history_only():
    found = made(labels_from=FIRST + 10 * DAY_S)
    parts = [found.second[rows] for rows in found.rows.values()]
    assert parts[0].max() < parts[1].min() and parts[1].max() < parts[2].min()
    assert found.second.min() >= FIRST + 10 * DAY_S
    assert (found.history[found.rows["train"][:50]] > 0).any()
    shares = [len(part) / len(found.label) for part in parts]
    assert shares == pytest.approx([0.7, 0.1, 0.2], abs=0.02)


def test_without_a_first_day_the_later_half_are_labels():
    found = made()
    assert len(found.label) == pytest.approx(1500, abs=2)


def test_attributes_are_codes_from_1_and_titles_are_none():
    found = made()
    assert list(found.items.attributes) == ["genre"] and not found.users.attributes
    codes = found.items.attributes["genre"]
    assert codes[0] == 0 and set(codes[1:]) == {1, 2, 3}


def test_an_entity_of_the_table_alone_has_an_id_and_missing_values_the_code_0():
    data = source()
    items = pd.concat([data.items, pd.DataFrame({"item_id": ["zz"], "title": ["Z"], "attributes": [None]})])
    found = examples.make(Source(data.interactions, data.users, items), None, 5)
    place = found.items.ids.get_loc("zz") + 1
    assert len(found.items.ids) == 41 and found.items.attributes["genre"][place] == 0


def test_a_part_with_one_label_only_is_named():
    data = source()
    data.interactions["label"] = np.float32(1)
    with pytest.raises(DataError, match=r"the train part has \d+ rows, \d+ of them clicks; AUC needs both"):
        examples.make(data, None, 5)
    with pytest.raises(DataError, match="the train part has 0 rows"):
        made(labels_from=FIRST + 99 * DAY_S)
