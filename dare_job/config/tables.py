"""Settings of input tables: where each is, its format, and which of its columns are what."""

import codecs
import re
from datetime import date, datetime
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from dare_job.config.base import Section, check_zone

_LARGEST = 3.4e38  # float32
UNITS = ("d", "s", "ms", "us", "ns")


class IdTranslation(Section):
    """A file that translates the ids of one table to those of the others."""

    path: str = Field(description="File with both ids, with a header, relative to input.path")
    column: str = Field(description="Column of that file with the ids of this table")
    to: str = Field(description="Column of that file with the ids of the other tables")


class TableSettings(Section):
    """One table of the input. A table without any setting is the one with the usual name, if there is one."""

    path: str | None = Field(None, description="File, folder or pattern, relative to input.path. null: the "
                             "usual "
                             "name, or input.path itself if it is a file")
    format: Literal["auto", "parquet", "csv", "tsv", "json", "delta", "iceberg"] = Field(
        "auto", description="Format of the files; json: one object per line. auto: recognized from the "
        "content")
    query: str | None = Field(None, description="Spark SQL query, or name of a table of Spark's catalog, in "
                              "place of a path")
    columns: dict[str, str | None] = Field({}, description="Name of each column in the files, by our name, "
                                           "such "
                                           "as {user_id: uid}. null: the files have no such column")
    where: dict[str, list[str | bool | int | float]] = Field(
        {}, description="Only rows whose column has one of these values, such as {event: [play, purchase]}. "
        "Numbers equal numbers however they are written, true and false also yes and no or 1 and 0; text "
        "counts as it is. YAML reads NO as false: write such text in quotes")
    ids: dict[str, IdTranslation] = Field({}, description="Files that translate a column's ids, by our name "
                                          "of "
                                          "the column: {item_id: {path: FILE, column: COLUMN, to: COLUMN}}")
    separator: str | None = Field(None, min_length=1, description="Separator of fields. null: recognized")
    header: list[str] | None = Field(None, description="Names of the columns of files without a header line")
    quotes: Literal["doubled", "escaped", "none"] = Field(
        "doubled", description="How a quote in a quoted field is written. doubled: twice, or after a "
        "backslash in rows that have the right number of fields only then. escaped: after a backslash. none: "
        "quotes are ordinary text")
    encoding: str | None = Field(None, description="Encoding of text files. null: UTF-8, and cp1252 in lines "
                                 "that are not UTF-8")

    @field_validator("where", mode="before")
    @classmethod
    def _has_no_dates(cls, value: Any) -> Any:
        for column, allowed in value.items() if isinstance(value, dict) else ():
            for each in allowed if isinstance(allowed, list) else ():
                if isinstance(each, date):
                    raise ValueError(f"{column}: {each} is a date in YAML: write it in quotes, as text")
        return value

    @field_validator("encoding")
    @classmethod
    def _is_encoding(cls, value: str | None) -> str | None:
        try:
            if codecs.lookup(value or "utf-8").name.startswith(("utf-16", "utf-32")):
                raise ValueError(f"encoding = {value!r} is not read: convert the files to UTF-8 (iconv)")
        except LookupError:
            raise ValueError(f"encoding = {value!r} is not a known encoding; use one such as utf-8, cp1252 "
                             "or shift_jis") from None
        return value

    _ours: ClassVar[tuple[str, ...]] = ()  # our names of the columns

    @field_validator("columns", "ids")
    @classmethod
    def _names_our_columns(cls, value: dict) -> dict:
        unknown = [name for name in value if name not in cls._ours]
        if unknown:
            raise ValueError(f"{', '.join(unknown)} is not a column of dare-job: write {{column of "
                             f"dare-job: column of the files}}, with the columns {', '.join(cls._ours)}")
        return value

    @model_validator(mode="after")
    def _has_one_source(self) -> Any:
        if self.query and self.path:
            raise ValueError("path and query are both set: choose one")
        return self

    @property
    def is_set(self) -> bool:
        """Whether anything is set to another value than its default."""
        return bool(self.own)

    @property
    def own(self) -> dict[str, Any]:
        """The settings that are not the defaults, by name."""
        return {name: getattr(self, name) for name, field in type(self).model_fields.items()
                if getattr(self, name) != field.get_default(call_default_factory=True)}


