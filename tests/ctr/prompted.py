"""Texts of a date made by hand, with hashes of prompts that are written in plain Python."""

import hashlib
from dataclasses import replace
from datetime import date

import numpy as np
from ctr_tables import DAY_S, kinds, source

from dare_job import prompts
from dare_job.data.history import window_size
from dare_job.evaluate.ctr import leakage
from dare_job.evaluate.ctr.knowledge import Knowledge
from dare_job.prompts.sets import HistoryItem


def texts(entity: str, ids: list[str], vectors: np.ndarray, day: date | list[date]) -> Knowledge:
    days = day if isinstance(day, list) else [day] * len(ids)
    ends = [leakage.first_second(when) + DAY_S for when in days]
    return Knowledge(entity, "2026-01-10", ids, vectors, None, np.array(ends, np.int64), 0)


def rated():
    """Interactions with ratings, titles and users with attributes, as the job reads them."""
    data = source()
    rating = np.where(data.interactions["label"] > 0, 4.5, 2.0).astype(np.float32)
    people = data.users.assign(attributes=[[("age", "25-34"), ("gender", "female")]] * len(data.users))
    return replace(data, interactions=data.interactions.assign(rating=rating), users=people)


def prompted(data, window: str, day: date) -> Knowledge:
    """Texts with the hashes of prompts that are written here in plain Python, not by the code under test."""
    titles = dict(zip(data.items["item_id"], data.items["title"], strict=True))
    known, ids, hashes = prompts.load(prompts.SAMPLE), [f"u{u}" for u in range(60)], {}
    for user in ids:
        rows = data.interactions[data.interactions["user_id"] == user].sort_values(["timestamp", "item_id"])
        seen = [HistoryItem(titles[item], rating) for item, rating in
                zip(rows["item_id"], rows["rating"], strict=True)]
        seen = seen if window == "recent" else seen[:window_size(len(seen), 0.7)]
        prompt = known.user({"age": "25-34", "gender": "female"}, seen[-5:])
        hashes[user] = hashlib.sha256(prompt.encode()).hexdigest()
    settings = {"history": {"window": window, "share": 0.7, "max_items": 5},
                "prompts": {"user": prompts.SAMPLE}}
    return replace(texts("user", ids, kinds(60), day), prompts=hashes, settings=settings)
