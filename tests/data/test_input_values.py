"""Times, ids, ratings, titles and attributes as files have them."""

import json
import re
import sys
import unicodedata
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from input_rows import EVENT, NOON, events, put, read, text

from dare_job.config.settings import InputSettings, JobConfig
from dare_job.data.input import guess
from dare_job.data.input.cleaning import clean
from dare_job.data.inspect import inspect
from dare_job.errors import DataError


@pytest.mark.parametrize(("column", "settings"), [
    ([NOON], {}), ([float(NOON)], {}), ([str(NOON)], {}), ([Decimal(NOON)], {}),
    ([NOON * 1000], {"time": "ms"}), ([NOON * 10**6 + 7], {"time": "us"}), ([NOON * 10**9], {"time": "ns"}),
    ([str(NOON * 1000)], {"time": "ms"}), ([NOON / 86400], {"time": "d"}),
    (pa.array([datetime(2023, 11, 14, 12)], pa.timestamp("ns")), {}),
    (pa.array([datetime(2023, 11, 14, 12, tzinfo=UTC)], pa.timestamp("ms", "Asia/Tokyo")), {}),
    (["2023-11-14 12:00:00"], {}), (["2023-11-14T12:00:00Z"], {}), (["2023-11-14T13:00:00.5+01:00"], {}),
    (["14.11.2023 12:00"], {"time": "%d.%m.%Y %H:%M"}), (["11/14/2023 12:00:00 PM"],
                                                         {"time": "%m/%d/%Y %I:%M:%S %p"}),
    (["Tue Nov 14 05:00:00 -0700 2023"], {"time": "%a %b %d %H:%M:%S %z %Y"}),
    (["2023-11-14 13:00:00"], {"time_zone": "Europe/Berlin"}),
    (pa.array([datetime(2023, 11, 14, 13)]), {"time_zone": "Europe/Berlin"}),
    (pa.array(["2023-11-14 12:00:00"]).dictionary_encode(), {})])
def test_times_of_every_kind_are_seconds(tmp_path, column, settings):
    assert events(tmp_path, column, **settings) == ([NOON], [])


def test_dates_are_the_first_second_of_the_day_in_their_zone(tmp_path):
    assert events(tmp_path, pa.array([date(2023, 11, 14)]))[0] == [1_699_920_000]
    assert events(tmp_path, ["2023-11-14"])[0] == [1_699_920_000]
    assert events(tmp_path, ["2023-11-14"], time_zone="Asia/Tokyo")[0] == [1_699_920_000 - 9 * 3600]
    assert events(tmp_path, pa.array([datetime(1969, 12, 31, 23, 59, 59, 500_000)]))[1] == [
        "timestamp is not in seconds from 1970 to 2100"]


def test_times_that_are_none_are_problems(tmp_path):
    assert events(tmp_path, ["soon", "", "2023-02-30", None, " NaN "]) == ([], [
        "timestamp is neither a number nor a date as 2026-01-31 10:00:00", "timestamp is missing",
        "timestamp is neither a number nor a date as 2026-01-31 10:00:00", *["timestamp is missing"] * 2])
    assert events(tmp_path, ["2023-11-14"], time="%d.%m.%Y")[1] == ["timestamp is not of the format %d.%m.%Y"]
    assert events(tmp_path, [True])[1] == ["timestamp is bool, no number"]
    assert events(tmp_path, [NOON * 1000])[1] == ["timestamp is not in seconds from 1970 to 2100"]


def test_int96_timestamps_of_spark(tmp_path):
    """A time of the year 2600 was read as one of 2015."""
    folder = tmp_path / "in"
    folder.mkdir()
    for moment, expected in ((datetime(2023, 11, 14, 12), [NOON]), (datetime(2600, 11, 14), [])):
        times = pa.array([moment], pa.timestamp("us"))
        pq.write_table(pa.table({**EVENT, "timestamp": times}), folder / "interactions.parquet",
                       use_deprecated_int96_timestamps=True)
        found = read(folder, tmp_path)
        assert [row["timestamp"] for row in found["interactions"]] == expected
    assert found["bad interactions"] == [(1, "timestamp is not in seconds from 1970 to 2100")]


