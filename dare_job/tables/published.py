"""Finds and reads previous text: the previous snapshot, or text that was delivered with the input."""

import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from dare_job.errors import DataError
from dare_job.job import Job
from dare_job.schemas import ENTITIES, KNOWLEDGE, SCHEMA_VERSION
from dare_job.storage import paths as storage_paths
from dare_job.storage.paths import AnyPath
from dare_job.workspace import MANIFEST


def previous_folder(job: Job, entity: str) -> AnyPath | None:
    """Folder of the newest text of an entity type from before the job's date, or None.

    Looks for a snapshot under OUT, then in the input's table of texts, then in ``input.knowledge``, then in
    ``knowledge/`` beside the input. The latter two contain ``entity=E/dt=D/*.parquet`` or
    ``entity=E/*.parquet``.

    Raises
    ------
    DataError
        ``input.knowledge`` is set but contains neither.
    """
    published = job.space.previous(entity)
    if published:
        return published
    settings = job.config.input
    if getattr(settings.tables, f"{entity}_texts").is_set:
        folder = job.space.stage("input") / "texts" / f"entity={entity}"
        return folder if _has_rows(folder) else None
    if settings.knowledge:
        root = storage_paths.path(settings.knowledge, "input.knowledge")
        if not any(root.glob("entity=*/")):
            raise DataError(f"input.knowledge = {settings.knowledge!r}: no folder entity=user or entity=item "
                            "in it; expected entity=E/dt=YYYY-MM-DD/*.parquet")
    elif settings.path:
        root = storage_paths.path(settings.path, "input.path") / "knowledge"
    else:
        return None
    return _newest(root / f"entity={entity}", job.space.dt)


def _newest(folder: AnyPath, dt: str) -> AnyPath | None:
    dates = [
        path for path in storage_paths.dated_folders(folder) if path.name < f"dt={dt}" and _has_rows(path)
    ]
    if dates:
        return dates[-1]
    return folder if _has_rows(folder) else None


def _has_rows(folder: AnyPath) -> bool:
    return any(folder.glob("*.parquet"))


def parquet_files(folder: AnyPath) -> list[AnyPath]:
    """The Parquet files of a folder; at a URL those that its manifest names, if it has one.

    At a URL the folder also contains the files of a publication that is being written.
    """
    named = {} if storage_paths.is_local(folder) else read_manifest(folder).get("files")
    return [folder / name for name in sorted(named)] if named else sorted(folder.glob("*.parquet"))


def read_manifest(folder: AnyPath) -> dict:
    """A snapshot's manifest; empty if it has none.

    Raises
    ------
    DataError
        The manifest is damaged.
    """
    path = folder / MANIFEST
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}): publish that date again") from None


def previous_manifest(job: Job, entity: str) -> dict:
    """The manifest of ``previous_folder``; empty if there is none."""
    folder = previous_folder(job, entity)
    return read_manifest(folder) if folder else {}


def baseline_rate(record: dict) -> float | None:
    """Tokens per second of the baseline in a manifest or in the record of the stage generate.

    None without a baseline, and if it had fewer concurrent workers or smaller batches than the run, which
    cannot be compared.
    """
    baseline = record.get("baseline") or {}
    return baseline.get("tokens_per_s") if baseline.get("comparable", True) else None


def current_manifest(folder: AnyPath, fingerprint: str) -> dict | None:
    """A snapshot's manifest if it has this fingerprint and its files are complete, else None."""
    manifest = read_manifest(folder)
    if manifest.get("fingerprint") != fingerprint:
        return None
    complete = all((folder / name).is_file() and (folder / name).stat().st_size == file["bytes"]
                   for name, file in manifest["files"].items())
    return manifest if complete else None


def text_identity(job: Job, entity: str) -> list:
    """Place of the previous text of an entity type, and id of the run that published it.

    A place below OUT is relative, so the identity does not depend on the folder that a command is run in.

    Raises
    ------
    DataError
        The text has another table version.
    """
    old = previous_folder(job, entity)
    if old is None:
        return [None, None]
    manifest = read_manifest(old)
    if manifest.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
        raise DataError(f"{old} has table version {manifest['schema_version']}, and this version of dare-job "
                        f"reads only version {SCHEMA_VERSION}: publish that date again, or remove it")
    place = str(old.absolute()).removeprefix(f"{job.space.out.absolute()}/")
    return [place, manifest.get("run_id")]


def writer_record(job: Job) -> dict:
    """Model, tokenizer and prompt hashes and token limits of this run, as in a manifest."""
    from dare_job.models.files import split_revision, tokenizer_hash

    settings = job.config.model
    name, revision = split_revision(settings.name)
    return {
        "model": {"name": name, "revision": revision, "dtype": settings.dtype,
                  "path": str(job.model_path), "hash": job.model_hash},
        "tokenizer": tokenizer_hash(job.model_path),
        "prompts": {entity: job.config.prompt_set(entity).version_hash for entity in ENTITIES},
        "new_tokens": [job.config.decode.min_new_tokens, job.config.decode.max_new_tokens],
    }


