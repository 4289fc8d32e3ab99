"""Converts columns as files have them to times, in the form that ``values`` describes."""

import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import reduce
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from dare_job.data.input import values

UNITS = {"d": 1 / 86400, "s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # units in a second
LATEST_S = 4_102_444_800  # the year 2100; times in milliseconds are far larger
_INTEGER = r"^[+-]?([0-9]{1,18}|[1-8][0-9]{18})$"  # that int64 has
_ADJOINING = re.compile("(?:%[YymdHMSj]){2,}")  # parts of a format of time whose digits nothing divides


def seconds(column: pa.Array, name: str, time: str | None, zone: str) -> values.Checked:
    """Times as whole seconds since 1970 (UTC).

    Parameters
    ----------
    time
        Unit of numbers (a key of UNITS) or format of text (as of strptime). None: seconds, or ISO 8601.
    zone
        Time zone of times without one.
    """
    column = values.plain(column)
    kind = column.type
    if pa.types.is_date(kind):
        column, kind = column.cast(pa.timestamp("s")), pa.timestamp("s")
    if pa.types.is_timestamp(kind):
        return _floor(_instants(column, zone), kind.unit), values.no_problem(column)
    if time is not None and time not in UNITS:  # also of integers, such as 20260131
        return _formatted(column if values.is_text(kind) else values.ids(column, name)[0], name, time, zone)
    if values.is_text(kind):
        return _text_times(column, name, time, zone)
    if pa.types.is_integer(kind):
        instants = _whole_seconds(column.cast(pa.int64(), safe=False), time)
        return instants, _date_problem(instants, name, time)
    number, problem = values.numbers(column, name)
    instants = _in_seconds(number, time)
    return instants, pc.coalesce(problem, _date_problem(instants, name, time))


def _date_problem(number: pa.Array, name: str, time: str | None) -> pa.Array:
    """Where a number is a date without separators, such as 20260131, or has an hour, too, as 2026013110.

    As seconds these would be of August 1970, or of the years 2033 to 2036.
    """
    if time is not None:
        return values.no_problem(number)
    with_hour = pc.greater(number, 1_990_010_000)
    date_part = pc.if_else(with_hour, pc.divide(number, 100), number)
    month, day, hour = _digits(date_part, 100, 10_000), _digits(date_part, 1, 100), _digits(number, 1, 100)
    fits = reduce(pc.and_, (
        pc.greater(date_part, 19_000_100), pc.less(date_part, 21_001_232), pc.greater(month, 0),
        pc.less(month, 13), pc.greater(day, 0), pc.less(day, 32),
        pc.or_(pc.invert(with_hour), pc.less(hour, 24))))
    return values.problem_where(pc.fill_null(fits, False), f"{name} is a date such as 20260131, not seconds")


def _digits(number: pa.Array, low: int, high: int) -> pa.Array:
    """The decimal digits of numbers from ``low`` up to below ``high``."""
    return pc.subtract(pc.divide(number, low), pc.multiply(pc.divide(number, high), high // low))


def _instants(column: pa.Array, zone: str) -> pa.Array:
    """Timestamps in UTC. One that the clocks skip in spring has the offset from before, as in text."""
    if column.type.tz is None and zone != "UTC":
        near = pc.assume_timezone(column, zone, ambiguous="earliest", nonexistent="earliest")
        offset = pc.subtract(pc.local_timestamp(near), near.cast(column.type))
        return pc.subtract(column, offset)
    return column


def _floor(column: pa.Array, unit: str) -> pa.Array:
    """(N,) int64 seconds of timestamps of a unit, rounded down also before 1970."""
    whole, size = column.cast(pa.int64()), int(UNITS[unit])
    if size == 1:
        return whole
    quotient = pc.divide(whole, size)
    below = pc.and_(pc.less(whole, 0), pc.not_equal(pc.multiply(quotient, size), whole))
    return pc.subtract(quotient, below.cast(pa.int64()))


def _whole_seconds(number: pa.Array, time: str | None) -> pa.Array:
    """Seconds of integers of a unit; as floats, those of nanoseconds would be rounded."""
    if time == "d":
        return _in_seconds(number.cast(pa.float64(), safe=False), time)
    return _floor(number, time or "s")


def _in_seconds(number: pa.Array, time: str | None) -> pa.Array:
    """Seconds of numbers of a unit; those of far too large numbers are of a year that no one has."""
    whole = pc.floor(pc.divide(number, float(UNITS[time or "s"])))
    far = pa.scalar(2.0**62)
    return pc.if_else(pc.less(pc.abs(whole), far), whole, far).cast(pa.int64())


def _text_times(column: pa.Array, name: str, unit: str | None, zone: str) -> values.Checked:
    """Numbers, or ISO 8601 where no unit is set."""
    text, none = values.present_text(column), pa.scalar(None, pa.string())
    whole = pc.match_substring_regex(text, _INTEGER)
    number = _whole_seconds(pc.utf8_ltrim(pc.if_else(whole, text, none), "+").cast(pa.int64()), unit)
    rest = pc.if_else(whole, none, text)
    numeric = pc.match_substring_regex(rest, values.NUMBER)
    if pc.any(numeric).as_py():
        parts = pc.utf8_ltrim(pc.if_else(numeric, rest, none), "+").cast(pa.float64())
        number, rest = pc.coalesce(number, _in_seconds(parts, unit)), pc.if_else(numeric, none, rest)
    if rest.null_count == len(rest):
        return number, _date_problem(number, name, unit)
    if unit:
        return number, values.problem_where(pc.is_valid(rest), f"{name} is not a number")
    instants = _parsed(rest, iso_time, zone)
    return pc.coalesce(number, instants), pc.coalesce(_date_problem(number, name, unit), values.problem_where(
        pc.and_(pc.is_valid(rest), pc.is_null(instants)), f"{name} is neither a number nor a date as "
        f"2026-01-31 10:00:00"))


def iso_time(text: str) -> datetime:
    """A time of ISO 8601, also with UTC at its end, as BigQuery writes it."""
    return datetime.fromisoformat(text.removesuffix(" UTC") + "+00:00" if text.endswith(" UTC") else text)


def _formatted(column: pa.Array, name: str, form: str, zone: str) -> values.Checked:
    text = values.present_text(column)
    if "." not in form:
        text = pc.replace_substring_regex(text, r"^(\d+)\.0+$", r"\1")  # as pandas writes integers with gaps
    adjoining = _ADJOINING.search(form)

    def parse(value: str) -> datetime:
        moment = datetime.strptime(value, form)
        if adjoining and moment.strftime(adjoining[0]) not in value:
            raise ValueError("digits are missing")  # strptime takes 2023111 as 2023-11-01
        return moment

    instants = _parsed(text, parse, zone)
    broken = pc.and_(pc.is_valid(text), pc.is_null(instants))
    return instants, values.problem_where(broken, f"{name} is not of the format {form}")


def _parsed(text: pa.Array, parse: Callable[[str], datetime], zone: str) -> pa.Array:
    """Seconds; each different text is parsed once."""
    encoded = text.dictionary_encode()
    offset = ZoneInfo(zone) if zone != "UTC" else UTC
    instants = [_instant(value, parse, offset) for value in encoded.dictionary.to_pylist()]
    return pa.array(instants, pa.int64()).take(encoded.indices)


def _instant(value: str, parse: Callable[[str], datetime], zone) -> int | None:
    try:
        moment = parse(value)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=zone)
        return math.floor(moment.timestamp())
    except (ValueError, OverflowError):
        return None