def test_ids_of_every_type_are_text(tmp_path):
    name = UUID("12345678123456781234567812345678")
    for column, expected in (([7], "7"), ([7.0], "7"), ([Decimal("7")], "7"), ([b"x"], "x"), (["007"], "007"),
                             (pa.array([name.bytes], pa.uuid()), str(name)),
                             ([date(2020, 1, 2)], "2020-01-02"),
                             (pa.array([name.bytes], pa.binary(16)), name.hex), ([name.bytes], name.hex),
                             (pa.array([b"B0000000000000A1"], pa.binary(16)), "B0000000000000A1")):
        folder = put(tmp_path / "in", "interactions.parquet", **{**EVENT, "user_id": column})
        assert read(folder, tmp_path)["interactions"][0]["user_id"] == expected
    folder = put(tmp_path / "in", "interactions.parquet", **{**EVENT, "user_id": [True]})
    assert read(folder, tmp_path)["bad interactions"] == [(1, "user_id is bool, no id")]


def test_what_pandas_writes(tmp_path):
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    frame = pd.DataFrame({"item_id": ["b", "a"], "title": ["B", "A"], "year": [None, 1999],
                          "added": pd.to_datetime(["2024-01-01"] * 2), "tags": [["x", "y"], None]}, index=[7,
                                                                                                           3])
    frame.to_parquet(folder / "items.parquet")
    found = read(folder, tmp_path, tables={"items": {"attributes": "all"}})["items"]
    assert [item["attributes"] for item in found] == [
        {"added": "2024-01-01", "tags": "x, y"}, {"year": "1999", "added": "2024-01-01"}]


def test_ratings_with_a_decimal_comma(tmp_path):
    marks = ["4,5", "1.234,5", "-0,5", "3", "", "4.5", "1,234.5", "1,2,3"]
    folder = text(tmp_path / "in", "interactions.csv", "user_id;item_id;rating;timestamp",
                  *[f"u;a;{mark};{NOON}" for mark in marks])
    found = read(folder, tmp_path, tables={"interactions": {"decimal": "comma", "separator": ";"}})
    assert [row["rating"] for row in found["interactions"]] == [4.5, 1234.5, -0.5, 3.0, None]
    assert found["bad interactions"] == [(line, "rating is not a number") for line in (7, 8, 9)]


def test_json_lines_and_nested_values(tmp_path):
    folder = text(tmp_path / "in", "interactions.jsonl.gz", json.dumps({"user_id": 1, "item_id": "a",
                                                                        "timestamp": NOON}),
                  "{'user_id': 2, 'item_id': 'a', 'timestamp': '2023-11-14'}", "[1]", "")
    text(folder, "items.jsonl", json.dumps({"item_id": "a", "title": "A", "genres": [{"id": 1,
                                                                                      "name": "Drama"}],
                                            "more": {"x": 1}, "kinds": "['x', 'y']"}))
    found = read(folder, tmp_path, tables={"items": {"attributes": ["genres", "more", "kinds"]}})
    assert [row["user_id"] for row in found["interactions"]] == ["1", "2"]
    assert found["bad interactions"] == [(3, "not a JSON object")]
    assert found["items"][0]["attributes"] == {"genres": "Drama", "kinds": "x, y"}


def test_text_of_a_wrong_encoding_is_repaired_and_right_text_is_left_alone():
    for given, repaired in (("caf\u00c3\u00a9", "café"),
                           ("na\u00c3\u00afve \u00e2\u20ac\u0153q\u00e2\u20ac\x9d", "naïve \u201cq\u201d"),
                           ("\x93q\x94", "\u201cq\u201d"), ("5\u00c2\u00a3", "5£")):
        assert clean(given) == repaired
    for given in ("NESCAFÉ® Gold Blend", "\u201eViel Spaß\u201c", "CAFÉ\u2019S", "ROSÉ\u2122",
                 "\u201eMENÜ\u201c", "Ü\u201330",
                 "a?x&para=1&copy", "MANHÃ\u2122", "São Paulo, coração", "Ângela", "I <3 U & me",
                 "A<|eos|>B"):
        assert clean(given) == given


