"""What cannot be drafted or sampled ends a night before it starts: the setting, its value and the fix."""

import json
import shutil
from datetime import date

import noisy_drafter
import pytest
from pydantic import ValidationError

from dare_job import pipeline
from dare_job.config.settings import JobConfig, load
from dare_job.decode.sampling.distributions import DISTRIBUTIONS
from dare_job.decode.sampling.rules import RULES
from dare_job.decode.sampling.tree_verification import TRAVERSAL
from dare_job.decode.settings import SAMPLE_METHODS
from dare_job.errors import ConfigError, ModelError
from dare_job.generate import preflight
from dare_job.job import Job
from dare_job.workspace import Workspace


@pytest.fixture(scope="module")
def drafter(tmp_path_factory):
    return noisy_drafter.write(tmp_path_factory.mktemp("drafter"))


@pytest.fixture
def job_of(tmp_path, drafter):
    def make(**sections) -> Job:
        base = {"out": str(tmp_path / "out"), "drafter": {"model": str(drafter)}}
        merged = {name: {**base.get(name, {}), **section} for name, section in sections.items()}
        config = JobConfig.model_validate({**base, **merged})
        return Job(config, Workspace(tmp_path / "out", date(2026, 1, 2)), "run-1")
    return make


SAMPLED = {"mode": "sample"}


@pytest.mark.parametrize(("sections", "error", "message"), [
    ({"drafter": {"model": "/nowhere/at/all"}}, ModelError,
     r"drafter\.model = '/nowhere/at/all': .* does not exist; dare-job drafter train trains"),
    ({"decode": {"nodes": 27}}, ConfigError,
     "draft tree 4x2x1x1 has 28 nodes per row, more than decode.nodes = 27; increase decode.nodes or use"),
    ({"decode": {"depth": 3}}, ConfigError,
     "drafter.tree = 4x2x1x1 has 4 levels, more than decode.depth = 3"),
    ({"drafter": {"tree": "999x9"}}, ConfigError, "draft tree 999x9 has 9990 nodes per row, more than 512"),
    ({"decode": SAMPLED, "sample": {"method": "speculative"}}, ConfigError,
     "sample.method = speculative, drafter.tree = 4x2x1x1: .*needs exactly 1 candidates, not 4"),
    ({"decode": SAMPLED, "sample": {"method": "traversal/iid"}}, ConfigError, "sample a token twice"),
    ({"decode": SAMPLED, "sample": {"method": "rrs/spechub"}}, ConfigError, "exactly 2 candidates, not 4"),
    ({"decode": SAMPLED, "sample": {"logit_bias": {999999: 1.0}}}, ConfigError,
     r"sample.logit_bias = {999999: 1.0}: embedded has token ids up to \d+; remove 999999")])
def test_invalid_settings_are_refused_before_anything_is_written(job_of, tmp_path, sections, error, message):
    for begin in (pipeline.run, pipeline.dry_run, lambda job: pipeline.run_stage(job, "plan")):
        with pytest.raises(error, match=message):
            begin(job_of(**sections))
    assert not (tmp_path / "out").exists()


def test_another_vocabulary_is_refused_with_the_first_difference(job_of, drafter, tmp_path):
    other = shutil.copytree(drafter, tmp_path / "other")
    file = other / "tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    if isinstance(vocabulary, dict):
        first, second = sorted(vocabulary, key=vocabulary.get)[300:302]
        vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    else:
        vocabulary[300], vocabulary[301] = vocabulary[301], vocabulary[300]
    file.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=f"drafter.model = '{other}': draft model {other} has another "
                                          "vocabulary than embedded: id 300 is .*id 301 in the other.*train"):
        preflight.check_drafting(job_of(drafter={"model": str(other)}))
    for name in other.glob("tokenizer*"):
        name.unlink()
    with pytest.raises(ModelError, match="drafter.model = .* holds no tokenizer"):
        preflight.check_drafting(job_of(drafter={"model": str(other)}))


def test_valid_settings_are_accepted(job_of):
    for sections in ({}, {"decode": SAMPLED}, {"decode": {"nodes": 28}},
                     {"decode": SAMPLED, "sample": {"method": "priority", "logit_bias": {3: -2}}},
                     {"drafter": {"model": None}}):
        preflight.check_drafting(job_of(**sections))


@pytest.mark.parametrize(("settings", "message"), [
    ({"drafter": {"model": "m"}, "decode": {"mode": "resd"}},
     "drafter.model = 'm' with decode.mode = 'resd', which uses no draft model: use decode.mode = dare"),
])
def test_settings_that_contradict_each_other(settings, message):
    with pytest.raises(ValidationError, match=message):
        JobConfig.model_validate(settings)


def test_settings_as_a_user_writes_them(tmp_path):
    file = tmp_path / "night.yaml"
    file.write_text("decode: {mode: sample}\nsample: {method: priority, logit_bias: {7: 1, 9: -2}}\n"
                    "drafter: {model: out/drafter, tree: 2x2}\n")
    found = load(file, ["sample.logit_bias={7: 2}"])
    assert found.sample.logit_bias == {7: 2.0} and found.drafter.tree == "2x2"
    for override, message in (("sample.temperature=-1", "sample.temperature = -1: should be greater than or"),
                           ("sample.method=best", "sample.method = 'best': should be 'rrs', 'rrs/iid'"),
                           ("drafter.tree=4x", "drafter.tree = '4x': .* such as 4x2x1"),
                           ('drafter.model=""', "drafter.model = ''"),
                           ("sample.logit_bias={-1: 2}", "sample.logit_bias.-1")):
        with pytest.raises(ConfigError, match=message):
            load(file, [override])


def test_settings_list_every_distribution_and_rule():
    """sample.method has every pair of a rule and a distribution that it is exact for."""
    exact = {(rule.name, name) for rule in RULES.values() for name in rule.distributions}
    exact |= {(TRAVERSAL, name) for name in DISTRIBUTIONS}
    assert set(SAMPLE_METHODS.values()) == exact and len(SAMPLE_METHODS) == len(exact)
    assert JobConfig().drafter.model is None  # retrieval, unless a draft model is named
