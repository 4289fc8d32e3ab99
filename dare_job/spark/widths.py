"""What beams were over a night: sums over the rows of each file, in its footer, of mode beam alone."""

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from dare_job.files import AnyPath, each
from dare_job.spark import chunks

if TYPE_CHECKING:
    from dare_job.decode import Result

_NOTE = "beams"


@dataclass(frozen=True)
class Widths:
    """Sums over rows, as ``BeamCounts`` has them of one: layers and their beams; layers of drafts that were
    judged, and those that passed with their beams.
    """

    layers: int = 0
    beams: float = 0.0
    judged: int = 0
    passed: int = 0
    passed_beams: float = 0.0

    def __add__(self, other: "Widths") -> "Widths":
        return Widths(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Widths)))

    def note(self) -> dict[str, dict]:
        """What a file's footer says; nothing where no row was written by beams."""
        return {_NOTE: asdict(self)} if self.layers else {}


def of(outcome: "Result | str") -> Widths:
    """Of one row."""
    found = getattr(outcome, "beams", None)
    if found is None:
        return Widths()
    return Widths(found.layers, found.width * found.layers, found.judged, found.passed,
                  found.passed_width * found.passed)


def record(paths: list[AnyPath]) -> dict | None:
    """Of all rows in files, as JSON values; None where none was written by beams.

    width           mean beams of a layer
    judged, passed  layers of drafts
    passed_width    mean beams of those that passed; None where none did
    """
    total = sum((Widths(**note) for note in each(_read, paths) if note), Widths())
    if not total.layers:
        return None
    return {"layers": total.layers, "width": round(total.beams / total.layers, 4), "judged": total.judged,
            "passed": total.passed,
            "passed_width": round(total.passed_beams / total.passed, 4) if total.passed else None}


def _read(path: AnyPath) -> dict | None:
    return chunks.read_note(path, _NOTE)
