"""Which date of an OUT is read: one that each entity type with any text has."""

import logging

from dare_job.errors import DataError
from dare_job.files import AnyPath, dated_folders
from dare_job.knowledge import parquet_files

_LOG = logging.getLogger("dare_job")


def choose(out: AnyPath, dt: str | None, entities: list[str]) -> tuple[str, list[str]]:
    """The date (None: the newest that all have), and the entity types with texts.

    Warns of one that has no text on any date. Raises DataError where there is no text, no common date, or
    where one has texts of other dates only.
    """
    found = {entity: days for entity in entities if (days := _dates(out, entity))}
    if not found:
        raise DataError(f"--knowledge {out}: no text in it; expected OUT/features or OUT/knowledge, each "
                        "with entity=user|item/dt=YYYY-MM-DD/*.parquet")
    chosen = dt or _newest(out, found)
    without = [entity for entity, days in found.items() if chosen not in days]
    if len(without) == len(found):
        near = ", ".join(sorted(set().union(*found.values())))
        raise DataError(f"{out} holds no text of {chosen}: there are dates {near} (--date)")
    if without:
        raise DataError(f"{out} has no {without[0]} texts of {chosen}, but of "
                        f"{', '.join(found[without[0]])}: choose a date that users and items have (--date), "
                        "or leave them out (--entities)")
    if len(found) < len(entities):
        none = " and ".join(entity for entity in entities if entity not in found)
        _LOG.warning("%s has no %s texts on any date: the set is of %s texts alone (--entities)", out, none,
                     " and ".join(found))
    return chosen, list(found)


def _dates(out: AnyPath, entity: str) -> list[str]:
    """Dates of an entity type that have files, in features or knowledge."""
    return sorted({folder.name[3:] for kind in ("features", "knowledge")
                   for folder in dated_folders(out / kind / f"entity={entity}") if parquet_files(folder)})


def _newest(out: AnyPath, found: dict[str, list[str]]) -> str:
    common = set.intersection(*map(set, found.values()))
    if not common:
        raise DataError(f"--knowledge {out}: users and items have no date in common ("
                        + "; ".join(f"{entity} {', '.join(days)}" for entity, days in found.items()) + ")")
    return max(common)