def writer_changes(job: Job, folder: AnyPath, entity: str) -> list[tuple[str, str | None, str]]:
    """Differences between the model, tokenizer and prompt of a folder's text and those of this run.

    Returns (what, previous hash, current hash) of each difference; empty if the text has no manifest.
    """
    before, now = read_manifest(folder), writer_record(job)
    if not before:
        return []
    compared = (
        ("model", before.get("model", {}).get("hash"), now["model"]["hash"]),
        ("tokenizer", before.get("tokenizer"), now["tokenizer"]),
        ("prompt", before.get("prompts", {}).get(entity), now["prompts"][entity]))
    return [change for change in compared if change[1] != change[2]]


def dataset(folder: AnyPath, schema: pa.Schema = KNOWLEDGE) -> ds.Dataset:
    """Dataset of the Parquet files of a folder; empty if there are none."""
    return dataset_of_files(parquet_files(folder), schema)


def dataset_of_files(paths: list[AnyPath], schema: pa.Schema = KNOWLEDGE) -> ds.Dataset:
    """Dataset of some files; empty if there are none."""
    if not paths:
        return ds.dataset(schema.empty_table())
    locations = [storage_paths.arrow_location(path) for path in paths]
    names = [name for _, name in locations]
    return ds.dataset(names, filesystem=locations[0][0], schema=schema, format="parquet")


def usable_as_draft() -> ds.Expression:
    """Rows with a text that does not loop: as a draft it would lead into its loop."""
    reason = ds.field("finish_reason")
    return (ds.field("knowledge") != "") & ((reason != "loop") | reason.is_null())


def numbers_of(folder: AnyPath, ids: Sequence[str], schema: pa.Schema = KNOWLEDGE) -> dict[str, int]:
    """Numbers of the rows with these ids, in the order of the folder's files. Reads only the ids."""
    wanted, numbers, first = pa.array(ids, pa.string()), {}, 0
    for batch in dataset(folder, schema).to_batches(columns=["entity_id"]) if len(ids) else ():
        places = pc.is_in(batch["entity_id"], value_set=wanted).to_numpy(zero_copy_only=False).nonzero()[0]
        numbers |= {batch["entity_id"][int(n)].as_py(): first + int(n) for n in places}
        first += batch.num_rows
    return numbers


def rows_by_id(folder: AnyPath, ids: Sequence[str], columns: Sequence[str],
               schema: pa.Schema = KNOWLEDGE) -> dict[str, dict]:
    """Some columns of the rows with these ids; ids that the folder lacks are left out."""
    numbers = numbers_of(folder, ids, schema)
    return dict(zip(numbers, rows_at(folder, list(numbers.values()), columns, schema), strict=True))


def rows_at(folder: AnyPath, numbers: Sequence[int], columns: Sequence[str] = KNOWLEDGE.names,
            schema: pa.Schema = KNOWLEDGE) -> list[dict]:
    """Rows of a folder by their numbers in the order of its files; only files with such rows are read."""
    rows, first = {}, 0
    for fragment in dataset(folder, schema).get_fragments() if len(numbers) else ():
        count = fragment.count_rows()
        inside = [number for number in numbers if first <= number < first + count]
        if inside:
            scanner = fragment.scanner(schema=schema, columns=list(columns), batch_size=1024,
                                       batch_readahead=1)
            table = scanner.take(pa.array([number - first for number in inside], pa.int64()))
            rows |= zip(inside, table.to_pylist(), strict=True)
        first += count
    return [rows[number] for number in numbers]


def has_relaxed_tokens():
    """Spark condition: a row's text may differ from strict text, because it has relaxed tokens."""
    from pyspark.sql import functions as F

    return F.coalesce("relaxed_tokens", F.lit(0)) > 0


def text_date():
    """Spark column ``generated_dt`` as YYYY-MM-DD; null if it is not a date, as in a text of the input."""
    from pyspark.sql import functions as F

    return F.col("generated_dt").try_cast("date").cast("string")


def read_texts(job: Job, folder: AnyPath, columns: Sequence[str] = KNOWLEDGE.names):
    """A folder of text as a Spark DataFrame with some columns of KNOWLEDGE; missing columns are null.

    Raises
    ------
    DataError
        The files cannot be read as Parquet, or the column ``entity_id`` or ``knowledge`` is missing.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_type

    from dare_job.spark.tables import read_parquet

    try:
        files = [folder] if storage_paths.is_local(folder) else parquet_files(folder)
        table = read_parquet(job.spark, *files, columns={"entity_id", "knowledge", *columns})
    except PySparkException as error:
        raise DataError(f"{folder} cannot be read as Parquet: {str(error).splitlines()[0]}") from None
    missing = {"entity_id", "knowledge"} - set(table.columns)
    if missing:
        raise DataError(f"{folder}: column {' and '.join(sorted(missing))} missing; it has {table.columns}")
    kinds = {field.name: field.dataType for field in table.schema}
    chosen: list = []
    for name in columns:
        kind = from_arrow_type(KNOWLEDGE.field(name).type)
        value = F.col(name) if name in kinds else F.lit(None)
        chosen.append(name if kinds.get(name) == kind else value.cast(kind).alias(name))
    return table.select(chosen)
