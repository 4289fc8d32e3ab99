"""The number of each entity: a row of an embedding table, from 1 on, the same on every date.

``OUT/features/ids/entity=E/ids.parquet`` is replaced as a whole by one that begins with the same rows, so a
kill leaves the old or the new one. 0 is nobody's.
"""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dare_job.errors import DataError
from dare_job.schemas import IDS
from dare_job.storage import lock, paths
from dare_job.storage.paths import AnyPath

_MOST = 2**31 - 1
_READ = pa.schema([field.with_nullable(True) for field in IDS])
_FIX = ("put a whole copy in its place; the tables of features hold ids too (entity_id, id). Without any, "
        "remove {folder}: all is numbered anew, and what was trained with the old ids is worth nothing")


def extended(root: AnyPath, entity: str, entities: pa.Array, least: int = 0) -> pa.Table:
    """IDS of all entities that ever had features, after numbering those of ``entities`` that are new.

    root      OUT/features/ids
    entities  distinct ids (n,) string
    least     how many are known to have been numbered: the map may not have lost them

    Raises DataError where the map is damaged, InfrastructureError where another command adds to it.
    """
    folder = root / f"entity={entity}"
    paths.make_folder(folder)
    lock.wait_until_free(folder, "numbers entities")
    with lock.held(folder, "numbers entities"):
        known = read(folder, least)
        new = entities.filter(pc.invert(pc.is_in(entities, value_set=known["entity_id"].combine_chunks())))
        if not len(new):
            return known
        last = len(known) + len(new)
        if last > _MOST:
            raise DataError(f"{folder}: {last} entities have no ids of 32 bits")
        added = pa.table([new.sort(), pa.array(range(len(known) + 1, last + 1), pa.int32())], schema=IDS)
        every = pa.concat_tables([known, added]).combine_chunks()
        lock.require_held()
        _write(folder / "ids.parquet", every)
    return every


def read(folder: AnyPath, least: int = 0) -> pa.Table:
    """The map as a table of IDS, in order of ``id``; empty where there is none yet.

    Raises DataError where it cannot be read, numbers an entity twice, has gaps, or fewer rows than ``least``.
    """
    path = folder / "ids.parquet"
    fix = _FIX.format(folder=folder)
    try:
        with paths.arrow_source(path) as source:
            found = pq.read_table(source, columns=IDS.names).cast(_READ).combine_chunks()
    except FileNotFoundError:
        found = IDS.empty_table()
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise DataError(f"{path} is damaged ({str(error).splitlines()[0]}): {fix}") from None
    wrong = _wrong(found)
    if wrong is None and len(found) < least:
        wrong = f"holds {len(found)} entities, of {least} that have an id"
    if wrong:
        raise DataError(f"{path} {wrong}: {fix}")
    return found.cast(IDS)


def _wrong(found: pa.Table) -> str | None:
    """What keeps a map from being one; None: nothing."""
    if found["entity_id"].null_count or found["id"].null_count:
        return "has rows without an id"
    if not found["id"].combine_chunks().equals(pa.array(range(1, len(found) + 1), pa.int32())):
        return f"does not count from 1 to {len(found)}"
    if twice := repeated(found["entity_id"]):
        return f"numbers {twice[0]!r} twice"
    return None


def repeated(entities: pa.ChunkedArray | pa.Array, most: int = 5) -> list[str]:
    """Entities that are there more than once, some of them."""
    if pc.count_distinct(entities).as_py() == len(entities):
        return []
    counts = pc.value_counts(entities)
    return counts.filter(pc.greater(counts.field("counts"), 1)).field("values")[:most].to_pylist()


def _write(path: AnyPath, table: pa.Table) -> None:
    with paths.atomic_writer(path, f".{path.name}.partial") as file:
        pq.write_table(table, file, compression="zstd")
