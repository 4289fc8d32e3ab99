"""Reads MovieLens in its published formats, and ML-1M as sequences of items without ratings.

| files | set | notes |
| --- | --- | --- |
| ratings.dat movies.dat [users.dat] | 1M, 10M | fields between `::`, Latin-1 |
| u.data u.item [u.user] | 100K | tabs and bars, Latin-1 |
| ratings.csv movies.csv | 20M, 25M, 32M, latest | quoted csv |
| sequences_full.txt[.gz] item_list.txt user_list.txt | 1M | one line per user, items in time order |

The last one has neither ratings nor times: the timestamp is the position in the user's line. It is used only
if there is movies.dat but no ratings.dat.
"""

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from dare_job.data.readers.casts import Source
from dare_job.data.readers.text import attribute_map, lines, split_csv, split_fields
from dare_job.data.titles import REWRITES
from dare_job.errors import DataError
from dare_job.storage.paths import AnyPath

_RATINGS = ("ratings.dat", "u.data", "ratings.csv")
_ITEMS = ("movies.dat", "u.item", "movies.csv")
SEQUENCES = ("sequences_full.txt", "sequences_full.txt.gz")
MARKS = (*_RATINGS, *_ITEMS, *SEQUENCES)  # a folder with one of these is MovieLens
RATING_FIELDS = ["user_id", "item_id", "rating", "timestamp"]
RANGE = (0.5, 5.0)

AGES = {"1": "under 18", "18": "18-24", "25": "25-34", "35": "35-44", "45": "45-49", "50": "50-55",
         "56": "56 and over"}
OCCUPATIONS = {str(code): name for code, name in enumerate((
    "other", "academic or educator", "artist", "clerical or admin", "college or graduate student",
    "customer service", "doctor or health care", "executive or managerial", "farmer", "homemaker",
    "K-12 student", "lawyer", "programmer", "retired", "sales or marketing", "scientist", "self-employed",
    "technician or engineer", "tradesman or craftsman", "unemployed", "writer"))}
GENRES_100K = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama",
    "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western")


def read(folder: AnyPath, spark: SparkSession) -> Source:
    """Raw tables of a MovieLens folder. Raises DataError if files are missing."""
    if (folder / "u.data").exists() or (folder / "u.item").exists():
        return _read_100k(require_files(folder, "u.data", "u.item"), spark)
    if (folder / "ratings.csv").exists() or (folder / "movies.csv").exists():
        return _read_latest(require_files(folder, "ratings.csv", "movies.csv"), spark)
    require_files(folder, "movies.dat")
    users = folder / "users.dat"
    movies = split_fields(lines(spark, folder / "movies.dat"), "::", ["item_id", "title", "genres"])
    return Source(_interactions_1m(folder, spark), _users_1m(users, spark) if users.exists() else None,
                  _movies(movies), RANGE)


