"""Which settings make text stale."""

import pytest

from dare_job.config.settings import JobConfig
from dare_job.data.text_key import text_salt


def salt(model="m", **sections):
    return text_salt(JobConfig.model_validate(sections), model)


STRICT, RELAXED = salt(), salt(verify={"rule": "relaxed"})


@pytest.mark.parametrize("change", [
    {"model": "another"}, {"decode": {"max_new_tokens": 10}}, {"decode": {"min_new_tokens": 10}},
    {"verify": {"rule": "relaxed"}}, {"verify": {"rule": "top_k"}}, {"decode": {"stop": ["."]}},
    {"decode": {"repetition_penalty": 1.1}}, {"decode": {"end_loops": False}},
    {"decode": {"schema": {"regex": "a+"}}},
])
def test_strict_text_changes(change):
    assert salt(**{"model": "m", **change}) != STRICT


@pytest.mark.parametrize("section", [{"dtype": "bfloat16"}, {"chat_template": "never"},
                                     {"template_arguments": {"enable_thinking": True}}])
def test_model_settings_change_text(section):
    changed = JobConfig.model_validate({"model": section})
    assert text_salt(changed, "m") != STRICT


@pytest.mark.parametrize("change", [
    {"decode": {"nodes": 64}}, {"decode": {"batch_size": 1}}, {"decode": {"mode": "resd"}},
    {"decode": {"mode": "autoregressive"}}, {"decode": {"depth": 3}}, {"verify": {"k": 5, "p": 0.5}},
    {"verify": {"c": 0.1, "epsilon": 0.1, "delta": 0.1, "length_quantile": 0.5}},
    {"decode": {"mode": "resd"}, "verify": {"rule": "relaxed"}}, {"seed": 3},
    {"spark": {"shards": 3}}, {"pools": {"own": False}}, {"decode": {"score": "always"}},
    {"verify": {"refresh_nights": 7}}, {"decode": {"end_loops": True}},
])
def test_strict_text_stays(change):
    assert salt(**change) == STRICT


@pytest.mark.parametrize("change", [
    {"verify": {"rule": "relaxed", "k": 3}}, {"verify": {"rule": "relaxed", "p": 0.2}},
    *({"verify": {"rule": "relaxed", "length_quantile": guard}} for guard in (0.9, None)),
    {"verify": {"rule": "relaxed"}, "decode": {"nodes": 64}},
    {"verify": {"rule": "relaxed"}, "decode": {"batch_size": 1}},
    {"verify": {"rule": "relaxed"}, "decode": {"score": "never"}},
    *({"verify": {"rule": "relaxed"}, **drafts} for drafts in (
        {"pools": {"own": False}}, {"pools": {"max_texts": 9}}, {"router": {"user": "global"}},
        {"group": {"target_size": 9}}, {"seed": 3})),
])
def test_relaxed_text_changes(change):
    assert salt(**change) != RELAXED


def test_keys_from_before_a_setting_existed_stay_valid():
    assert STRICT == "cd147711eefa1eff1491d97b2b4ce3fbd26fec6e273e4c850fc4cd1d2b5186a9"


def test_system_text_and_examples_count_for_their_side():
    kar = JobConfig.model_validate({"prompts": {"user": "kar"}})
    assert text_salt(kar, "m", entity="user") != text_salt(kar, "m", entity="item") == STRICT
    longer = JobConfig.model_validate({"prompts": {"user": "kar"}, "decode": {"max_new_tokens": 512}})
    assert text_salt(longer, "m", entity="user") != text_salt(longer, "m")


SAMPLED = {"decode": {"mode": "sample"}}


@pytest.mark.parametrize(("change", "differs"), [
    ({"sample": {"temperature": 0.5}}, True), ({"sample": {"top_p": 0.9}}, True),
    ({"seed": 1}, True), ({"sample": {"logit_bias": {3: 1.0}}}, True),
    ({"sample": {"method": "priority"}}, False),
    ({"drafter": {"model": "m"}}, False),
    ({"pools": {"own": False}}, False), ({"group": {"target_size": 9}}, False)])
def test_sampled_text_has_the_models_law_whatever_drafts_it(change, differs):
    sampled = salt(**SAMPLED)
    assert sampled not in (STRICT, RELAXED)
    assert (salt(**{**SAMPLED, **change}) != sampled) == differs


MODEL = {"model": "m"}


@pytest.mark.parametrize(("drafter", "draft_hash", "differs"), [
    (MODEL, "d", False), ({**MODEL, "model": "n"}, "d", False),
    (MODEL, "other", True), ({**MODEL, "tree": "2x2"}, "d", True),
    ({}, None, True)])
