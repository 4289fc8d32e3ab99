"""Which setting a target picks from a curve made by hand, what is refused, and what follows for text keys."""

import json
import sys
from datetime import date
from pathlib import Path

import pytest
from curves import curve, entry, write

from dare_job import cli
from dare_job.config.plugins import PlugIn
from dare_job.config.settings import JobConfig, load
from dare_job.data.text_key import text_salt
from dare_job.errors import ConfigError
from dare_job.evaluate.curve import options
from dare_job.evaluate.curve.choose import Target, chosen, pick
from dare_job.job import Job
from dare_job.workspace import Workspace

NEAR, MIDDLE, FAR = 2, 4, 8


@pytest.fixture
def job_with(tmp_path):
    """Factory: the embedded model's job with settings by section."""
    def make(**sections) -> Job:
        config = JobConfig.model_validate({"out": str(tmp_path / "out"), **sections})
        return Job(config, Workspace(Path(config.out), date(2026, 1, 2)), "run-1")
    return make


@pytest.fixture
def three(job_with):
    """Three settings: the faster the farther."""
    return curve(job_with(), *[
        entry(k, p, speed, cosine, {"din": din, "dcnv2": dcnv2}) for k, p, speed, cosine, din, dcnv2 in (
            (NEAR, 0.1, (1.1, 1.05, 1.2), (0.999, 0.990), (0.0, 0.0004), (0.0, 0.0003)),
            (MIDDLE, 0.05, (1.4, 1.3, 1.5), (0.99, 0.981), (0.0, 0.0004), (0.001, 0.002)),
            (FAR, 0.001, (1.9, 1.8, 2.0), (0.985, 0.930), (0.002, 0.004), (0.0, None)))])


@pytest.mark.parametrize("target, k", [
    ("cosine=0.98", MIDDLE), ("cosine=0.985", NEAR), ("cosine=0.93", FAR), ("cosine=0.995", None),
    ("rouge_l=0.8", FAR), ("rouge_l=0.81", None),
    ("auc=0.0005", NEAR), ("auc=0.002", MIDDLE), ("auc=0.0003", None), ("auc=0.9", MIDDLE)])
def test_the_fastest_setting_whose_bound_keeps_the_target(three, target, k):
    found, why = pick(three, Target.of(target))
    assert (found and found.k) == k
    assert ("stays strict" in why) == (k is None)


def test_a_bound_that_fails_under_a_mean_that_does_not_is_said_to_tell_nothing(three):
    assert "the data do not suffice" in pick(three, Target.of("cosine=0.995"))[1]
    why = pick(three, Target.of("auc=0.0001"))[1]
    assert "k=2 p=0.1" in why and "AUC loss 0, at most 0.0004 at 95%, 300 rows, 10 seeds" in why
    assert "no setting keeps it" in pick(three, Target.of("rouge_l=0.95"))[1]


def test_a_setting_that_was_slower_in_one_turn_is_not_taken(job_with):
    unsure = curve(job_with(), entry(2, 0.1, (1.2, 0.97, 1.3), (1.0, 0.99)))
    found, why = pick(unsure, Target.of("cosine=0.98"))
    assert found is None and "none was faster than strict in each of 3 rounds" in why


def test_differences_without_a_spread_are_no_bound(job_with):
    same = curve(job_with(), entry(2, 0.1, (1.2, 1.1, 1.3), loss={"din": (0.0, None)}))
    found, why = pick(same, Target.of("auc=0.5"))
    assert found is None and "no setting has a bound" in why


def test_texts_that_no_setting_wrote_tell_nothing_of_auc(three):
    found, why = pick(three.model_copy(update={"carried": 100}), Target.of("auc=0.0005"))
    assert found is None and "100 of 400 texts were not generated" in why
    assert pick(three.model_copy(update={"carried": 30}), Target.of("auc=0.0005"))[0].k == NEAR
    assert pick(three.model_copy(update={"carried": 100}), Target.of("cosine=0.98"))[0].k == MIDDLE


def test_text_keys_are_those_of_the_setting_that_was_picked(job_with, three, tmp_path):
    path = str(write(tmp_path, three))
    job = chosen(job_with(verify={"target": "cosine=0.98", "curve": path}))
    by_hand = job_with(verify={"rule": "relaxed", "k": 4, "p": 0.05})
    assert (job.config.verify.rule, job.config.verify.k, job.config.verify.p) == ("relaxed", 4, 0.05)
    assert text_salt(job.config, "m") == text_salt(by_hand.config, "m")
    assert (job.choice["rule"], job.choice["bound"]) == ("relaxed", 0.981)
    assert "k=4 p=0.05" in job.choice["why"]
    strict = chosen(job_with(verify={"target": "cosine=0.999", "curve": path}))
    assert strict.config.verify.rule == "strict" and strict.choice["rule"] == "strict"
    assert text_salt(strict.config, "m") == text_salt(job_with().config, "m")
    assert chosen(by_hand) is by_hand and by_hand.choice is None


