"""Text that may tell a label is refused, and it is shown that it would have told it."""

from dataclasses import replace
from datetime import UTC, date, datetime

import numpy as np
import pytest
from ctr_tables import DAY_S, FIRST, kinds, made, source, write_features, write_texts
from prompted import prompted, rated, texts

from dare_job.data.history import window_size
from dare_job.errors import DataError
from dare_job.evaluate.ctr import examples, knowledge, leakage
from dare_job.evaluate.ctr.inputs import BASE, Inputs, join
from dare_job.evaluate.ctr.models import Ctr
from dare_job.evaluate.ctr.train import TrainSettings, fit


def test_text_of_the_day_before_is_safe_and_of_the_labels_own_day_is_refused():
    found, ids = made(labels_from=FIRST + 10 * DAY_S), [f"u{u}" for u in range(60)]
    first = datetime.fromtimestamp(FIRST + 10 * DAY_S, UTC).date()  # 2026-01-11
    safe = texts("user", ids, kinds(60), date(2026, 1, 10))
    leakage.refuse("strict", safe, found)
    leaking = texts("user", ids, kinds(60), first)
    with pytest.raises(DataError, match=r"strict: \d+ of 1[45]\d\d label rows would use a user's text .*"
                                        r"label of 2026-01-11.*--labels-from 2026-01-12"):
        leakage.refuse("strict", leaking, found)


def test_one_leaking_text_among_all_is_caught_and_named():
    found, ids = made(labels_from=FIRST + 10 * DAY_S), [f"u{u}" for u in range(60)]
    days = [date(2026, 1, 10)] * 60
    days[17] = date(2026, 1, 20)
    table = texts("user", ids, kinds(60), days)
    with pytest.raises(DataError, match=r"u17 \(generated from interactions before 2026-01-21 00:00:00, la"):
        leakage.refuse("strict", table, found)


def test_a_late_text_that_no_label_row_uses_and_item_texts_are_no_leak():
    found = made(labels_from=FIRST + 10 * DAY_S)
    leaks = {}
    for entity, name in (("user", "stranger"), ("item", "i1"), ("user", "u1")):
        table = texts(entity, [name], kinds(1), date(2026, 1, 30))
        try:
            leakage.refuse("strict", table, found)
        except DataError as error:
            leaks[name] = str(error)
    assert leaks.keys() == {"u1"} and "would use a user's text" in leaks["u1"]


def test_labels_begin_after_the_newest_users_text():
    tables = [texts("user", ["u1", "u2"], kinds(2), [date(2026, 1, 3), date(2026, 1, 5)]),
              texts("item", ["i1"], kinds(1), date(2026, 1, 9))]
    assert leakage.first_labels(tables) == leakage.first_second(date(2026, 1, 6))
    assert leakage.first_labels(tables[1:]) is None


@pytest.mark.slow
def test_a_planted_leak_would_raise_auc():
    """Labels without any rule, and vectors written from the labels to come: what the guard keeps out."""
    found, liked = planted()
    table = texts("user", list(found.users.ids), liked, date(2026, 1, 20))
    with pytest.raises(DataError, match="may contain the label"):
        leakage.refuse("strict", table, found)
    sets = {"base": Inputs(BASE), "leak": join("leak", [table], found)}
    settings = TrainSettings(epochs=12, batch_size=64, learning_rate=3e-3, patience=12)
    auc = {name: fit(Ctr("dcnv2", found, inputs, 0), found, inputs, 0, settings).auc
           for name, inputs in sets.items()}
    assert auc["base"] < 0.58 and auc["leak"] > auc["base"] + 0.1


def test_vectors_of_later_texts_do_not_pass_as_those_of_older_ones(tmp_path):
    """Features made from the labels to come, beside texts of which each was written before its labels."""
    found, liked = planted()
    ids, old = list(found.users.ids), [f"likes {user}" for user in found.users.ids]
    write_texts(tmp_path, "user", "2026-01-10", ids, old)
    write_features(tmp_path, "user", "2026-01-10", ids, liked, texts=[f"{text}, and more" for text in old])
    with pytest.raises(DataError, match="150 of 150 features do not belong to the published texts"):
        knowledge.read(tmp_path, None, ["user"], False, None)
    write_features(tmp_path, "user", "2026-01-10", ids, kinds(150), texts=old)
    (table,) = knowledge.read(tmp_path, None, ["user"], False, None)
    leakage.refuse("strict", table, found)


def planted() -> tuple[examples.Examples, np.ndarray]:
    """Labels without any rule, and vectors (150, 40) that hold them."""
    data = source(users=150, rows=4000, seed=5)
    rng = np.random.default_rng(0)
    data.interactions["label"] = (rng.random(len(data.interactions)) < 0.5).astype(np.float32)
    found = examples.make(data, FIRST + 10 * DAY_S, 5)
    liked = np.zeros((len(found.users.ids), 40), np.float32)
    np.add.at(liked, (found.user - 1, found.item - 1), 2 * found.label - 1)
    return found, liked


@pytest.mark.parametrize("window", ["recent", "old"])
def test_a_prompt_that_the_data_gives_again_proves_which_interactions_the_text_has_seen(window):
    """With ``old`` a text of the last day is safe for what its user did after the window."""
    data = rated()
    table = prompted(data, window, date(2026, 1, 30))
    bounded = leakage.bounded(table, data)
    for user, second in zip(bounded.ids, bounded.usable_from, strict=True):
        seconds = sorted(data.interactions.loc[data.interactions["user_id"] == user, "timestamp"])
        last = len(seconds) if window == "recent" else window_size(len(seconds), 0.7)
        assert second == seconds[last - 1] + 1
    since = leakage.first_labels([bounded])
    assert since == bounded.usable_from.max() if window == "recent" else since["u3"] == bounded.usable_from[3]
    if window == "old":
        found = examples.make(data, since, 5)
        leakage.refuse("strict", bounded, found)
        assert len(found.label) == pytest.approx(0.3 * 3000, rel=0.1)


def test_a_prompt_of_other_interactions_proves_nothing():
    """An interaction less in the data, or another window than the prompt's: the text's date counts."""
    data = rated()
    table = prompted(data, "old", date(2026, 1, 30))
    of_one = data.interactions.index[data.interactions["user_id"] == "u5"]
    shown = of_one[window_size(len(of_one), 0.7) - 1]  # the prompt's last title
    fewer = replace(data, interactions=data.interactions.drop(index=shown))
    end = table.usable_from[0]
    found = leakage.bounded(table, fewer)
    assert found.usable_from[5] == end and (np.delete(found.usable_from, 5) < end).all()
    lying = replace(table, settings={**table.settings, "history": {"window": "recent", "max_items": 5}})
    found = leakage.bounded(lying, data)
    assert (found.usable_from == end).mean() > 0.9
