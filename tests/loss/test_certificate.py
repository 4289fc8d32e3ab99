"""The loss of a sample of texts: facts, bounds, and what is over a limit; against plain restatements."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from dare_job.errors import ConfigError
from dare_job.publish.features import encoder_files
from dare_job.publish.loss import certificate, facts, limits
from dare_job.publish.loss.certificate import Twin
from dare_job.publish.loss.distance import mean_lower_bound, share_upper_bound
from dare_job.schemas import ATTRIBUTES, ITEMS, USERS

PROMPT = 'Someone liked "Matrix, The" (1999), "Heat" (1995) and "Toy Story 2" (1999): crime, science fiction'
TEXT = "In crime films, as Heat and The Matrix are; 2 of 3 are from 1999"


@pytest.fixture
def source(tmp_path):
    """Tables of an input, as the stage plan leaves them: folders of Parquet files."""
    items = [("1", "Matrix, The (1999)", {"genre": "Science Fiction"}),
             ("2", "Heat (1995)", {"genre": "Crime|Drama"}),
             ("3", "Toy Story 2 (1999)", {"genre": "Comedy"}), ("4", "Toy Story (1995)", {"traffic": "93"}),
             ("5", None, None)]
    users = [("u", {"age": "25-34"})]
    for name, schema, rows in (("items", ITEMS, items), ("users", USERS, users)):
        folder = tmp_path / "input" / f"{name}.parquet"
        folder.mkdir(parents=True)
        for part in range(2):
            columns = [list(column) for column in zip(*rows[part::2], strict=True)] or [[]] * len(schema)
            table = pa.table([pa.array(column if field.type != ATTRIBUTES else
                                       [value and [*value.items()] for value in column], field.type)
                              for column, field in zip(columns, schema, strict=True)], schema=schema)
            pq.write_table(table, folder / f"part-{part}.parquet")
    return tmp_path / "input"


def test_a_prompt_shows_titles_and_values_of_the_input(source):
    (found,) = facts.in_prompts([PROMPT], source)
    assert set(found[0]) == {"Matrix, The (1999)", "Heat (1995)", "Toy Story 2 (1999)", "Toy Story (1995)"}
    assert set(found[1]) == {"crime", "science fiction"}
    assert facts.in_prompts(["nothing of it", "A drama. "], source) == [([], []), ([], ["drama"])]


@pytest.mark.parametrize("other, same", [
    (TEXT, True), ("From 1999 are 2 of 3, as the matrix and Heat are: crime", True),
    (TEXT.replace("Heat", "Toy Story 2"), False), (TEXT.replace("crime", "drama"), True),
    (TEXT.replace("crime films", "films"), False), (TEXT.replace("2 of 3", "3 of 3"), False),
    (TEXT.replace("1999", "1,999"), False), (TEXT.replace("Heat", "Toy Story"), False)])
def test_texts_name_other_facts_if_a_title_value_or_number_differs(source, other, same):
    """The prompt has no drama, so the word is none of its facts; leaving out crime is a change, however."""
    without_drama = TEXT if "drama" not in other else TEXT.replace("crime", "")
    assert facts.changed([(PROMPT, without_drama, other), (PROMPT, "a", "a")], source) == 1 - same


@pytest.mark.parametrize("changed, rows", [(0, 1), (0, 300), (3, 300), (299, 300), (300, 300), (1, 2)])
def test_the_bound_of_a_share_is_that_of_the_exact_test(changed, rows):
    exact = stats.binomtest(changed, rows, alternative="less").proportion_ci(0.95, method="exact").high
    assert share_upper_bound(changed, rows, 0.05) == pytest.approx(exact)


def test_bounds_of_samples_without_replacement_are_below_the_mean_as_rarely_as_promised():
    rng, below = np.random.default_rng(0), np.zeros(2)
    population = np.where(rng.random(400) < 0.1, rng.random(400), 1.0)
    for _ in range(400):
        rows = rng.choice(population, 100, replace=False)
        below += (mean_lower_bound(rows, 0.05) > population.mean(),
                  share_upper_bound(int((rows < 1).sum()), 100, 0.05) < (population < 1).mean())
    assert (below <= 20).all()  # 5 % of 400


@pytest.fixture
def job(make_job, source):
    def make(**sections):
        made = make_job(sections)
        folder = made.space.stage("input")
        folder.parent.mkdir(parents=True, exist_ok=True)
        source.rename(folder)
        return made
    return make


def twins(rows: int, others: int) -> list[Twin]:
    return [Twin(PROMPT, TEXT if n >= others else f"Nothing is known of {n}", TEXT, (12, 12))
            for n in range(rows)]


def test_a_certificate_has_mean_and_bound_of_each_measure(job):
    made = job()
    record = certificate.certify(made, twins(60, 2), 1000)
    assert (record["rows"], record["of"], record["level"]) == (60, 1000, 0.95)
    assert record["differing"] == record["facts"]["mean"] == pytest.approx(2 / 60)
    assert record["facts"]["bound"] == pytest.approx(stats.beta.ppf(0.95, 3, 58))
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(encoder_files.resolve("embedded")), device="cpu")
    one, *others = model.encode([TEXT, *(twin.text for twin in twins(60, 2)[:2])], normalize_embeddings=True)
    cosine = np.array([*(float(other @ one) for other in others), *[1.0] * 58])
    assert record["distance"]["mean"] == pytest.approx(1 - cosine.mean(), abs=1e-5)
    assert record["distance"]["bound"] == pytest.approx(
        2 - 2 * mean_lower_bound((1 + cosine) / 2, 0.05), abs=1e-4)
    assert record["encoder"] == "embedded"
    words = limits.summary(record)
    assert words.startswith("60 of 1,000 rows also written strictly: embedding distance 0.0")
    assert "share of texts with other facts 0.0333, at most 0.1012 at 95%" in words


def test_a_sample_without_texts_has_no_figures(job):
    record = certificate.certify(job(), [], 7)
    assert record["distance"] is record["facts"] is None
    assert limits.over_limit(record, {"facts": 0.5}) == (
        "the share of texts with other facts could not be measured (limit 0.5)")
    assert limits.over_limit(record, {}) is None
    assert limits.summary(record) == "0 of 7 rows also written strictly"


def record(distance=(0.001, 0.01), facts=(0.0, 0.01), rows=300) -> dict:
    figures = {name: dict(zip(("mean", "bound"), pair, strict=True))
               for name, pair in (("distance", distance), ("facts", facts))}
    return {"rows": rows, "of": 1000, "level": 0.95, **figures}


@pytest.mark.parametrize("found, allowed, parts", [
    (record(), {"distance": 0.01, "facts": 0.01}, None), (record(), {}, None),
    (record(), {"distance": 0.009}, ["distance 0.0010, at most 0.0100 at 95%, limit 0.009",
                                     "300 rows do not suffice", "818 do if all texts are equal"]),
    (record(distance=(0.05, 0.1)), {"distance": 0.02, "facts": 0.02}, ["distance 0.0500", "limit 0.02"]),
    (record(facts=(0.1, 0.2)), {"facts": 0.05, "distance": 0.001}, ["facts 0.1000", "; ", "distance 0.0010"]),
])
def test_only_a_bound_within_the_limit_keeps_it(found, allowed, parts):
    why = limits.over_limit(found, allowed)
    assert why is None if parts is None else all(part in why for part in parts)
    if parts and "facts 0.1000" in why:
        assert "do not suffice" not in why.partition("facts 0.1000")[2].partition(";")[0]


@pytest.mark.parametrize("limit", [0.005, 0.02, 0.1, 0.5])
def test_so_many_equal_rows_show_that_a_limit_is_kept_and_fewer_do_not(limit):
    rows = limits.rows_needed("distance", limit)
    assert 2 - 2 * mean_lower_bound(np.ones(rows), 0.05) <= limit
    rows = limits.rows_needed("facts", limit)
    assert share_upper_bound(0, rows, 0.05) <= limit < share_upper_bound(0, rows - 1, 0.05)


def test_a_limit_of_the_distance_needs_the_encoder(make_job, monkeypatch, caplog):
    def missing(name, setting="encode.model"):
        raise ConfigError(f"{setting} needs a package")

    monkeypatch.setattr(encoder_files, "resolve", missing)
    certificate.require_encoder(make_job({"verify": {"max_loss": {"facts": 0.1}}}))
    assert "not measured: encode.model needs a package" in caplog.text
    with pytest.raises(ConfigError, match="needs a package"):
        certificate.require_encoder(make_job({"verify": {"max_loss": {"distance": 0.1}}}))
