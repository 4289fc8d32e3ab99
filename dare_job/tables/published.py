"""Finds and reads previous text: the previous snapshot, or text that was delivered with the input."""

import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.dataset as ds

from dare_job.errors import DataError
from dare_job.job import Job
from dare_job.schemas import ENTITIES, KNOWLEDGE
from dare_job.storage import paths as storage_paths
from dare_job.storage.paths import AnyPath
from dare_job.workspace import MANIFEST


def previous_folder(job: Job, entity: str) -> AnyPath | None:
    """Folder of the newest text of an entity type from before the job's date, or None.

    Looks for a snapshot under OUT, then in ``input.knowledge``, then in ``knowledge/`` beside the input. The
    latter two contain ``entity=E/dt=D/*.parquet`` or ``entity=E/*.parquet``.

    Raises
    ------
    DataError : ``input.knowledge`` is set but contains neither
    """
    published = job.space.previous(entity)
    if published:
        return published
    settings = job.config.input
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
    """The Parquet files of a folder; at a URL those that its manifest names, where it has one.

    There the files of another publication may stand beside them, for as long as one is being written.
    """
    named = {} if storage_paths.is_local(folder) else read_manifest(folder).get("files")
    return [folder / name for name in sorted(named)] if named else sorted(folder.glob("*.parquet"))


def read_manifest(folder: AnyPath) -> dict:
    """A snapshot's manifest; empty where the text came without one. Raises DataError on damage."""
    path = folder / MANIFEST
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}): publish that date again") from None


def current_manifest(folder: AnyPath, fingerprint: str) -> dict | None:
    """A snapshot's manifest, where it is of these texts and settings and its files are there, whole."""
    manifest = read_manifest(folder)
    if manifest.get("fingerprint") != fingerprint:
        return None
    there = all((folder / name).is_file() and (folder / name).stat().st_size == file["bytes"]
                for name, file in manifest["files"].items())
    return manifest if there else None


def text_identity(job: Job, entity: str) -> list:
    """Which text an entity type starts from: its place, below OUT where it is there, and who published it.

    The same for every way in which the place is written, so from every folder that a command is run in.
    """
    old = previous_folder(job, entity)
    if old is None:
        return [None, None]
    place = str(old.absolute()).removeprefix(f"{job.space.out.absolute()}/")
    return [place, read_manifest(old).get("run_id")]


def writer_record(job: Job) -> dict:
    """Model, tokenizer and prompt hashes and token limits of this run, as in a manifest."""
    from dare_job.models.files import split_revision, tokenizer_hash

    settings = job.config.model
    name, revision = split_revision(settings.name)
    return {
        "model": {"name": name, "revision": revision, "dtype": settings.dtype,
                  "path": str(job.model_path), "hash": job.model_hash},
        "tokenizer": tokenizer_hash(job.model_path),
        "prompts": {entity: job.config.prompts.of(entity).version_hash for entity in ENTITIES},
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
    """The Parquet files of a folder, read as they are asked for; without files a table without rows."""
    return dataset_of_files(parquet_files(folder), schema)


def dataset_of_files(paths: list[AnyPath], schema: pa.Schema = KNOWLEDGE) -> ds.Dataset:
    """The same of some files."""
    if not paths:
        return ds.dataset(schema.empty_table())
    locations = [storage_paths.arrow_location(path) for path in paths]
    names = [name for _, name in locations]
    return ds.dataset(names, filesystem=locations[0][0], schema=schema, format="parquet")


def has_relaxed_tokens():
    """Spark condition: a row's text may differ from strict text. One without a relaxed token cannot."""
    from pyspark.sql import functions as F

    return F.coalesce("relaxed_tokens", F.lit(0)) > 0


def read_texts(job: Job, folder: AnyPath, columns: Sequence[str] = KNOWLEDGE.names):
    """A folder of text as a Spark DataFrame with some columns of KNOWLEDGE; those it lacks are null.

    Raises DataError where it has no ``entity_id`` or no ``knowledge``.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_type

    from dare_job.spark.tables import read_parquet

    try:
        where = [folder] if storage_paths.is_local(folder) else parquet_files(folder)
        table = read_parquet(job.spark, *where, columns={"entity_id", "knowledge", *columns})
    except PySparkException as error:
        raise DataError(f"{folder} cannot be read as Parquet: {str(error).splitlines()[0]}") from None
    missing = {"entity_id", "knowledge"} - set(table.columns)
    if missing:
        raise DataError(f"{folder}: column {' and '.join(sorted(missing))} missing; it has {table.columns}")
    chosen = []
    for field in map(KNOWLEDGE.field, columns):
        value = F.col(field.name) if field.name in table.columns else F.lit(None)
        chosen.append(value.cast(from_arrow_type(field.type)).alias(field.name))
    return table.select(chosen)
