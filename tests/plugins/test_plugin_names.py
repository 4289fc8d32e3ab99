"""Names of plug-ins: what they may be, what is imported, and what a wrong one is told."""

import re
import sys

import pytest

from dare_job.config.plugins import PlugIn
from dare_job.config.settings import JobConfig, load
from dare_job.data.text_key import text_salt
from dare_job.errors import ConfigError
from dare_job.inference.checks import check_drafting
from dare_job.refresh.chosen import equal_prompts_give_equal_texts

VERIFIER = """
class {name}:
    lossless = {lossless}
    def __init__(self, eos, gap=0.5):
        self.gap = gap
    def __call__(self, scores, tree, context):
        raise NotImplementedError
"""
STRICT = text_salt(JobConfig(), "m")


def parsed(text: str, kind: str = "drafter") -> PlugIn:
    return PlugIn.parse(kind, "drafter.plugin", text)


def salt(**sections) -> str:
    return text_salt(JobConfig.model_validate(sections), "m")


def test_a_name_has_a_module_a_class_and_options():
    plain, optioned = parsed("a.b:C"), parsed('b:C(x=1, y="two", z=-0.5, w=None, v=True,)')
    assert (plain.module, plain.name, plain.options) == ("a.b", "C", {})
    assert optioned.options == {"x": 1, "y": "two", "z": -0.5, "w": None, "v": True}
    assert "b" not in sys.modules


@pytest.mark.parametrize("text", [
    "C", "a.b", "a:b:C", "a:C(", "a:C)", "a:C(1)", "a:C(x=y)", "a:C(**x)", "a:C(x=[1])", "a:C(x=1)(y=2)",
    "a:C(x=1) or 2", "a-b:C", ":C", "a:", "a:C(x=1, x=2)", "a:C(x=1));import os;(", "../a:C"])
def test_other_names_are_refused_before_anything_is_imported(text):
    with pytest.raises(ConfigError, match="does not name a drafter: write package.module:Class, or"):
        parsed(text)
    with pytest.raises(ConfigError, match="drafter.plugin = "):
        load([], flags={"drafter.plugin": ("--drafter", text)})


def test_the_drafter_of_the_page_has_twenty_lines_and_loads(page):
    import plugin_page

    assert len(plugin_page.BLOCKS[0].splitlines()) <= 20
    made = parsed("my_methods:Lookup(context=3)").make()
    assert made.context == 3 and type(made) is parsed("my_methods:Lookup").load()


@pytest.mark.parametrize(("kind", "text", "message"), [
    ("drafter", "no_such_module:C", r"importing no_such_module failed \(ModuleNotFoundError: .*PYTHONPATH"),
    ("drafter", "dare_job.no_such:C", "importing dare_job.no_such failed .*PYTHONPATH"),
    ("drafter", "broken:C", r"importing broken failed \(ZeroDivisionError: division by zero\): fix it"),
    ("drafter", "needs:C", r"importing needs failed \(ModuleNotFoundError: .*not_installed.*\): fix it"),
    ("drafter", "my_methods:Lookpu", "my_methods has no class Lookpu; it has Lookup, Close"),
    ("drafter", "my_methods:np", "my_methods has no class np"),
    ("drafter", "my_methods:Close", r"Close has no draft: a drafter has draft \(docs/how-to/add-your-method"),
    ("verifier", "my_methods:Lookup", "Lookup has no __call__, lossless: a verifier has __call__, lossless"),
    ("draft budget", "my_methods:Lookup", "Lookup has no row_nodes, min_score, select, observe, record_step"),
    ("drafter", "my_methods:Lookup(contxt=3)", r"Lookup\(\*\*options\) is how it is made, and got an unexp"),
    ("verifier", "my_methods:Close(eos=3)", r"Close\(eos, \*\*options\) is how it is made, and multiple val"),
    ("verifier", "half:Half", "Half.lossless is 0.5; it must be True or False"),
    ("drafter", "failing:Failing", r"Failing could not be made: OSError: no weights")])
def test_what_cannot_be_loaded_is_named_with_its_setting(page, module, kind, text, message):
    module("broken", "1 / 0")
    module("needs", "import not_installed")
    module("half", VERIFIER.format(name="Half", lossless=0.5))
    module("failing", "class Failing:\n    draft = None\n    def __init__(self):\n"
                      "        raise OSError('no weights')")
    with pytest.raises(ConfigError, match=f"^drafter.plugin = .*{message}"):
        parsed(text, kind).make(*["eos"] * (kind == "verifier"))


