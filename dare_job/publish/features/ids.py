"""Stable integer ids of entities: rows of an embedding table, from 1, the same on every date.

``OUT/features/ids/entity=E/ids.parquet`` is replaced atomically by a file that starts with the same rows. The
id 0 is reserved for unknown entities.
"""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dare_job.errors import DataError
from dare_job.schemas import IDS
from dare_job.storage import lock, paths
from dare_job.storage.paths import AnyPath

_MAX_ID = 2**31 - 1
_READ = pa.schema([field.with_nullable(True) for field in IDS])
_FIX = ("restore it from a copy; the tables of features contain the ids as well (entity_id, id). If there is "
        "no copy, remove {folder}: all entities get new ids, and older models have to be trained again")


def extended(root: AnyPath, entity: str, entities: pa.Array, min_rows: int = 0) -> pa.Table:
    """Assign ids to new entities; returns the ids (IDS) of all entities that ever had features.

    Parameters
    ----------
    root
        OUT/features/ids.
    entities : string (n,)
        Distinct entity ids.
    min_rows
        Number of entities that are known to have ids.

    Raises
    ------
    DataError
        The file is damaged.
    InfrastructureError
        Another command is assigning ids.
    """
    folder = root / f"entity={entity}"
    paths.make_folder(folder)
    lock.wait_until_free(folder, "numbers entities")
    with lock.held(folder, "numbers entities"):
        known = read(folder, min_rows)
        new = entities.filter(pc.invert(pc.is_in(entities, value_set=known["entity_id"].combine_chunks())))
        if not len(new):
            return known
        last = len(known) + len(new)
        if last > _MAX_ID:
            raise DataError(f"{folder}: {last} entities do not fit into 32-bit ids")
        added = pa.table([new.sort(), pa.array(range(len(known) + 1, last + 1), pa.int32())], schema=IDS)
        extended = pa.concat_tables([known, added]).combine_chunks()
        lock.require_held()
        _write(folder / "ids.parquet", extended)
    return extended


def read(folder: AnyPath, min_rows: int = 0) -> pa.Table:
    """Read the ids (IDS), ordered by ``id``; empty if the file does not exist yet.

    Raises
    ------
    DataError
        The file is damaged, or has duplicates, gaps or fewer than ``min_rows`` rows.
    """
    path = folder / "ids.parquet"
    fix = _FIX.format(folder=folder)
    try:
        with paths.arrow_source(path) as source:
            table = pq.read_table(source, columns=IDS.names).cast(_READ).combine_chunks()
    except FileNotFoundError:
        table = IDS.empty_table()
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise DataError(f"{path} is damaged ({str(error).splitlines()[0]}): {fix}") from None
    wrong = _wrong(table)
    if wrong is None and len(table) < min_rows:
        wrong = f"contains {len(table)} of {min_rows} entities that have an id"
    if wrong:
        raise DataError(f"{path} {wrong}: {fix}")
    return table.cast(IDS)


def _wrong(table: pa.Table) -> str | None:
    """What is wrong with a file of ids; None if it is valid."""
    if table["entity_id"].null_count or table["id"].null_count:
        return "has rows without an id"
    if not table["id"].combine_chunks().equals(pa.array(range(1, len(table) + 1), pa.int32())):
        return f"does not count from 1 to {len(table)}"
    if twice := repeated(table["entity_id"]):
        return f"has two ids for {twice[0]!r}"
    return None


def repeated(entities: pa.ChunkedArray | pa.Array, max_count: int = 5) -> list[str]:
    """Up to ``max_count`` entities that occur more than once."""
    if pc.count_distinct(entities).as_py() == len(entities):
        return []
    counts = pc.value_counts(entities)
    return counts.filter(pc.greater(counts.field("counts"), 1)).field("values")[:max_count].to_pylist()


def _write(path: AnyPath, table: pa.Table) -> None:
    with paths.atomic_writer(path, f".{path.name}.partial") as file:
        pq.write_table(table, file, compression="zstd")
