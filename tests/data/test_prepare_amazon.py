"""`data prepare amazon-books` on small files of 2014, 2018 and 2023: filters, duplicates, formats."""

import json
import random

import pytest
from paper_files import prepare, prepared, product, review, table, text_file

from dare_job.data.input.prepare import read_amazon
from dare_job.data.paper import splits

DAY = 86_400
BEGAN = 1_300_000_000 - 1_300_000_000 % DAY  # Amazon's times are days
ITEMS = [f"00000000{number:02}" for number in range(1, 13)]  # ten characters
USERS = [f"A{number:012}" for number in range(1, 9)]

pytestmark = pytest.mark.usefixtures("spark")


def rows(seed: int = 1, users: int = 8) -> list[tuple[str, str, float, int]]:
    """Every user with every item, on different days, so that any filter of this size keeps them."""
    draw = random.Random(seed)
    return [(user, item, float(draw.choice([2, 4, 5, 5])), BEGAN + DAY * day) for user in USERS[:users]
            for item, day in zip(ITEMS, draw.sample(range(400), len(ITEMS)), strict=True)]


ROWS = rows()


def files(folder, lines, metadata=None):
    reviews = text_file(folder / "Books.json.gz", lines)
    meta = text_file(folder / "meta_Books.json.gz", metadata or [product(item) for item in ITEMS])
    return ["--reviews", reviews, "--meta", meta, "--save", folder / "out"]


def interactions(folder) -> set[tuple]:
    return {(row["user_id"], row["item_id"], row["rating"], row["timestamp"])
            for row in table(folder, "interactions")}


def core(rows, min_user, min_item) -> set[tuple]:
    """The k-core by taking away one row at a time."""
    kept = set(rows)
    while True:
        users, items = ([row[place] for row in kept] for place in (0, 1))
        weak = next((row for row in kept if users.count(row[0]) < min_user or items.count(row[1]) < min_item),
                    None)
        if weak is None:
            return kept
        kept.remove(weak)


def cascade() -> list[tuple[str, str]]:
    """Users 6 to 8 go first; then the last item is too rare; then user 5, who had it, has too few."""
    full = [row[:2] for row in ROWS if row[0] in USERS[:4] and row[1] in ITEMS[:6]]
    fifth = [(USERS[4], item) for item in [*ITEMS[:4], ITEMS[6]]]
    return [*full, *fifth, *((user, ITEMS[6]) for user in USERS[5:8])]


def drawn(seed: int) -> list[tuple[str, str]]:
    draw = random.Random(seed)
    return sorted({(f"u{draw.randrange(16)}", f"i{draw.randrange(14)}") for _ in range(75)})


@pytest.mark.parametrize(("pairs", "least", "counts"), [
    (cascade(), (5, 4), [29, 28, 24, 24]), (drawn(9), (4, 5), None),
    pytest.param(drawn(5), (2, 3), None, marks=pytest.mark.slow)])
def test_the_filter_goes_on_until_nothing_changes(spark, pairs, least, counts):
    table = spark.createDataFrame(pairs, "user_id string, item_id string")
    kept, rounds = splits.k_core(table, *least, lambda found: found.localCheckpoint())
    assert {tuple(row) for row in kept.collect()} == core(pairs, *least)
    assert rounds == (counts or sorted(rounds, reverse=True)) and rounds[-1] == kept.count()


@pytest.mark.slow
def test_what_cannot_be_used_is_counted_and_the_first_bad_line_named(tmp_path):
    user, item = ROWS[0][:2]
    again = [review(user, item, 1.0, BEGAN - DAY), review(user, item, 3.0, BEGAN + 900 * DAY)]
    useless = [review(user, "0000000099"), review(user, "0000000098"), review(user, ITEMS[1], None)]
    lines = [*[review(*row) for row in ROWS[:3]], '{"overall": 5.0, "reviewerID": ',
             *[review(*row) for row in ROWS[3:]], *again, *useless]
    metadata = [product(item) for item in ITEMS] + [product("0000000098", "  ")]
    arguments = files(tmp_path, lines, metadata)
    code, printed, err = prepare("amazon-books", *arguments, "--min-user", 1, "--min-item", 1)
    assert code == 0, err
    assert "invalid lines: 1 (the first: Books.json.gz:4, not a JSON object)" in err
    assert "49,391" in err and "78,318" in err and "5,002,043" in err
    said = json.loads(printed.splitlines()[-1])
    assert said["dropped"] == {"unrated": 1, "untitled": 2, "repeated": 2}
    assert interactions(tmp_path / "out") == {*ROWS[1:], (user, item, 3.0, BEGAN + 900 * DAY)}
    code, _, err = prepare("amazon-books", *arguments[:4], "--save", tmp_path / "other",
                           "--set", "input.max_reject_share=0.005")
    assert code == 4 and "max_reject_share = 0.005: not a JSON object (1 rows, first Books.json.gz:4: " in err


