"""How well priorities rank texts that really change: real histories, cut after each active day of a user.

Texts are those of ``sample_world.daily.profile_of_values``, a stand-in by rules for an LLM, from the titles
and first attribute of the last items. CTR scores are not compared: that needs labels after each day.
"""

import numpy as np
import pandas as pd

from dare_job.data.sample_world.daily import profile_of_values
from dare_job.errors import DataError
from dare_job.evaluate.ctr import source
from dare_job.evaluate.refresh import learn
from dare_job.evaluate.refresh.learn import Moved
from dare_job.evaluate.refresh.nights import distances, encoded, item_vectors, kinds
from dare_job.refresh.learned import Coefficients
from dare_job.refresh.value import RECENCY, new_share

_DAY_S = 86_400
_SHOWN = 20  # interactions that a text knows
_MAX_CHANGES = 10  # of a user: the last active days


def run(data: str, encoder: str, coefficients: Coefficients, seed: int) -> dict:
    """Rank the changes of texts between active days by each priority.

    Raises
    ------
    DataError
        The data cannot be read, or no user has two active days.
    """
    read = source.load(data, min_rating=None)
    moved = changes(read.interactions, read.items, encoder, seed)
    users = read.interactions["user_id"].nunique()
    return {"users": users, "users_with_changes": len(np.unique(moved.user)), "changes": len(moved.user),
            "rankings": {name: each["text"] for name, each in learn.rankings(moved, coefficients).items()}}


def changes(interactions: pd.DataFrame, items: pd.DataFrame, encoder: str, seed: int) -> Moved:
    """The change of a user's text from one active day to the next, for the last active days of each user.

    All changes are ranked together (``night`` is 0), because few users are active on one day.

    Raises
    ------
    DataError
        No user has two active days.
    """
    titled = items[items["title"].fillna("").str.strip() != ""]
    rows = interactions[interactions["item_id"].isin(titled["item_id"])].sort_values(
        ["user_id", "timestamp", "item_id"])
    user, users = pd.factorize(rows["user_id"])
    item = pd.Index(titled["item_id"]).get_indexer(rows["item_id"])
    titles = titled["title"].to_numpy()
    values = np.array([_value(row) for row in titled["attributes"]], object)
    vectors = kinds([dict(row) if row is not None else {} for row in titled["attributes"]])
    if not vectors.any():
        vectors = item_vectors(user, item, len(users), len(titled), seed)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
    day = rows["timestamp"].to_numpy() // _DAY_S
    ends = np.flatnonzero(np.r_[(user[1:] != user[:-1]) | (day[1:] != day[:-1]), True]) + 1  # of active days
    starts = np.searchsorted(user, np.arange(len(users)))
    owner = user[ends - 1]
    pairs = [(then, now) for then, now, same, left in zip(
        ends[:-1], ends[1:], owner[1:] == owner[:-1], _left(owner)[1:], strict=True)
        if same and left <= _MAX_CHANGES]
    if not pairs:
        raise DataError("--input: no user has interactions with titled items on two days, so no text changes")
    then, now = np.array(pairs).T
    places = {end: np.arange(max(starts[user[end - 1]], end - _SHOWN), end)[::-1] for end in {*then, *now}}
    order = {end: place for place, end in enumerate(places)}
    text = encoded([profile_of_values(titles[item[at]], values[item[at]]) for at in places.values()], encoder)
    weights = RECENCY ** np.arange(_SHOWN)
    taste = np.stack([weights[: len(at)] @ vectors[item[at]] for at in places.values()])
    taste /= np.linalg.norm(taste, axis=1, keepdims=True).clip(1e-12)
    first, second = (np.array([order[end] for end in part]) for part in (then, now))
    shown = np.array([len(places[end]) for end in now])
    known = {"missed": (now - then).astype(float),
             "new": new_share(np.minimum(now - then, shown).astype(float), shown.astype(float)),
             "distance": distances(taste, first, second).clip(0, 1),
             "age_days": (day[now - 1] - day[then - 1]).astype(float), "no_text": np.zeros(len(now))}
    return Moved(np.zeros(len(now), int), user[now - 1], known, distances(text, first, second),
                 np.full(len(now), np.nan))


def _left(owner: np.ndarray) -> np.ndarray:
    """(n,) how many entries of the same owner follow each entry, itself included; owners are ascending."""
    return np.searchsorted(owner, owner, "right") - np.arange(len(owner))


def _value(attributes) -> str:
    """The value of an item's first attribute; empty without one."""
    return next((value for _, value in attributes if value), "") if attributes is not None else ""
