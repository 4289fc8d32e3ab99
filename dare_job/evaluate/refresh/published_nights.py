"""Learns what a new text is worth from the published dates of a job: texts that were written again.

How far CTR scores moved is not known there, so coefficients are learned from how far texts moved.
"""

import logging
from datetime import date

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

from dare_job import prompts
from dare_job.errors import DataError
from dare_job.evaluate.refresh import learn
from dare_job.evaluate.refresh.learn import Moved
from dare_job.evaluate.refresh.nights import distances, encoded
from dare_job.refresh.learned import Coefficients
from dare_job.refresh.value import new_share
from dare_job.storage import paths
from dare_job.storage.paths import AnyPath
from dare_job.tables import published
from dare_job.workspace import Workspace

_LOG = logging.getLogger("dare_job")
MAX_ROWS = 20_000  # rows that are compared
HELD_OUT = 0.3  # share of the nights, the last ones
_COLUMNS = ["entity_id", "generated_dt", "prompt_set"]


def run(out: str, encoder: str, seed: int) -> tuple[Coefficients, dict]:
    """Learn from the first nights, and rank the rows of the last ones by each priority.

    Returns
    -------
    coefficients, report
        Coefficients, and ``rows, held_out_rows, nights, rankings`` (by how far texts moved).

    Raises
    ------
    DataError
        Fewer than three dates are published, or users got new texts on fewer than two of them.
    """
    rows = rewritten(out, seed)
    if (nights := rows["night"].nunique()) < 2:
        raise DataError(f"--nights {out}: on {nights} published dates users got a new text in place of an "
                        "older one; learning needs at least two such dates")
    rows = _with_distances(rows)
    moved = _moved(rows, encoder)
    nights = np.unique(moved.night)
    last = nights[-max(1, round(HELD_OUT * len(nights))):]
    held_out = np.isin(moved.night, last)
    coefficients = learn.coefficients(moved.part(~held_out))
    rankings = {name: each["text"]
                for name, each in learn.rankings(moved.part(held_out), coefficients).items()}
    return coefficients, {"nights": len(nights), "rows": int((~held_out).sum()),
                          "held_out_rows": int(held_out.sum()), "coefficients": vars(coefficients),
                          "rankings": rankings}


def _with_distances(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows whose distance is known, if they are of two nights at least; else all, with distance 0."""
    known = rows[rows["distance"].notna()]
    if known["night"].nunique() > 1:
        return known
    _LOG.warning("how far histories moved is not known on two dates: runs measure it under a budget with "
                 "refresh.priority = value; coefficients are learned without it")
    return rows.assign(distance=0.0)


def rewritten(out: str, seed: int = 0) -> pd.DataFrame:
    """Users that got a new text in place of an older one, of all published dates: MAX_ROWS of them at random.

    Of a date whose run was limited by the settings ``refresh``, only the seeded sample: the others were
    chosen for their value, so they would say nothing about rows of low value. Of a date on which model or
    settings changed, none, and no row whose prompt set changed.

    Returns
    -------
    night : int64
        Number of the published date, from 0.
    entity_id, missed, shown, age_days, distance, before, after
        New interactions, interactions that the prompt shows, age of the text before in days, how far the
        item vectors of the history moved (NaN if that is not known), and both texts.

    Raises
    ------
    DataError
        Fewer than three dates are published.
    """
    space = Workspace(paths.path(out, "--nights"), date.today())
    dates = space.published_dates()
    if len(dates) < 3:
        raise DataError(f"--nights {out}: {len(dates)} published dates; learning needs at least three")
    pairs = [[space.knowledge("user", dt) for dt in pair] for pair in zip(dates, dates[1:], strict=False)]
    parts = [_of_night(seed, night, *folders) for night, folders in enumerate(pairs)]
    rows = pd.concat(parts, ignore_index=True)
    rows = rows.sample(min(len(rows), MAX_ROWS), random_state=seed).sort_values(["night", "entity_id"])
    return pd.concat([_with_texts(part, *pairs[night]) for night, part in rows.groupby("night")] or [rows])


def _with_texts(rows: pd.DataFrame, *folders: AnyPath) -> pd.DataFrame:
    ids = rows["entity_id"].tolist()
    texts = [published.rows_by_id(folder, ids, ["entity_id", "knowledge"]) for folder in folders]
    return rows.assign(**{name: [by_id[id_]["knowledge"] for id_ in ids]
                          for name, by_id in zip(("before", "after"), texts, strict=True)})


def _of_night(seed: int, number: int, *folders: AnyPath) -> pd.DataFrame:
    """``rewritten`` of two dates that follow each other, without the texts; empty if the writer changed."""
    before, after = (folder.name.removeprefix("dt=") for folder in folders)
    manifests = [published.read_manifest(folder) for folder in folders]
    has_text = ds.field("knowledge").is_valid()
    new = has_text & (ds.field("generated_dt") == after) & ds.field("new_interactions").is_valid()
    if (manifests[1].get("refresh") or {}).get("curve") is not None:
        new = new & ds.field("sampled")
    if manifests[0].get("text_settings") != manifests[1].get("text_settings"):
        new = new & ds.scalar(False)
    now = published.dataset(folders[1]).to_table(filter=new, columns=[
        *_COLUMNS, "text_interactions", "new_interactions", "distance"]).to_pandas()
    now = now.sample(min(len(now), MAX_ROWS), random_state=seed)
    same = has_text & ds.field("entity_id").isin(pa.array(now["entity_id"], pa.string()))
    then = published.dataset(folders[0]).to_table(columns=_COLUMNS, filter=same).to_pandas()
    rows = now.merge(then, on=["entity_id", "prompt_set"], suffixes=("", "_before"))
    days = pd.to_datetime(after) - pd.to_datetime(rows["generated_dt_before"].fillna(before))
    shown = rows["text_interactions"].clip(1, _shown(manifests[1]["settings"]))
    return pd.DataFrame({
        "night": number, "entity_id": rows["entity_id"], "missed": rows["new_interactions"].astype(float),
        "shown": shown.astype(float), "age_days": days.dt.days.clip(lower=0).astype(float),
        "distance": rows["distance"].astype(float)})


def _shown(settings: dict) -> int:
    """Entries of a history that a user's prompt shows at most, by the settings of a run."""
    name, max_items = settings["prompts"]["user"], settings["history"]["max_items"]
    return min(max_items, prompts.load(name).max_history) if name in prompts.set_names() else max_items


def _moved(rows: pd.DataFrame, encoder: str) -> Moved:
    place, texts = pd.factorize(pd.concat([rows["before"], rows["after"]]))
    vectors = encoded(list(texts), encoder)
    first, second = np.split(place, 2)
    missed, shown = rows["missed"].to_numpy(), rows["shown"].to_numpy()
    known = {"missed": missed, "new": new_share(np.minimum(missed, shown), shown),
             "distance": rows["distance"].to_numpy(), "age_days": rows["age_days"].to_numpy(),
             "no_text": np.zeros(len(rows))}
    return Moved(rows["night"].to_numpy(), pd.factorize(rows["entity_id"])[0], known,
                 distances(vectors, first, second), np.full(len(rows), np.nan))