def test_a_date_without_separators_is_no_second_of_1970(tmp_path):
    day = 1_699_920_000
    for column in ([20231114], ["20231114"], [20231114.0]):
        assert events(tmp_path, column)[1] == ["timestamp is a date such as 20260131, not seconds"]
        assert events(tmp_path, column, time="%Y%m%d") == ([day], [])
    assert guess.time_format(pa.array([20231114, 20231231])) == "%Y%m%d"
    assert events(tmp_path, [7, 978_300_275])[1] == []  # an order, or real seconds
    for column in ([2023111405], ["2023111405"]):  # with an hour; as seconds of the year 2034
        assert events(tmp_path, column)[1] == ["timestamp is a date such as 20260131, not seconds"]
        assert events(tmp_path, column, time="%Y%m%d%H") == ([day + 5 * 3600], [])
    assert guess.time_format(pa.array([2023111405, 2023123123])) == "%Y%m%d%H"
    for form, given in (("%Y%m%d", "2023111"), ("%Y%m%d%H", "202311145"), ("%H%M %d.%m.%Y", "115 4.11.2023")):
        assert events(tmp_path, [given], time=form)[1] == [f"timestamp is not of the format {form}"]
    assert events(tmp_path, ["20231114 5:00"], time="%Y%m%d %H:%M") == ([day + 5 * 3600], [])
    assert events(tmp_path, ["20231114.0"], time="%Y%m%d") == ([day], [])  # as pandas writes it beside a gap


@pytest.mark.parametrize(("unit", "digits"), [("ms", 3), ("us", 6), ("ns", 9)])
def test_the_last_moment_of_a_second_is_of_that_second(tmp_path, unit, digits):
    """Nanoseconds in text or integers were rounded up, to the next day at midnight."""
    last = NOON * 10**digits + 10**digits - 1
    for column in ([last], [str(last)], [f"+{last}"]):
        assert events(tmp_path, column, time=unit) == ([NOON], [])
    assert events(tmp_path, [f"{NOON * 1000}.0", "1e3"], time="ms") == ([NOON, 1], [])


def test_a_time_that_the_clocks_skip_is_the_same_in_every_format(tmp_path):
    skipped, doubled = datetime(2024, 3, 31, 2, 30), datetime(2024, 10, 27, 2, 30)
    for moment, utc in ((skipped, 1_711_848_600), (doubled, 1_729_989_000)):
        for unit in ("s", "us", "ns"):
            assert events(tmp_path, pa.array([moment], pa.timestamp(unit)), time_zone="Europe/Berlin") == (
                [utc], [])
        assert events(tmp_path, [str(moment)], time_zone="Europe/Berlin") == ([utc], [])


def test_times_that_python_does_not_have_are_rejected(tmp_path):
    far = pa.array([2**60, NOON * 1000], pa.int64()).cast(pa.timestamp("ms"))
    assert events(tmp_path, far) == ([NOON], ["timestamp is not in seconds from 1970 to 2100"])


def test_attributes_in_json_and_names_that_would_forge_a_line(tmp_path):
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    text(folder, "items.jsonl", json.dumps({"item_id": "a", "title": ["A", "B"],
                                            "attributes": {"genre": "Drama"}}),
         json.dumps({"item_id": {"$oid": "b"}, "title": "NULL", "x\n2. Fake": "y"}))
    assert read(folder, tmp_path)["items"] == [
        {"item_id": "a", "title": "A, B", "attributes": {"genre": "Drama"}},
        {"item_id": "b", "title": None, "attributes": {}}]
    found = read(folder, tmp_path, tables={"items": {"attributes": "all",
                                                     "all_but": ["attributes"]}})["items"]
    assert found[1]["attributes"] == {"x 2. Fake": "y"}
    (folder / "items.jsonl").unlink()
    text(folder, "items.csv", ",item_id,title,colour", "0,a,A,red")
    found = read(folder, tmp_path, tables={"items": {"attributes": "all"}})["items"]
    assert found[0]["attributes"] == {"colour": "red"}


def test_ids_that_pandas_made_floats_are_the_same_in_text(tmp_path):
    folder = text(tmp_path / "in", "interactions.csv", "user_id,item_id,timestamp", f"7.0,1.0,{NOON}",
                  f"NULL,1,{NOON}")
    found = read(folder, tmp_path)
    assert [(row["user_id"], row["item_id"]) for row in found["interactions"]] == [("7", "1")]
    assert found["bad interactions"] == [(3, "user_id is missing")]