@pytest.mark.slow
def test_all_ratings_and_items_without_titles_can_be_kept_and_only_the_best_rating_is_positive(tmp_path):
    """A user of seven interactions is filtered."""
    user, item = ROWS[0][:2]
    more = [(user, item, 1.0, BEGAN - DAY), *((who, "0000000099", 4.0, BEGAN) for who in USERS)]
    weak = [("A999", item, 5.0, BEGAN) for item in ITEMS[:7]]
    arguments = files(tmp_path, [review(*row) for row in [*ROWS, *more, *weak]])
    said = prepared("amazon-books", *arguments, "--min-user", 8, "--min-item", 8, "--duplicates", "all",
                    "--untitled", "keep")
    out = tmp_path / "out"
    assert interactions(out) == {*ROWS, *more} == core([*ROWS, *more, *weak], 8, 8)
    assert said["core_rounds"] == [len(ROWS) + len(more)] * 2 and said["options"]["min_user"] == 8
    assert (said["counts"]["users"], said["counts"]["items"]) == (len(USERS), len(ITEMS) + 1)
    assert sum(said["dropped"].values()) == 0
    titles = {row["item_id"]: row["title"] for row in table(out, "items")}
    assert titles.pop("0000000099") is None and set(titles.values()) == {"A title"}
    assert dict(table(out, "items")[0]["attributes"]) == {
        "category": "Books", "subcategory": "Travel", "brand": "A. Writer"}
    found = [row for part in ("train", "valid", "test") for row in table(out, f"ctr/{part}")]
    assert {(row["rating"], row["label"]) for row in found} == {(2.0, 0), (4.0, 0), (5.0, 1)}
    assert said["counts"]["positive"] == sum(row[2] == 5 for row in ROWS)


@pytest.mark.parametrize("year", ["2014 csv", "2018 csv", "2023 csv", "2014 json", "2023 json"])
def test_every_year_and_shape_of_the_reviews_is_read(spark, tmp_path, year):
    metadata = [product(item, "Café") for item in ITEMS]
    if year == "2014 json":
        lines = [str({"reviewerID": user, "asin": item, "overall": rating, "unixReviewTime": second})
                 for user, item, rating, second in ROWS]
        metadata = [str({"asin": item, "title": "Café", "categories": [["Books"]], "imUrl": None})
                    for item in ITEMS]
    elif year == "2023 json":
        lines = [json.dumps({"user_id": user, "asin": "B000000000", "parent_asin": item, "rating": rating,
                             "timestamp": second * 1000 + 7}) for user, item, rating, second in ROWS]
    else:
        order = {"2014": "{0},{1},{2},{3}", "2018": "{1},{0},{2},{3}", "2023": "{0},{1},{2},{3}007"}[year[:4]]
        lines = [order.format(*row) for row in ROWS]
        lines[:0] = ["user_id,parent_asin,rating,timestamp"] if year == "2023 csv" else []
    suffix = ".csv" if year.endswith("csv") else ".jsonl.gz"
    reviews = text_file(tmp_path / f"Books{suffix}", lines)
    meta = text_file(tmp_path / "meta_Books.json", metadata)
    counts = read_amazon(reviews, meta, tmp_path / "out", 0.0, spark)
    assert (counts.interactions, counts.items, counts.broken) == (len(ROWS), len(ITEMS), 0)
    assert interactions(tmp_path / "out") == set(ROWS)
    assert {row["title"] for row in table(tmp_path / "out", "items")} == {"Café"}


def test_files_given_for_one_another_and_broken_ones_are_named(tmp_path):
    reviews, meta = files(tmp_path, [review(*row) for row in ROWS])[1:4:2]
    torn = tmp_path / "torn.json.gz"
    torn.write_bytes(b"\x1f\x8b no gzip")
    cut = tmp_path / "cut.json.gz"
    draw = random.Random(0)  # what cannot be packed, so that the cut is far behind the first lines
    many = [review(str(draw.getrandbits(64)), ITEMS[0]) for _ in range(5000)]
    cut.write_bytes(text_file(tmp_path / "whole.json.gz", many).read_bytes()[:-100])
    strange = text_file(tmp_path / "strange.csv", ["a,b,c,d"])
    for given, message in (
            ((meta, reviews), f"{reviews} is not Amazon metadata"),
            ((meta, meta), f"{meta} has no Amazon reviews"),
            ((strange, meta), f"{strange} is not a csv of Amazon ratings"),
            ((torn, meta), f"{torn} is damaged"),
            ((cut, meta), f"{cut} is damaged"),
            ((tmp_path / "none.json", meta), "none.json: no such file or folder; give a file such as Books"),
            ((tmp_path, meta), f"--reviews {tmp_path} is not a file such as Books.json.gz")):
        code, _, err = prepare("amazon-books", "--reviews", given[0], "--meta", given[1],
                               "--save", tmp_path / "out")
        assert code == 4 and message in err
        assert not (tmp_path / "out").exists()
