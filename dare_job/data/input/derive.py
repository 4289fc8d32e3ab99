"""Columns that data sets need and their files do not have: made from those that they have.

Each function takes the rows of a file and returns rows, perhaps another number of them.
"""

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa

from dare_job.data.input.scan import Raw
from dare_job.data.input.table import chosen


def with_columns(raw: Raw, **columns: Iterable[str | None]) -> Raw:
    """The rows with more columns, of text."""
    added = {name: values if isinstance(values, pa.Array) else pa.array(list(values), pa.string())
             for name, values in columns.items()}
    return Raw({**raw.columns, **added}, raw.lines, raw.raw, raw.problems)


def mind_clicks(raw: Raw) -> Raw:
    """One row per clicked news of an impression: columns user, time and news of MIND's behaviors.tsv.

    Test files, whose impressions say nothing of clicks, give no rows.
    """
    rows, news = [], []
    for row, shown in enumerate(raw.columns["impressions"].to_pylist()):
        clicked = [part[:-2] for part in (shown or "").split() if part.endswith("-1")]
        if raw.problems[row].is_valid:
            clicked = [None]
        rows += [row] * len(clicked)
        news += clicked
    return with_columns(chosen(raw, np.array(rows, np.int64)), news=news)


def lastfm_tracks(raw: Raw) -> Raw:
    """Last.fm-1K: a track's id, or its artist and name where it has none; and both as its title."""
    ids, artists, tracks = (raw.columns[name].to_pylist() for name in ("track_id", "artist", "track"))
    titles = [" - ".join(filter(None, pair)) or None for pair in zip(artists, tracks, strict=True)]
    return with_columns(raw, item=[own or title for own, title in zip(ids, titles, strict=True)],
                        title=titles)


def steam_titles(raw: Raw) -> Raw:
    """Steam: a game's title, or the name of its application where it has none."""
    none = pa.nulls(len(raw), pa.string())
    titles, names = (raw.columns.get(name, none).to_pylist() for name in ("title", "app_name"))
    return with_columns(raw, title=[title or name for title, name in zip(titles, names, strict=True)])


def _changed(raw: Raw, change: Callable[[str], str | None], *names: str) -> Raw:
    """The rows with ``change`` of each value in those columns that there are."""
    return with_columns(raw, **{name: [value and change(value) for value in raw.columns[name].to_pylist()]
                                for name in names if name in raw.columns})


def kuairec_words(raw: Raw) -> Raw:
    """KuaiRec: UNKNOWN is none; topics without the brackets of their list, whose words have no quotes."""
    raw = _changed(raw, _unbracketed, "topic_tag")
    return _changed(raw, lambda text: None if text == "UNKNOWN" else text, "caption", "user_active_degree",
                    "first_level_category_name", "second_level_category_name")


def _unbracketed(listed: str) -> str:
    return ", ".join(filter(None, map(str.strip, listed.strip("[] ").split(","))))


FUNCTIONS: dict[str, Callable[[Raw], Raw]] = {
    "mind_clicks": mind_clicks, "lastfm_tracks": lastfm_tracks, "steam_titles": steam_titles,
    "kuairec_words": kuairec_words}