def test_ratings_that_are_none_are_none_in_every_format(tmp_path):
    """NaN in a Parquet file, where pandas has no value, rejected the interaction."""
    ratings = [4.0, float("nan"), None, float("inf"), 1e40]  # the last one is infinite in float32
    columns = {name: values * 5 for name, values in EVENT.items()}
    put(tmp_path / "a", "interactions.parquet", **columns, rating=ratings)
    text(tmp_path / "b", "interactions.csv", "user_id,item_id,timestamp,rating",
         *[f"u,a,{NOON},{rating}" for rating in ratings])
    for folder in ("a", "b"):
        found = read(tmp_path / folder, tmp_path)
        assert [row["rating"] for row in found["interactions"]] == [4.0, None, None]
        assert found["bad interactions"][1][1] == "rating is not a finite number"


def test_names_in_a_map_are_one_line_of_clean_text(tmp_path):
    """Only control characters were taken from them, so that a name could begin a line of the prompt."""
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    names = ["a\u2028b", "c\u2029d", "e\u0085f", "\u202eg", "h&amp;i", "", "\u200b", "j"]
    put(folder, "items.parquet", item_id=["a"], title=["A"], attributes=pa.array(
        [[(name, "x") for name in names]], pa.map_(pa.string(), pa.string())))
    found = read(folder, tmp_path)["items"][0]["attributes"]
    assert list(found) == ["a b", "c d", "e\u2026f", "g", "h&i", "j"]


def test_attributes_may_be_json_in_any_format(tmp_path):
    """Parquet files with them were refused."""
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    column = pa.array(['{"genre": "Drama"}', None, "red"])
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        put(folder, "items.parquet", item_id=["a", "b", "c"], title=["A", "B", "C"],
            attributes=column.cast(kind))
        found = read(folder, tmp_path)["items"]
        assert [item["attributes"] for item in found] == [{"genre": "Drama"}, {}, {}]
    put(folder, "items.parquet", item_id=["a"], title=["A"], attributes=[["red"]])
    with pytest.raises(DataError, match=r"attributes must be a map, a struct or JSON objects, not list"):
        read(folder, tmp_path)


def test_times_that_are_too_large_are_not_called_missing(tmp_path):
    outside = "timestamp is not in seconds from 1970 to 2100"
    assert events(tmp_path, ["9" * 20])[1] == [outside]
    assert events(tmp_path, [float("inf"), -float("inf"), 1e300])[1] == [outside] * 3
    assert events(tmp_path, [float("nan")])[1] == ["timestamp is missing"]


def test_only_text_and_numbers_are_ids_in_json(tmp_path):
    """A boolean, a list and an object became ids, which Parquet rejects."""
    ids = [True, ["u"], {"x": 1}, {"$oid": "o"}, "[tag] true", 7]
    folder = text(tmp_path / "in", "interactions.jsonl", *[
        json.dumps({"user": each, "item_id": "a", "timestamp": 1}) for each in ids])
    found = read(folder, tmp_path, tables={"interactions": {"columns": {"user_id": "user"}}})
    assert [row["user_id"] for row in found["interactions"]] == ["o", "[tag] true", "7"]
    assert [problem for _, problem in found["bad interactions"]] == [
        f"user_id is {kind}, no id" for kind in ("bool", "list", "dict")]


def test_blanks_at_the_ends_of_an_id_are_no_part_of_it(tmp_path):
    odd = ["a", "\xa0a", "a\t", "\u200ba\ufeff", " a\u2003", "a b"]
    put(tmp_path / "a", "interactions.parquet", user_id=odd, item_id=["i"] * 6, timestamp=[1] * 6)
    text(tmp_path / "b", "interactions.csv", "user_id,item_id,timestamp", *[f"{each},i,1" for each in odd])
    for folder in ("a", "b"):
        rows = read(tmp_path / folder, tmp_path)["interactions"]
        assert [row["user_id"] for row in rows] == [*["a"] * 5, "a b"]


def test_names_that_are_equal_after_cleaning_are_all_kept(tmp_path):
    """The second field of a struct took the place of the first."""
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    put(folder, "items.parquet", item_id=["a"], title=["A"],
        attributes=[{"x y": "1", "x\ny": "2", " x y": "3"}])
    assert read(folder, tmp_path)["items"][0]["attributes"] == {"x y": "1", "x y #2": "2", "x y #3": "3"}