def require_files(folder: AnyPath, *names: str) -> AnyPath:
    """Return the folder. Raises DataError if it lacks one of the files."""
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        present = ", ".join(sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")))
        raise DataError(f"{folder} is not a complete MovieLens set: {', '.join(missing)} is missing "
                        f"(found {present})")
    return folder


def _read_latest(folder: AnyPath, spark: SparkSession) -> Source:
    ratings = _csv(folder / "ratings.csv", ["userId", "movieId", "rating", "timestamp"], spark)
    movies = _csv(folder / "movies.csv", ["movieId", "title", "genres"], spark)
    return Source(ratings.withColumnsRenamed({"userId": "user_id", "movieId": "item_id"}), None,
                  _movies(movies.withColumnRenamed("movieId", "item_id")), RANGE)


def _csv(path: AnyPath, needed: list[str], spark: SparkSession) -> DataFrame:
    table, missing = split_csv(lines(spark, path), needed)
    if missing:
        raise DataError(f"{path}: its header line has no column {', '.join(missing)}")
    return table


def _read_100k(folder: AnyPath, spark: SparkSession) -> Source:
    items = split_fields(lines(spark, folder / "u.item"), "|",
                         ["item_id", "title", "released", "video", "url", *GENRES_100K])
    flagged = F.array_compact(F.array(*[F.when(F.col(name) == "1", F.lit(name)) for name in GENRES_100K]))
    items = _movies(items.withColumn("genres", F.array_join(flagged, "|")))
    users = None
    if (folder / "u.user").exists():
        fields = ["user_id", "age", "gender", "occupation", "zip"]
        users = split_fields(lines(spark, folder / "u.user"), "|", fields)
        users = users.withColumn("attributes", attribute_map(
            gender=_gender(F.col("gender")), age=_age_bracket(F.col("age").try_cast("int")),
            occupation=F.col("occupation")))
    return Source(split_fields(lines(spark, folder / "u.data"), "\t", RATING_FIELDS), users, items, RANGE)


def _movies(table: DataFrame) -> DataFrame:
    """Natural titles; attributes: the first genre (for groups), the other genres, and the year."""
    genres = F.split(F.when(F.col("genres") != "(no genres listed)", F.col("genres")), r"\|")
    attributes = attribute_map(
        genre=genres[0],
        other_genres=F.array_join(F.slice(genres, 2, F.greatest(F.size(genres) - 1, F.lit(0))), ", "),
        year=F.regexp_extract("title", r"\((\d{4})\)\s*$", 1))
    return table.withColumns({"attributes": attributes, "title": natural_order(F.col("title"))})


def natural_order(title: Column) -> Column:
    """``dare_job.data.titles.natural_order`` of a column."""
    for pattern, replacement in REWRITES:
        title = F.regexp_replace(title, pattern, replacement.replace("\\", "$"))
    return title


def _users_1m(path: AnyPath, spark: SparkSession) -> DataFrame:
    table = split_fields(lines(spark, path), "::", ["user_id", "gender", "age", "occupation", "zip"])
    return table.withColumn("attributes", attribute_map(
        gender=_gender(F.col("gender")), age=_lookup(AGES, F.col("age")),
        occupation=_lookup(OCCUPATIONS, F.col("occupation"))))


def _lookup(names: dict[str, str], code: Column) -> Column:
    return F.create_map(*[F.lit(part) for pair in names.items() for part in pair])[code]


def _gender(code: Column) -> Column:
    return _lookup({"F": "female", "M": "male"}, code)


def _age_bracket(years: Column) -> Column:
    """The age bracket of the 1M set for an age in years."""
    bracket = F.when(years < 18, AGES["1"])
    for low, name in reversed(AGES.items()):
        bracket = bracket.when(years >= int(low), name)
    return bracket


def _interactions_1m(folder: AnyPath, spark: SparkSession) -> DataFrame:
    if (folder / "ratings.dat").exists():
        return split_fields(lines(spark, folder / "ratings.dat"), "::", RATING_FIELDS)
    for name in SEQUENCES:
        if (folder / name).exists():
            return _sequences(require_files(folder, "item_list.txt", "user_list.txt"), name, spark)
    raise DataError(f"{folder} has movies.dat but no interactions: it needs ratings.dat or {SEQUENCES[0]} "
                    "(or .gz)")


def _sequences(folder: AnyPath, name: str, spark: SparkSession) -> DataFrame:
    """One row per item of a user's line, with the original ids instead of numbers."""
    def originals(file: str, kind: str) -> DataFrame:
        parts = F.split("raw", " ", 3)
        return lines(spark, folder / file).where("line > 1").select(
            F.get(parts, 0).alias(f"{kind}_id"), F.get(parts, 1).alias(f"{kind}_number"))

    text = F.trim("raw")
    # split before the explode; otherwise Spark splits the whole line again for each of its items
    users = lines(spark, folder / name).select(
        "source", "line", F.substring_index(text, " ", 1).alias("user_number"),
        F.split(F.regexp_extract(text, r"^\S+\s+(.*)$", 1), " +").alias("item_numbers"))
    rows = users.select("source", "line", "user_number",
                        F.posexplode("item_numbers").alias("timestamp", "item_number"))
    rows = rows.join(F.broadcast(originals("user_list.txt", "user")), "user_number", "left") \
        .join(F.broadcast(originals("item_list.txt", "item")), "item_number", "left")
    return rows.select(
        "source", "line", F.concat_ws(" ", "user_number", "item_number").alias("raw"),
        F.lit(None).cast("string").alias("problem"), "user_id", "item_id",
        F.lit(None).cast("float").alias("rating"), F.col("timestamp").cast("long"))