@pytest.mark.parametrize(("sections", "message"), [
    ({"decode": {"mode": "resd"}, "drafter": {"plugin": "a:B"}}, "use decode.mode = dare or sample"),
    ({"decode": {"mode": "beam"}, "drafter": {"plugin": "a:B"}}, "drafter.plugin = 'a:B' with decode.mode"),
    ({"decode": {"mode": "sample"}, "verify": {"rule": "a:B"}}, "verify.rule = 'a:B' with decode.mode"),
    ({"decode": {"mode": "resd"}, "verify": {"rule": "a:B"}}, "verify.rule = 'a:B' with decode.mode"),
    ({"verify": {"rule": "a:B", "target": "cosine=0.98", "curve": "c"}}, "verify.rule = a:B: verify.target"),
    ({"drafter": {"plugin": "a:B", "model": "m"}}, "drafter.plugin = 'a:B' and drafter.model = 'm': leave"),
    ({"decode": {"nodes": "a:B", "mode": "sample"}}, "decode.nodes = 'a:B' with decode.mode = 'sample'")])
def test_settings_that_contradict_each_other(sections, message):
    with pytest.raises(ValueError, match=message):
        JobConfig.model_validate(sections)


@pytest.mark.parametrize(("key", "message"), [
    ("verify.rule", "'strict', .*'entropy' or package.module:Class, or package.module:Class.option=value"),
    ("decode.nodes", "should be 'auto' or a valid integer or package.module:Class, or"),
    ("drafter.plugin", "does not name a drafter: write package.module:Class")])
def test_a_wrong_value_is_told_all_choices(key, message):
    for value in ("relxed", "a:B(1)"):
        with pytest.raises(ConfigError, match=f"^--set {key}={re.escape(value)}: {key} = '.*{message}"):
            load([], [f"{key}={value}"])


def test_the_checks_before_a_run_import_each_plug_in():
    for section, key in (("drafter", "plugin"), ("verify", "rule"), ("decode", "nodes")):
        config = JobConfig.model_validate({section: {key: "no_such_module:C"}})
        with pytest.raises(ConfigError, match=rf"^{section}.{key} = 'no_such_module:C': importing"):
            check_drafting(config, lambda: None, lambda: None)


def test_texts_of_a_verifier_depend_on_it_unless_it_is_lossless(module):
    module("rules", "".join(VERIFIER.format(name=name, lossless=lossless)
                            for name, lossless in (("Exact", True), ("Loose", False))))
    assert salt(verify={"rule": "rules:Exact"}) == salt(verify={"rule": "rules:Exact(gap=1)"}) == STRICT
    loose = {"verify": {"rule": "rules:Loose"}}
    assert not equal_prompts_give_equal_texts(JobConfig.model_validate(loose))
    keys = [STRICT, salt(**loose), salt(verify={"rule": "rules:Loose(gap=1)"}),
            salt(**loose, decode={"nodes": 8}), salt(**loose, decode={"batch_size": 3})]
    assert len(set(keys)) == len(keys)
    assert salt(verify={"rule": "rules:Loose( gap = 1 )"}) == keys[2]


def test_a_changed_file_or_version_makes_texts_stale(module):
    text = VERIFIER.format(name="Loose", lossless=False)
    module("rules", text)
    before = salt(verify={"rule": "rules:Loose"})
    assert salt(verify={"rule": "rules:Loose"}) == before
    for change in (text + "# a comment", "__version__ = '2'" + text):
        module("rules", change)
        assert salt(verify={"rule": "rules:Loose"}) != before
    record = PlugIn.parse("verifier", "verify.rule", "rules:Loose(gap=2)").record()
    assert (record["name"], record["options"], record["version"]) == ("rules:Loose", {"gap": 2}, "2")
    assert len(record["sha256"]) == 64


def test_a_drafter_changes_no_strict_text_and_may_change_others(page):
    drafter = {"drafter": {"plugin": "my_methods:Lookup"}}
    relaxed = {"verify": {"rule": "relaxed"}}
    assert salt(**drafter) == STRICT
    other = salt(**relaxed, drafter={"plugin": "my_methods:Lookup(context=3)"})
    assert len({salt(**relaxed), salt(**relaxed, **drafter), other}) == 3