def test_bytes_of_different_people_are_different_ids(tmp_path):
    """Bytes that are no UTF-8 all became U+FFFD, and those of 16 letters UUIDs."""
    fixed = [b"\xc8\xff\0\1", b"\xc9\xff\0\1", b"\nabc", b"abc\n", b" abc", b"abc "]
    for kind, column in ((pa.binary(4), fixed),
                         (pa.binary(), [b"\xff", b"\xfe", b"\0", b"\1", b"a\t", b"a"])):
        folder = put(tmp_path / "in", "interactions.parquet", user_id=pa.array(column, kind),
                     item_id=["a"] * 6, timestamp=[NOON] * 6)
        users = [row["user_id"] for row in read(folder, tmp_path)["interactions"]]
        assert len(set(users)) == 6 and all(user.isascii() and user.isprintable() for user in users)
        assert users[0] == column[0].hex()
    put(folder, "items.parquet", item_id=["a"], title=["A"], genres=pa.array(
        [[b"Documentary Film", b"Drame fran\xc3\xa7ais", b"\xff"]], pa.list_(pa.binary())))
    found = read(folder, tmp_path, tables={"items": {"attributes": ["genres"]}})["items"]
    assert found[0]["attributes"] == {"genres": "Documentary Film, Drame fran\u00e7ais, ff"}


@pytest.mark.parametrize(("written", "shown"), [
    ("['Drama' 'Crime']", "Drama, Crime"), ("['Drama'\n \"it's\"]", "Drama, it's"), ("['', 'x' '']", "x"),
    ("[b'x' b'y']", "x, y"), ("{'War', 'Art', 'Pop'}", "Art, Pop, War"), ("set()", None),
    ("('b', 'a')", "b, a"),
    (r'{Drama,"Science \"Fiction",NULL}', 'Drama, Science "Fiction'), ("{10,9}", "10, 9"),
    ('["b", "a"]', "b, a"), ("{'name': 'x'}", "x"),
    *[(text, text) for text in ("(1,234)", "[1 2 3]", "{curly, text}", "[sic]", "['a', 'b'", "[open('x')]",
                                "(500) Days", "['x', nan]")]])
def test_lists_as_text_are_their_entries_or_stay_as_they_are(tmp_path, written, shown):
    """Python joined what NumPy wrote without commas; sets had another order in every process. Titles stay."""
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    put(folder, "items.parquet", item_id=["a"], title=[written], genres=[written])
    item, = read(folder, tmp_path, tables={"items": {"attributes": ["genres"]}})["items"]
    assert item["attributes"] == ({"genres": shown} if shown else {})
    assert item["title"] == " ".join(written.split())


def test_floats_that_lost_digits_are_no_ids(tmp_path):
    """Two users whose ids were rounded to one number became one user."""
    lost = "user_id is a float that may have lost digits: export ids as integers or text"
    for column, users, bad in ((pa.array([1234567890123456789.0, 2.0**53, 1 - 2.0**53]),
                                ["-9007199254740991"], 2),
                               (pa.array([2.0**24, 2.0**24 - 1], pa.float32()), ["16777215"], 1),
                               (["1.2345678901234568e+18", "1.23457E+11", "9007199254740993.0", "7.0", "1e5"],
                                ["7", "1e5"], 3)):
        folder = put(tmp_path / "in", "interactions.parquet", user_id=column, item_id=["a"] * len(column),
                     timestamp=[NOON] * len(column))
        found = read(folder, tmp_path)
        assert [row["user_id"] for row in found["interactions"]] == users
        assert [problem for _, problem in found["bad interactions"]] == [lost] * bad


def test_words_for_a_missing_value_are_no_ids(tmp_path):
    """All anonymous events were those of a user None. A title may be None."""
    words = ["None", "nan", "NaT", "<NA>", "null", "", "undefined", "(null)", "N/A", "#N/A"]
    folder = text(tmp_path / "in", "interactions.csv", "user_id,item_id,timestamp",
                  *[f"{word},a,{NOON}" for word in words], f"none-1,a,{NOON}")
    text(folder, "items.csv", "item_id,title,genre", "a,None,None", "b,NaT,NaT")
    found = read(folder, tmp_path, tables={"items": {"attributes": ["genre"]}})
    assert [row["user_id"] for row in found["interactions"]] == ["none-1"]
    assert {problem for _, problem in found["bad interactions"]} == {"user_id is missing"}
    assert [(item["title"], item["attributes"]) for item in found["items"]] == [("None", {}), (None, {})]