def test_a_verifier_is_picked_with_its_options_unless_its_file_has_changed(job_with, three, tmp_path):
    text = "dare_job.verifiers:Fly(entropy=0.5, window=4)"
    record = {"text": text, **PlugIn.parse("verifier", "verify.rule", text).record()}
    fly = entry(2, 0.1, (3.0, 2.9, 3.1), (0.999, 0.99))
    fly = fly.model_copy(update={"k": None, "p": None, "plugin": record})
    assert fly.name == "Fly(entropy=0.5, window=4)" and not fly.is_strict
    path = str(write(tmp_path, three.model_copy(update={"entries": [*three.entries, fly]})))
    job = chosen(job_with(verify={"target": "cosine=0.98", "curve": path}))
    assert (job.config.verify.rule, job.choice["rule"]) == (text, text)
    assert "Fly(entropy=0.5, window=4) keeps it" in job.choice["why"]
    assert text_salt(job.config, "m") == text_salt(job_with(verify={"rule": text}).config, "m")
    other = fly.model_copy(update={"plugin": record | {"sha256": "f" * 64}})
    path = str(write(tmp_path, three.model_copy(update={"entries": [*three.entries, other]})))
    with pytest.raises(ConfigError, match="Fly.* has another version or file than when it was measured"):
        chosen(job_with(verify={"target": "cosine=0.98", "curve": path}))


@pytest.mark.parametrize("text, expected", [
    ("2:0.1, 4:0.05", [(2, 0.1), (4, 0.05)]),
    ("a.b:C(x=1, y='z,'),2:0.1,a:D", ["a.b:C(x=1, y='z,')", (2, 0.1), "a:D"]),
    ("2", "write K:P .* or a verifier as MODULE:CLASS"), ("a:C(1)", "does not name a verifier"),
    ("a:C,a:C", "'a:C' is given twice"), (" ,", "is empty"), ("C", "does not name a verifier")])
def test_settings_are_pairs_and_verifiers(text, expected):
    if isinstance(expected, list):
        assert options._settings("--settings", text) == expected
        return
    with pytest.raises(ConfigError, match=expected):
        options._settings("--settings", text)


def test_where_text_is_strict_anyway_nothing_is_picked(job_with, three, tmp_path):
    verify = {"target": "cosine=0.98", "curve": str(write(tmp_path, three))}
    job = chosen(job_with(verify=verify, decode={"mode": "resd"}))
    assert job.config.verify.rule == "strict" and "decode.mode = resd" in job.choice["why"]


@pytest.mark.parametrize("sections, said", [
    ({"decode": {"max_new_tokens": 64}}, ["new tokens", "0, 256", "0, 64"]),
    ({"prompts": {"domain": "books", "user": "kar"}}, ["another prompts"]),
    ({"verify": {"length_quantile": None}}, ["length quantile", "0.95", "None"]),
    ({"model": {"dtype": "bfloat16"}}, ["dtype", "float32", "bfloat16"])])
def test_a_curve_of_another_writer_is_refused(job_with, three, tmp_path, sections, said):
    verify = sections.get("verify", {}) | {"target": "cosine=0.98", "curve": str(write(tmp_path, three))}
    with pytest.raises(ConfigError) as found:
        chosen(job_with(**{**sections, "verify": verify}))
    assert all(part in str(found.value) for part in [*said, "curve.json", "dare-job curve"])


def damaged(text: str) -> list[str]:
    other, unknown, low = (json.loads(text) for _ in range(3))
    other["identity"]["model"] = "f" * 64
    unknown["schema_version"] = 2
    del low["entries"][1]["cosine"]
    return [json.dumps(other), json.dumps(unknown), json.dumps(low), text[:200], "", "[]",
            text.replace('"mean":0.999', '"mean":NaN')]


@pytest.mark.parametrize("number", [None, *range(7)])
def test_a_wrong_file_ends_the_night_before_anything_is_written(number, three, tmp_path, monkeypatch, capsys):
    path = write(tmp_path, three)
    if number is None:
        path.unlink()
    else:
        path.write_text(damaged(path.read_text())[number])
    config = tmp_path / "job.yaml"
    config.write_text(f"out: {tmp_path / 'out'}\n")
    monkeypatch.setattr(sys, "argv", ["dare-job", "run", "--config", str(config), "--date", "2026-01-02",
                                      "--target", "cosine=0.98", "--curve", str(path)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().err
    assert ended.value.code == 2 and str(path) in said and "dare-job curve" in said, said
    assert len(said.splitlines()) == 1 and not (tmp_path / "out").exists()


def test_a_target_of_auc_needs_a_curve_with_auc(job_with, tmp_path):
    path = write(tmp_path, curve(job_with(), entry(2, 0.1, (1.2, 1.1, 1.3))))
    with pytest.raises(ConfigError, match="has no AUC.*--data"):
        chosen(job_with(verify={"target": "auc=0.001", "curve": str(path)}))


@pytest.mark.parametrize("verify, said", [
    ("target: auc", "verify.target = 'auc': write"), ("target: auc=2", "below 1"),
    ("target: cosine=1", "below 1"), ("target: bleu=0.5", "auc=, cosine= or rouge_l="),
    ("target: cosine=0.98", "verify.target needs verify.curve"), ("curve: c.json", "verify.curve needs"),
    ("target: cosine=0.98, curve: c.json, rule: relaxed", "verify.target chooses the rule itself")])
def test_settings_that_cannot_be_meant(tmp_path, verify, said):
    (tmp_path / "job.yaml").write_text(f"verify: {{{verify}}}\n")
    with pytest.raises(ConfigError, match=said):
        load(tmp_path / "job.yaml")
