"""Each method that a configuration can choose, in a run of the job until it is published.

The values come from the settings' types, so a new one is run as well.
"""

import json
import shutil
from typing import get_args

import pyarrow.parquet as pq
import pytest
import tiny_recommender
from run_helpers import NIGHT_2, snapshot

from dare_job import pipeline
from dare_job.config.decoding import BeamSettings, DecodeSettings, RecommendSettings, SampleSettings
from dare_job.config.settings import JobConfig
from dare_job.decode.sampling.engine import Sampling
from dare_job.decode.settings import SAMPLE_METHODS
from dare_job.errors import ConfigError
from dare_job.recommend.task import WITHOUT_MODEL
from dare_job.schemas import ENTITIES

pytestmark = [pytest.mark.spark, pytest.mark.release]
ROWS, TOKENS, FOLDER = 2, 6, "folder"  # rows of each entity type; FOLDER: a small recommender drafts
DRAFT_MODEL = {"model": "embedded", "tree": "2x2"}
SHORT = {"decode": {"max_new_tokens": TOKENS}, "baseline": {"rows": 0}, "waves": {"when": "never"},
         # texts of few tokens are cut off, and some are equal
         "gates": {"max_share": {"cut_off": None, "same_text": None, "short": None}}}


def choices(section: type, name: str) -> tuple:
    """Values of a setting whose type is a Literal, or a union of one with another type."""
    annotation = section.model_fields[name].annotation
    found = [value for part in (annotation, *get_args(annotation)) for value in get_args(part)]
    values = tuple(dict.fromkeys(value for value in found if isinstance(value, str)))
    assert values, f"{name} has no choices"
    return values


def tree(method: str) -> str:
    """Draft tree for a sampling method: of two branches, where the method accepts them."""
    rule, distribution = SAMPLE_METHODS[method]
    try:
        Sampling(distribution=distribution, rule=rule).require((2, 2))
    except ConfigError:
        return "1x1"
    return "2x2"


VERIFY = JobConfig.model_fields["verify"].annotation
DRAFTED = ({}, {"drafter": DRAFT_MODEL})
TEXTS = [{"decode": {"mode": mode}} for mode in choices(DecodeSettings, "mode")]
TEXTS += [{"verify": {"rule": rule}, **drafter} for rule in choices(VERIFY, "rule") for drafter in DRAFTED]
TEXTS += [{"decode": {"mode": "sample"}, "sample": {"method": method},
           "drafter": DRAFT_MODEL | {"tree": tree(method)}} for method in choices(SampleSettings, "method")]
TEXTS += [{"decode": {"mode": "beam"}, "beam": {"method": method}, **drafter}
          for method in choices(BeamSettings, "method") for drafter in DRAFTED]
TEXTS += [{"decode": {"mode": "beam"}, "drafter": DRAFT_MODEL, **more} for more in (
    {"beam": {"single_cache": True}}, {"beam": {"min_width": 4}}, {"sample": {"temperature": 0}})]

DRAFTERS = (None, *WITHOUT_MODEL, FOLDER)
ITEMS = [{"drafter": drafter, **more} for drafter in DRAFTERS for more in (
    *({"scores": scores} for scores in choices(RecommendSettings, "scores")),
    *({"verify": verify, "temperature": 1.0} for verify in choices(RecommendSettings, "verify")))]
ITEMS += [{"exclude": ["duplicates"]}, {"drafter": "popularity", "exclude": []}]
ITEMS += [{"drafter": "popularity", "draft_depth": depth}
          for depth in (*choices(RecommendSettings, "draft_depth"), 2)]


def words(settings: dict) -> str:
    return json.dumps(settings).replace('"', "")


def contains(settings: dict, chosen: dict) -> bool:
    return all(contains(settings[name], value) if isinstance(value, dict) else settings[name] == value
               for name, value in chosen.items())


@pytest.fixture(scope="module")
def unfinished(nights, tmp_path_factory):
    """The folder of two nights, as if the second one had not been published yet."""
    out = shutil.copytree(nights.out, tmp_path_factory.mktemp("unfinished") / "out")
    for entity in ENTITIES:
        shutil.rmtree(out / "knowledge" / f"entity={entity}" / f"dt={NIGHT_2}")
    return out


@pytest.mark.parametrize("sections", TEXTS, ids=words)
def test_a_run_publishes_texts_of_each_method(sections, unfinished, job_of, tmp_path):
    out = shutil.copytree(unfinished, tmp_path / "out")
    chosen = {name: {**SHORT.get(name, {}), **sections.get(name, {})} for name in {**SHORT, **sections}}
    pipeline.run(job_of(out, NIGHT_2, limit=ROWS, run_id="method", **chosen), last="publish")
    drafted = 0
    for entity in ENTITIES:
        folder = out / "knowledge" / f"entity={entity}" / f"dt={NIGHT_2}"
        manifest = json.loads((folder / "_manifest.json").read_text())
        assert contains(manifest["settings"], sections)
        rows = [row for row in snapshot(out, entity, NIGHT_2).values() if row["source_run_id"] == "method"
                and row["error"] is None]
        assert len(rows) == ROWS == manifest["counts"]["written"]
        assert all(row["knowledge"] and 0 < row["tokens"] <= TOKENS for row in rows)
        drafted += sum(row["scored_tokens"] + row["accepted_tokens"] for row in rows)
    mode = sections.get("decode", {}).get("mode", "dare")
    if mode == "autoregressive" or mode == "beam" and "drafter" not in sections:
        assert drafted == 0
    elif mode in ("resd", "dare"):
        assert drafted > 0


@pytest.fixture(scope="module")
def recommenders(tmp_path_factory):
    """Folders of a recommender and of a smaller one with the same ids."""
    return [str(tiny_recommender.write(tmp_path_factory.mktemp(name), seed, width))
            for seed, (name, width) in enumerate((("recommender", 32), ("drafter", 16)))]


@pytest.mark.parametrize("chosen", ITEMS, ids=words)
def test_a_run_publishes_recommendations_of_each_method(chosen, recommenders, make_job, write_input):
    model, small = recommenders
    chosen = chosen | ({"drafter": small} if chosen.get("drafter") == FOLDER else {})
    place = write_input(tiny_recommender.interactions(), users=[("u_new", None)])
    job = make_job({"input": {"path": str(place)}, "recommend": {
        "model": model, "k": 4, "batch_size": 5, "rows_per_commit": 8, "draft_depth": "all", **chosen}})
    manifest = pipeline.run(job, "recommend", "recommend")
    assert contains(manifest["settings"], chosen) and not manifest["counts"]["errors"]
    rows = [row for name in manifest["files"]
            for row in pq.read_table(job.space.candidates() / name).to_pylist()]
    assert len(rows) == 4 * manifest["counts"]["users"] and all(row["item_id"] for row in rows)
