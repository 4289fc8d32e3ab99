"""Ready-made mappings of public data sets: ``known/NAME.yaml``, each recognized by its files.

A file of ``known`` has ``about``, ``files`` (names or patterns that the folder must have, each with columns
that it must have; null: no header), ``tables`` (as in input.tables) and ``derive`` (functions of ``derive``
by table). RecBole's atomic files name the columns and their types themselves.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources

import yaml

from dare_job.config.tables import EntitySettings, InputTables, InteractionSettings, TableSettings
from dare_job.data.input.delimited import header
from dare_job.data.input.files import hidden
from dare_job.data.input.formats import detect, open_file
from dare_job.data.input.guess import column_for
from dare_job.data.input.scan import Form
from dare_job.data.input.table import Table
from dare_job.errors import DataError
from dare_job.storage.paths import AnyPath

# columns of RecBole's sets that become attributes; others, such as names and addresses, only by a setting
_FEATURES = {"users": ("age", "country", "gender", "occupation"),
             "items": ("author", "book_author", "brand", "categories", "category", "class", "developer",
                       "genre", "genres", "language", "publication_year", "publisher", "release_date",
                       "release_year", "sub_category", "tags", "type", "year")}


@dataclass(frozen=True)
class KnownSet:
    """A public data set.

    Attributes
    ----------
    files
        Names or patterns of files, with columns that each must have; None: it has no header.
    derive
        Functions of ``derive`` by table.
    """

    name: str
    about: str
    files: dict[str, list[str] | None]
    tables: InputTables
    derive: dict[str, str]

    def fits(self, folder: AnyPath) -> bool:
        """Whether a folder has the files, with their columns."""
        for pattern, columns in self.files.items():
            file = next(matches(folder, pattern), None)
            if file is None or (columns and not set(columns) <= set(_columns(file))):
                return False
        return True


@cache
def known_sets() -> dict[str, KnownSet]:
    """All ready-made mappings by name."""
    folder = resources.files("dare_job.data.input") / "known"
    sets = {}
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        name, data = file.name.removesuffix(".yaml"), yaml.safe_load(file.read_text("utf-8"))
        sets[name] = KnownSet(name, data["about"], data["files"], InputTables.model_validate(data["tables"]),
                              data.get("derive", {}))
    return sets


def matches(folder: AnyPath, pattern: str) -> Iterator[AnyPath]:
    """Visible files of a folder by name."""
    if "*" not in pattern:
        yield from [folder / pattern] if (folder / pattern).is_file() else []
    else:
        yield from sorted((file for file in folder.glob(pattern) if file.is_file() and not hidden(file.name)),
                          key=lambda file: file.name)


def _columns(file: AnyPath) -> list[str]:
    try:
        return list(open_file(file, detect(file), {}).types)
    except DataError:
        return []


def is_recbole(folder: AnyPath) -> bool:
    """Whether a folder has atomic files of RecBole."""
    return next(matches(folder, "*.inter"), None) is not None


def recbole_tables(folder: AnyPath) -> dict[str, Table]:
    """Tables of atomic files: NAME.inter or NAME.train.inter, .valid.inter, .test.inter; NAME.user,
    NAME.item.

    Raises
    ------
    DataError
        A header has no column of users, items or titles.
    """
    tables = {}
    for name, suffix in (("interactions", "inter"), ("users", "user"), ("items", "item")):
        files = list(matches(folder, f"*.{suffix}"))
        if not files:
            continue
        form = Form("delimited", "\t", quotes="none")
        tables[name] = Table(name, _recbole_settings(name, files[0], header(files[0], form)),
                             tuple(open_file(file, form, {}) for file in files))
    return tables


def _recbole_settings(name: str, file: AnyPath, columns: list[str]) -> TableSettings:
    ours = {"interactions": ("user_id", "item_id", "rating", "timestamp"), "users": ("user_id",),
            "items": ("item_id", "title")}[name]
    mapping = {each: column_for(each, columns) for each in ours}
    missing = [each for each in ("user_id", "item_id", "title") if each in mapping and mapping[each] is None]
    if missing:
        raise DataError(f"{file} has no column that is {missing[0]} (columns found: {', '.join(columns)}); "
                        f"name it: "
                        f"input.tables.{name}: {{path: {file.name}, columns: {{{missing[0]}: COLUMN}}}}")
    if name == "interactions":
        return InteractionSettings(columns=mapping)
    features = {column.partition(":")[0]: column for column in columns if column not in mapping.values()}
    return EntitySettings(columns=mapping, attributes={feature: column for feature, column in features.items()
                                                       if feature in _FEATURES[name]})
