"""Base of all sections of the settings, common types, and sections made from the engine's dataclasses."""

from dataclasses import MISSING, fields
from typing import Annotated, Any, get_type_hints
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, create_model

MAX_INT = 2**31 - 1


class Section(BaseModel):
    """Strict types: `true` and `"8"` are not accepted as numbers. A whole number is accepted as a
    float, NaN is not."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), strict=True, allow_inf_nan=False)


NotNegative = Annotated[int, Field(ge=0, le=MAX_INT)]
AtLeastOne = Annotated[int, Field(ge=1, le=MAX_INT)]
Share = Annotated[float, Field(ge=0, le=1)] | None


def check_zone(value: str, key: str) -> str:
    """The name of a time zone, if every host knows it by this name.

    Raises
    ------
    ValueError
        It is unknown, or means the host's own zone.
    """
    try:
        ZoneInfo(value)
    except (KeyError, ValueError, OSError):
        raise ValueError(f"{key} = {value!r} is not a known time zone; use one such as UTC or "
                         "Europe/Berlin") from None
    if value == "localtime":
        raise ValueError(f"{key} = {value!r} differs between hosts; name the zone, such as Europe/Berlin")
    return value


def section_of(engine: type, *names: str, **others: tuple[Any, Any]) -> type[Section]:
    """A section with these fields of an engine's dataclass: type, default, bounds and description.

    Parameters
    ----------
    others
        Fields that have another type and default here, as (type, default).
    """
    types = get_type_hints(engine)
    section = {}
    for field in fields(engine):
        if field.name in names:
            default = field.default_factory() if field.default is MISSING else field.default
            section[field.name] = (types[field.name], Field(default, **field.metadata))
        elif field.name in others:
            kind, default = others[field.name]
            section[field.name] = (kind, Field(default, **field.metadata))
    return create_model(f"{engine.__name__}Fields", __base__=Section, **section)


def values_for(engine: type, *sections: Section) -> dict[str, Any]:
    """The values of sections that are fields of an engine's dataclass, by name."""
    names = {field.name for field in fields(engine)}
    return {name: getattr(section, name) for section in sections for name in type(section).model_fields
            if name in names}
