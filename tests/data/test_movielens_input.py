"""MovieLens in each of its published shapes, made here in miniature."""

import gzip
import zipfile

import pyarrow.parquet as pq
import pytest

from dare_job import schemas
from dare_job.config.settings import InputSettings
from dare_job.data.input.prepare import read_input
from dare_job.data.input.source import detected
from dare_job.errors import DataError

RATINGS_1M = ["1::1::5::978300760", "1::2::3::978302109", "2::1::4::978300275", "2::3::1::978824291"]
MOVIES_1M = ["1::Toy Story (1995)::Animation|Children's|Comedy", "2::Misérables, Les (1995)::Drama",
             "3::Aliens: The Return (1986)::(no genres listed)"]
USERS_1M = ["1::F::1::10::48067", "2::M::56::16::70072"]


def put(folder, name, lines, encoding="utf-8"):
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes("".join(line + "\n" for line in lines).encode(encoding))
    return folder


def get(folder, name):
    return pq.read_table(folder / f"{name}.parquet").to_pylist()


def reading(spark, path, into, **settings):
    counts = read_input(InputSettings(path=str(path), **settings), into, spark)
    return counts, *(get(into, name) for name in ("interactions", "users", "items", "rejects"))


def test_colon_files_in_latin_1(spark, tmp_path):
    folder = put(tmp_path / "ml", "ratings.dat", RATINGS_1M)
    put(folder, "movies.dat", MOVIES_1M, "latin-1")
    put(folder, "users.dat", USERS_1M)
    counts, interactions, users, items, rejects = reading(spark, folder, tmp_path / "into")
    assert (counts.format, counts.interactions, counts.users, counts.items) == ("movielens", 4, 2, 3)
    assert {"user_id": "1", "item_id": "2", "rating": 3.0, "timestamp": 978302109} in interactions
    assert {row["item_id"]: row["title"] for row in items}["2"] == "Les Misérables (1995)"
    attributes = {row["item_id"]: dict(row["attributes"]) for row in items}
    assert attributes["1"] == {
        "genre": "Animation", "other_genres": "Children's, Comedy", "year": "1995"}
    assert attributes["3"] == {"year": "1986"}
    assert dict(users[0]["attributes"]) == {
        "gender": "female", "age": "under 18", "occupation": "K-12 student"}
    assert rejects == []


def test_written_tables_keep_the_contract(spark, tmp_path):
    folder = put(put(tmp_path / "ml", "ratings.dat", RATINGS_1M), "movies.dat", MOVIES_1M, "latin-1")
    read_input(InputSettings(path=str(folder)), tmp_path / "into", spark)
    for name, schema in (("interactions", schemas.INTERACTIONS), ("users", schemas.USERS),
                         ("items", schemas.ITEMS), ("rejects", schemas.REJECTS)):
        written = pq.read_table(tmp_path / "into" / f"{name}.parquet")
        assert written.column_names == schema.names
        found, expected = ([str(field.type).split(" (")[0].rstrip(">") for field in one]
                           for one in (written.schema, schema))
        assert found == expected


def test_bad_rows_are_kept_with_line_and_reason(spark, tmp_path):
    bad = ["1::1", "::1::4::978300275", "1::2::six::978300275", "1::2::9::978300275", "1::2::4::soon",
           "1::2::4::", "", "3::1::5::99999999999999"]
    folder = put(tmp_path / "ml", "ratings.dat", RATINGS_1M + bad)
    put(folder, "movies.dat", [*MOVIES_1M, "1::Again (1999)::Drama"], "latin-1")
    counts, interactions, _, items, rejects = reading(spark, folder, tmp_path / "into", max_reject_share=0.9)
    assert (len(interactions), counts.broken, counts.duplicates) == (4, 7, 1)
    found = {(row["source"], row["line"]): row["reason"] for row in rejects}
    assert found == {
        ("ratings.dat", 5): "expected 4 fields, found 2",
        ("ratings.dat", 6): "user_id is missing",
        ("ratings.dat", 7): "rating is not a number",
        ("ratings.dat", 8): "rating is outside 0.5 to 5",
        ("ratings.dat", 9): "timestamp is neither a number nor a date as 2026-01-31 10:00:00",
        ("ratings.dat", 10): "timestamp is missing",
        ("ratings.dat", 12): "timestamp is not in seconds from 1970 to 2100",
        ("movies.dat", 4): "item_id is a duplicate: the first row is kept"}
    assert {row["item_id"]: row["title"] for row in items}["1"] == "Toy Story (1995)"
    assert next(row for row in rejects if row["line"] == 5)["raw"] == "1::1"


def test_too_many_bad_rows_stop_the_run(spark, tmp_path):
    folder = put(put(tmp_path / "ml", "ratings.dat", [*RATINGS_1M, "nonsense"]), "movies.dat", MOVIES_1M)
    with pytest.raises(DataError, match=r"1 of 5 rows of interactions .* = 0.01: expected 4 fields.*"
                                        r"\(1 rows, first ratings.dat:5: 'nonsense'\)"):
        read_input(InputSettings(path=str(folder)), tmp_path / "into", spark)


def test_lines_are_numbered_across_splits(spark, tmp_path):
    user = "a-user-with-a-long-name" * 60
    rows = [f"{user}::{line % 5}::4::9783007{line % 10}0" for line in range(3_100)]
    rows[2_345] = rows[3_099] = "broken"
    folder = put(put(tmp_path / "ml", "ratings.dat", rows), "movies.dat", MOVIES_1M)
    assert (folder / "ratings.dat").stat().st_size > 4 << 20
    counts, interactions, _, _, rejects = reading(spark, folder, tmp_path / "into")
    assert len(interactions) == 3_098
    assert sorted(row["line"] for row in rejects) == [2_346, 3_100]


