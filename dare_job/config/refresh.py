"""Section refresh of the settings: which changed rows are written, under which budget, and until when."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal
from zoneinfo import ZoneInfo

from pydantic import Field, field_validator, model_validator

from dare_job.config.base import AtLeastOne, NotNegative, Section, check_zone

_DEADLINE = re.compile(r"(?:(\d{4}-\d\d-\d\d) )?(\d\d:\d\d) (\S+)")


class RefreshSettings(Section):
    """Which changed rows a run writes (docs/how-to/write-less.md). Without these settings it writes all."""

    min_new_interactions: NotNegative = Field(
        0, description="New interactions that a user needs since its text was written, before the text is "
        "written again. A row without a text, and a change of model or prompt set, needs none. 0: any change")
    min_days: NotNegative = Field(0, description="Minimum number of days that a text is kept, unless the "
                                  "model or the prompt set changes. 0: none")
    max_days: AtLeastOne | None = Field(None, description="A changed row whose text is at least this many "
                                        "days old is written whatever max_rows, max_share and max_tokens "
                                        "say; a text of unknown date counts as 20 days old. null: none")
    max_rows: NotNegative | None = Field(None, description="Maximum number of texts of a run, users and "
                                         "items together. null: no limit")
    max_share: float | None = Field(None, ge=0, le=1, description="Maximum share of the changed rows that a "
                                    "run writes. null: no limit")
    max_tokens: Annotated[int, Field(ge=0, le=2**53)] | None = Field(
        None, description="Maximum number of tokens of a run, prompts and texts together, as estimated from "
        "earlier texts. null: no limit")
    max_worker_hours: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Approximate maximum hours of all workers together in the stage generate: the "
        "hours that are left, divided by the number of workers, after which no further chunk is started, and "
        "the run publishes what is written. Of an earlier start, only the decoding of committed chunks "
        "counts. null: no limit")
    deadline: str | None = Field(
        None, description="Time by which a run should finish, with its time zone: '05:00 "
        "Europe/Berlin' (the next one after the start) or '2026-01-31 05:00 UTC'. The rest is carried over. "
        "null: none")
    priority: Literal["value", "new_interactions", "oldest", "random"] | Annotated[
        str, Field(pattern=r"\.json$")] = Field(
        "value", description="Which rows come first. value: expected value per cost. A file (.json): the "
        "same with coefficients that `dare-job lab refresh --save` learned. new_interactions: most "
        "interactions that the text does not know. oldest: oldest text. random: by a seeded hash")

    @field_validator("deadline")
    @classmethod
    def _is_time(cls, value: str | None) -> str | None:
        if value is None:
            return None
        match = _DEADLINE.fullmatch(value)
        if not match:
            raise ValueError(f"refresh.deadline = {value!r}: write a time and its time zone, such as '05:00 "
                             "Europe/Berlin' or '2026-01-31 05:00 UTC'")
        check_zone(match[3], "the time zone of refresh.deadline")
        try:
            _in_utc(datetime.strptime(f"{match[1] or '2026-01-31'} {match[2]}", "%Y-%m-%d %H:%M"), match[3])
        except ValueError:
            raise ValueError(f"refresh.deadline = {value!r} is not a valid time of day") from None
        except OverflowError:
            raise ValueError(f"refresh.deadline = {value!r} is outside the years 1 to 9999 in UTC") from None
        return value

    @model_validator(mode="after")
    def _days_are_ordered(self):
        if self.max_days is not None and self.min_days > self.max_days:
            raise ValueError(f"refresh.min_days = {self.min_days} is more than refresh.max_days = "
                             f"{self.max_days}")
        return self

    @property
    def is_limited(self) -> bool:
        """Whether a run may leave changed rows as they are."""
        return self != RefreshSettings(priority=self.priority)

    @property
    def is_timed(self) -> bool:
        """Whether a run may stop before all chosen rows are written."""
        return self.deadline is not None or self.max_worker_hours is not None

    @property
    def has_budget(self) -> bool:
        """Whether a run may have to leave rows that nothing else holds back, so that their order counts."""
        return self.is_timed or any(limit is not None for limit in (
            self.max_rows, self.max_share, self.max_tokens))

    @property
    def choosing(self) -> dict:
        """What the choice of rows depends on. Of a limit of time, only whether it is the only limit."""
        return self.model_dump(exclude={"deadline", "max_worker_hours"}) | {"limited": self.is_limited}

    def deadline_after(self, start: datetime) -> datetime | None:
        """The deadline: its date where it names one, else the next such time after ``start`` (with a zone).

        A time that clocks skip is read by the clock before: 02:30 is 03:30 if they are set forward by an hour
        at 02:00. One that comes twice is the earlier one.
        """
        if self.deadline is None:
            return None
        day, time, zone = _DEADLINE.fullmatch(self.deadline).groups()
        local = start.astimezone(ZoneInfo(zone))
        moment = datetime.strptime(f"{day or local.date()} {time}", "%Y-%m-%d %H:%M")
        deadline = _in_utc(moment, zone)
        return _in_utc(moment + timedelta(days=1), zone) if day is None and deadline <= start else deadline


def _in_utc(moment: datetime, zone: str) -> datetime:
    return moment.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
