"""What the gate found: one finding of each check and entity type."""

from dataclasses import asdict, dataclass, field

CHECKS = {  # in the order of reports; each with its words in a message and the setting of its limit
    "errors": ("rows with a prompt failed", "limits.max_error_share"),
    "errors_again": ("rows failed as the night before", "limits.max_error_share"),
    "empty": ("texts are empty", "gates.max_empty_share"),
    "short": ("texts are too short", "gates.max_short_share"),
    "cut_off": ("texts are cut off", "gates.max_cut_off_share"),
    "loop": ("texts end in a loop", "gates.max_loop_share"),
    "unprintable": ("texts hold unprintable characters", "gates.max_unprintable_share"),
    "relaxed": ("tokens are relaxed", "gates.max_relaxed_share"),
    "length_ratio": ("median length against the same entities' texts before", "gates.max_length_ratio"),
    "length_distance": ("distance of the lengths from those before", "gates.max_length_distance"),
}
OF_ERRORS = ("errors", "errors_again")
OF_LENGTHS = ("length_ratio", "length_distance")
FIRST = 5  # ids kept for the message


@dataclass(frozen=True)
class Finding:
    """One check of one entity type.

    rows     counted by the check; of: looked at (relaxed: rows and tokens looked at)
    value    what is held against the limit: a share, for lengths a ratio or distance; None: not looked at
    limit    None: switched off
    failed   the gate stays shut
    first    ids of the first rows counted
    why      why the check was not made, or a value over its limit let through
    """

    rows: int
    of: int
    value: float | None
    limit: float | None
    failed: bool = False
    first: list[str] = field(default_factory=list)
    why: str | None = None


def records(found: dict[str, dict[str, Finding]]) -> dict[str, dict[str, dict]]:
    """Findings by entity type and check, as JSON values."""
    return {entity: {check: asdict(finding) for check, finding in checks.items()}
            for entity, checks in found.items()}


def worst(found: dict[str, dict[str, dict]]) -> dict[str, float | None]:
    """By check the value of the entity type that has more of it (a ratio: farther from 1), of records.

    None where the check looked at nothing.
    """
    result = {}
    for check in CHECKS:
        values = [checks[check]["value"] for checks in found.values() if check in checks]
        values = [value for value in values if value is not None]
        key = _distance_from_one if check == "length_ratio" else None
        result[check] = round(max(values, key=key), 6) if values else None
    return result


def _distance_from_one(ratio: float) -> float:
    return max(ratio, 1 / ratio)