def test_100k_shape(spark, tmp_path):
    folder = put(tmp_path / "ml-100k", "u.data", ["196\t242\t3\t881250949", "186\t302\t3\t891717742"])
    put(folder, "u.user", ["196|49|M|writer|55105", "186|17|F|student|00000"])
    flags = "|".join("1" if place in (5, 14) else "0" for place in range(19))
    put(folder, "u.item", [f"242|Café, Le (The Tea) (1996)|01-Jan-1996||http://x|{flags}"], "latin-1")
    _, interactions, users, items, _ = reading(spark, folder, tmp_path / "into")
    assert interactions[0] == {"user_id": "196", "item_id": "242", "rating": 3.0, "timestamp": 881250949}
    assert {row["user_id"]: dict(row["attributes"]) for row in users} == {
        "196": {"gender": "male", "age": "45-49", "occupation": "writer"},
        "186": {"gender": "female", "age": "under 18", "occupation": "student"}}
    assert (items[0]["title"], dict(items[0]["attributes"])) == (
        "Le Café (The Tea) (1996)", {"genre": "Comedy", "other_genres": "Romance", "year": "1996"})


def test_films_of_another_shop_are_not_movielens(tmp_path):
    """A table movies.csv was called an incomplete MovieLens set, and no setting helped."""
    folder = put(tmp_path / "shop", "movies.csv", ["movie_id,title,genre", "a,A,Drama"])
    assert detected(put(folder, "watched.csv", ["user_id,movie_id,watched_at", "u,a,2026-01-01"])) is None
    assert detected(put(folder, "movies.csv", ["movieId,title,genres", "1,A,Drama"])) == "movielens"


@pytest.mark.parametrize("zipped", [False, True])
def test_latest_shape_with_quotes(spark, tmp_path, zipped):
    header = "userId,movieId,rating,timestamp"
    folder = put(tmp_path / "ml-latest", "ratings.csv", [header, "1,11,4.5,964982703"])
    put(folder, "movies.csv", ["movieId,title,genres", '11,"American President, The (1995)",Comedy|Drama',
                               '12,"Say ""Cheese"" Ŝtelo (2001)",(no genres listed)'])
    path = folder
    if zipped:
        path = tmp_path / "ml-latest.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for file in folder.iterdir():
                archive.write(file, f"ml-latest/{file.name}")
    _, interactions, users, items, _ = reading(spark, path, tmp_path / "into")
    assert (interactions[0]["rating"], users) == (4.5, [])
    assert {row["item_id"]: row["title"] for row in items} == {
        "11": "The American President (1995)", "12": 'Say "Cheese" Ŝtelo (2001)'}
    assert not (tmp_path / "into" / ".archive").exists()


def ml_1m_without_ratings(tmp_path):
    folder = put(tmp_path / "ml-1m", "movies.dat", MOVIES_1M, "latin-1")
    return put(folder, "users.dat", USERS_1M)


def test_1m_sequences_map_back_to_original_ids(spark, tmp_path):
    folder = ml_1m_without_ratings(tmp_path)
    put(folder, "user_list.txt", ["org_id remap_id", "2 0", "1 1"])
    put(folder, "item_list.txt", ["org_id remap_id title category", '3 0 "Aliens, The (1986)" Action',
                                  '1 1 "Toy Story (1995)" Comedy'])
    (folder / "sequences_full.txt.gz").write_bytes(gzip.compress(b"0 1 0\n1 0 9\n"))
    _, interactions, _, _, rejects = reading(spark, folder, tmp_path / "into", max_reject_share=0.5)
    found = {(row["user_id"], row["item_id"], row["timestamp"]) for row in interactions}
    assert found == {("2", "1", 0), ("2", "3", 1), ("1", "3", 0)}
    assert [(row["reason"], row["raw"]) for row in rejects] == [("item_id is missing", "1 9")]


@pytest.mark.parametrize(("files", "message"), [
    (["movies.dat"], "has movies.dat but no interactions"),
    (["ratings.dat"], "movies.dat is missing"),
    (["ratings.csv"], "movies.csv is missing"),
    (["u.item"], "u.data is missing"),
])
def test_an_incomplete_set_says_what_is_missing(spark, tmp_path, files, message):
    for name in files:
        put(tmp_path / "ml", name, ["userId,movieId,rating,timestamp", *MOVIES_1M])
    with pytest.raises(DataError, match=message):
        read_input(InputSettings(path=str(tmp_path / "ml")), tmp_path / "into", spark)


def test_a_damaged_zip_and_a_strange_folder_are_refused(spark, tmp_path):
    (tmp_path / "x.zip").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(DataError, match="not a readable zip"):
        read_input(InputSettings(path=str(tmp_path / "x.zip")), tmp_path / "into", spark)
    put(tmp_path / "strange", "notes.txt", ["hello"])
    with pytest.raises(DataError, match="no format is recognized"):
        read_input(InputSettings(path=str(tmp_path / "strange")), tmp_path / "into", spark)
    with pytest.raises(DataError, match="no such file"):
        read_input(InputSettings(path=str(tmp_path / "absent")), tmp_path / "into", spark)