def test_relaxed_text_hangs_on_the_draft_model_and_strict_text_does_not(drafter, draft_hash, differs):
    drafted, other = (JobConfig.model_validate({"verify": {"rule": "relaxed"}, "drafter": one})
                      for one in (MODEL, drafter))
    assert (text_salt(drafted, "m", "d") != text_salt(other, "m", draft_hash)) == differs
    assert salt(drafter=drafter) == STRICT


@pytest.mark.parametrize(("change", "differs"), [
    ({"beam": {"width": 3}}, True), ({"sample": {"temperature": 0.5}}, True), ({"seed": 1}, True),
    ({"beam": {"method": "without_replacement"}}, True), ({"beam": {"length_penalty": 0.0}}, True),
    ({"beam": {"layers": 2}}, False), ({"beam": {"threshold": 0.5}}, False),
    ({"beam": {"draft_width": 6}}, False), ({"beam": {"method": "iid/without_replacement"}}, False)])
def test_beams_by_their_section(change, differs):
    beams = {"decode": {"mode": "beam"}}
    plain = salt(**beams)
    assert plain not in (STRICT, RELAXED)
    assert (salt(**beams, **change) != plain) == differs


@pytest.mark.parametrize(("change", "differs"), [
    ({"layers": 2}, True), ({"threshold": 0.5}, True), ({"draft_width": 6}, True), ({"min_width": 2}, True)])
def test_drafted_beams_by_how_they_are_drafted(change, differs):
    """Where there is a draft model."""
    drafted = {"decode": {"mode": "beam"}, "drafter": MODEL}
    assert salt(**drafted) != salt(decode={"mode": "beam"})
    assert (salt(**drafted) != salt(**drafted, beam=change)) == differs


def test_beam_search_is_the_same_however_it_is_drafted():
    beams = {"decode": {"mode": "beam"}}
    assert salt(**beams, sample={"temperature": 0.0}) == salt(
        **beams, sample={"temperature": 0.0}, drafter=MODEL, beam={"layers": 2}, seed=5)


@pytest.mark.parametrize("rule", ["relaxed", "top_k", "threshold", "literal", "ratio", "entropy"])
@pytest.mark.parametrize("mode", ["resd", "autoregressive"])
def test_modes_differ_exactly_where_their_text_can(rule, mode):
    strict = salt(decode={"mode": mode}, verify={"rule": rule})
    assert strict == STRICT  # these modes are strict under every rule
    assert salt(decode={"mode": "dare"}, verify={"rule": rule}) != strict


@pytest.mark.parametrize("change", [
    {"rule": "ratio", "c": 0.4}, {"rule": "entropy", "epsilon": 0.1}, {"rule": "entropy", "delta": 0.4}])
def test_what_a_rule_uses_changes_its_text(change):
    assert salt(verify=change) != salt(verify={"rule": change["rule"]})


def test_refreshing_makes_nothing_stale_by_its_key():
    assert salt(verify={"rule": "relaxed", "refresh_nights": 7}) == RELAXED


def test_rules_ignore_what_they_do_not_use():
    assert salt(verify={"rule": "top_k", "p": 0.3}) == salt(verify={"rule": "top_k"})
    assert salt(verify={"rule": "threshold", "k": 9}) == salt(verify={"rule": "threshold"})
    assert salt(verify={"rule": "relaxed", "c": 0.1, "epsilon": 0.5, "delta": 0.5}) == RELAXED
    assert salt(verify={"rule": "ratio", "k": 9, "p": 0.3, "delta": 0.5}) == salt(verify={"rule": "ratio"})
    assert salt(verify={"rule": "entropy", "k": 9, "c": 0.3}) == salt(verify={"rule": "entropy"})
    fixed = {"rule": "relaxed", "reproducible": True}
    assert salt(verify=fixed, decode={"batch_size": 1}) == salt(verify=fixed)


def test_the_form_of_an_entity_type_changes_its_texts_alone():
    def by_entity(**schema):
        config = JobConfig.model_validate({"decode": {"schema": schema}} if schema else {})
        return [text_salt(config, "m", entity=entity) for entity in ("user", "item")]

    film = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}
    turned = {"type": "object", "properties": dict(reversed(film["properties"].items()))}
    users, items = by_entity(user={"json": film})
    assert users != by_entity()[0] and items == by_entity()[1]
    assert by_entity(user={"json": turned})[0] != users  # the order of properties is that of the text
    assert by_entity(json=film)[0] == users and by_entity(regex="a")[0] != by_entity(choices=["a"])[0]