def test_words_that_may_stand_for_a_missing_id_are_counted(tmp_path, caplog):
    folder = text(tmp_path / "in", "interactions.csv", "user_id,item_id,timestamp", f"NA,a,{NOON}",
                  f"u,a,{NOON}")
    inspect(JobConfig(input=InputSettings(path=str(folder))))
    assert "have the user_id NA" not in caplog.text  # it may be one
    text(folder, "interactions.csv", "user_id,item_id,timestamp", f"NA,a,{NOON}", f"NA,NA,{NOON}")
    found = inspect(JobConfig(input=InputSettings(path=str(folder))))
    assert found["tables"]["interactions"]["rows"] == 2 and not found["tables"]["interactions"]["rejected"]
    assert "interactions: 2 rows have the user_id NA, which may stand for a missing value" in caplog.text
    assert "item_id NA" not in caplog.text


@pytest.mark.parametrize(("name", "lines", "settings", "shown"), [
    ("items.jsonl", [r'{"item_id": "a", "attributes": {"genre": "fun \ud83d"}}'], {},
     {"genre": "fun \ufffd"}),
    ("items.jsonl", [r'{"item_id": "a", "tags": ["fun \ud83d", "\ud83d\ude00"]}'], {"attributes": "all"},
     {"tags": "fun \ufffd, \U0001f600"}),
    ("items.jsonl", [r'{"item_id": "a", "k\ud83d": "v"}'], {"attributes": "all"}, {"k\ufffd": "v"}),
    ("items.csv", ["item_id,title,tags", r'a,A,"[""fun \ud83d""]"'], {"attributes": ["tags"]},
     {"tags": "fun \ufffd"}),
    ("items.csv", ["item_id,title,attributes", r'a,A,"{""g"": ""fun \ud83d""}"'], {}, {"g": "fun \ufffd"}),
    ("items.csv", ["item_id,title,attributes", r'a,A,"{""k\ud83d"": ""v""}"'], {}, {"k\ufffd": "v"})])
def test_half_an_emoji_costs_no_more_than_itself(tmp_path, name, lines, settings, shown):
    """A writer of JSON cut it in two, and Arrow ended the run with a traceback."""
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    text(folder, name, *lines)
    config = InputSettings(path=str(folder), tables={"items": settings})
    assert read(folder, tmp_path, tables={"items": settings})["items"][0]["attributes"] == shown
    assert not inspect(JobConfig(input=config))["tables"]["items"]["rejected"]


def test_characters_that_nothing_shows_are_left_out(tmp_path):
    others = "\u034f\u115f\u1160\u17b4\u180b\u2065\u3164\ufe0f\uffa0\U000e0100\U000e01ef"
    # signs that stand around digits or hieroglyphs
    seen = re.compile("[\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
                      "\U00013430-\U0001345f]")
    letters = map(chr, range(sys.maxunicode + 1))
    formats = [letter for letter in letters if unicodedata.category(letter) == "Cf"]
    for letter in [*formats, *others]:
        assert clean(f"He{letter}at") == ("Heat" if not seen.match(letter) else f"He{letter}at")
    for joined in ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\U0001f469\u200d\U0001f4bb"):
        assert clean(joined) == joined
    assert clean("\u0645\u200c\u200d\u0645\u200c") == "\u0645\u0645"
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    put(folder, "items.parquet", item_id=["a", "b", "c"],
        title=["\u115f", "\u2800\u3164", "A\U000e0168\u061c"])
    assert [item["title"] for item in read(folder, tmp_path)["items"]] == [None, None, "A"]


def test_a_title_in_json_is_text_a_list_or_an_object_with_a_name(tmp_path):
    folder = put(tmp_path / "in", "interactions.parquet", **EVENT)
    titles = [["A", "B"], {"name": "C"}, "['D', 'E']", {"en": "F"}, [{"en": "G"}], {}, None, 1408]
    text(folder, "items.jsonl", *[json.dumps({"item_id": str(at), "name": title})
                                  for at, title in enumerate(titles)])
    found = read(folder, tmp_path, tables={"items": {"columns": {"title": "name"}}})
    assert [item["title"] for item in found["items"]] == ["A, B", "C", "['D', 'E']", None, None, "1408"]
    reason = "title is an object without a name: a query can read one of its keys as title"
    assert found["bad items"] == [(4, reason), (5, reason)]