class InteractionSettings(TableSettings):
    """The table of interactions: user_id, item_id, rating, timestamp."""

    _ours = ("user_id", "item_id", "rating", "timestamp")

    time: str | None = Field(None, description="Unit of timestamps (d, s, ms, us, ns), or their format as of "
                             "strptime, such as '%d.%m.%Y'. null: seconds, or text as 2026-01-31 10:00:00")
    time_zone: str = Field("UTC", description="Time zone of timestamps without one, such as Europe/Berlin")
    rating: float | None = Field(None, ge=-_LARGEST, le=_LARGEST, description="Rating of every interaction, "
                                 "in place of a column. null: ratings are those of the column, if there is "
                                 "one")
    decimal: Literal["point", "comma"] = Field("point", description="Decimal mark of ratings in text; with "
                                               "comma, 4,5 and 1.234,5 are numbers")
    rating_range: list[float] | None = Field(None, min_length=2, max_length=2,
                                             description="Lowest and highest "
                                             "valid rating. null: any number")
    unrated: list[float] = Field([], description="Values that stand for a missing rating, such as 0")

    @field_validator("time")
    @classmethod
    def _is_unit_or_format(cls, value: str | None) -> str | None:
        if value is not None and "%Z" in value:
            raise ValueError(f"time = {value!r}: %Z does not say which zone a name is; write the name as it "
                             f"is "
                             "in the text, such as UTC, and set time_zone; or use %z for offsets as +0100")
        if value is not None and value not in UNITS and "%" not in value:
            raise ValueError(f"time = {value!r}: give a unit ({', '.join(UNITS)}) or a format such as "
                             f"'%d.%m.%Y'")
        if value is not None and value not in UNITS:
            try:
                datetime.strptime("", value)
            except (ValueError, re.error) as error:
                if "does not match format" not in str(error):
                    raise ValueError(f"time = {value!r} is no format of strptime: {error}") from None
        return value

    @field_validator("rating_range")
    @classmethod
    def _is_range(cls, value: list[float] | None) -> list[float] | None:
        if value is not None and not value[0] <= value[1]:
            raise ValueError(f"rating_range = {value}: the lowest rating comes first")
        return value

    @field_validator("time_zone")
    @classmethod
    def _is_zone(cls, value: str) -> str:
        return check_zone(value, "time_zone")


class EntitySettings(TableSettings):
    """A table of users (user_id, attributes) or items (item_id, title, attributes)."""

    _ours = ("user_id", "item_id", "title")

    attributes: list[str] | dict[str, str] | Literal["all"] | None = Field(
        None, description="Columns that become attributes, which prompts may show: names, or {our name: "
        "name}; "
        "all: every other column. null: only those in a column attributes (map or struct)")
    all_but: list[str] = Field([], description="Columns to leave out when attributes is all; case is ignored")
    distinct: bool = Field(False, description="Rows may repeat an id; the first one counts, and the others "
                           "are "
                           "not reported as duplicates")

    @model_validator(mode="after")
    def _all_but_of_all(self) -> Any:
        if self.all_but and self.attributes != "all":
            raise ValueError("all_but needs attributes: all")
        return self


class TextSettings(TableSettings):
    """A table of earlier texts (entity_id, knowledge) for a first run, in place of input.knowledge."""

    _ours = ("entity_id", "knowledge")


class InputTables(Section):
    """The tables of the input, where their names, columns or formats are not the usual ones."""

    interactions: InteractionSettings = InteractionSettings()
    users: EntitySettings = EntitySettings()
    items: EntitySettings = EntitySettings()
    user_texts: TextSettings = TextSettings()
    item_texts: TextSettings = TextSettings()

    def set_tables(self) -> dict[str, TableSettings]:
        """The tables that have at least one setting."""
        return {name: table for name, table in self if table.is_set}
