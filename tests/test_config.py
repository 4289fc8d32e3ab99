"""Settings: what is accepted, what is refused, and what the refusal says."""

import dataclasses
import re
from pathlib import Path

import pytest

from dare_job.config.base import Section, values_for
from dare_job.config.errors import REPLACED
from dare_job.config.gates import MAX_SHARE
from dare_job.config.settings import JobConfig, load
from dare_job.decode.settings import Beams, EngineSettings, Warp
from dare_job.errors import ConfigError

SHIPPED = sorted((Path(__file__).parents[1] / "conf").glob("*.yaml"))


@pytest.fixture
def settings(tmp_path):
    """Factory: text becomes a file, read with overrides."""
    def read(text: str = "", *overrides: str, **flags) -> JobConfig:
        (tmp_path / "job.yaml").write_text(text, encoding="utf-8")
        return load(tmp_path / "job.yaml", list(overrides), **flags)
    return read


def refused(settings, *arguments, **flags) -> str:
    with pytest.raises(ConfigError) as found:
        settings(*arguments, **flags)
    return str(found.value)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_shipped_files_load(path):
    assert load(path).out


def test_there_are_shipped_files():
    assert {"demo.yaml", "movielens.yaml", "nightly.yaml"} <= {path.name for path in SHIPPED}


@pytest.mark.parametrize("text, parts", [
    ("spark: {shards: 0}", ["spark.shards = 0", "greater than or equal to 1", "auto"]),
    ("group: {clusters: 0}", ["group.clusters = 0", "greater than or equal to 1", "auto"]),
    ("group: {clusters: many}", ["group.clusters = 'many'", "integer", "'auto'"]),
    ("decode: {min_new_tokens: 9, max_new_tokens: 8}",
     ["decode.min_new_tokens = 9", "decode.max_new_tokens = 8"]),
    ("beam: {length_penalty: .nan}", ["beam.length_penalty = nan", "finite"]),
    ("decode: {blend_lambda: .inf}", ["decode.blend_lambda = inf", "finite"]),
    ("history: {min_rating: .nan}", ["history.min_rating = nan", "finite"]),
    ("decode: {nodes: true}", ["decode.nodes = True", "integer"]),
    ("decode: {nodes: 8.5}", ["decode.nodes = 8.5", "integer"]),
    ("decode: {nodes: '8'}", ["decode.nodes = '8'", "integer"]),
    ("decode: {nodes: }", ["decode.nodes = None", "integer"]),
    ("decode: {blend_lambda: true}", ["decode.blend_lambda = True", "number"]),
    ("verify: {reproducible: 1}", ["verify.reproducible = 1", "boolean"]),
    ("model: {name: ''}", ["model.name = ''", "at least 1 character"]),
    ("model: {name: 12345}", ["model.name = 12345", "string", "quotes"]),
    ("seed: 99999999999999999999", ["seed", "less than or equal to 2147483647"]),
    ("decode: {batch_size: 1000000000000}", ["decode.batch_size", "less than or equal to 65536"]),
    ("spark: {master: foo}", ["spark.master = 'foo'", "local[N], yarn, spark://HOST:PORT"]),
    ("prompts: {user: nope}", ["prompts.user = 'nope'", "use one of brief, kar, once, rlmrec, sample"]),
    ("prompts: {domain: music}", ["prompts.domain = 'music'", "should be 'movies' or 'books'"]),
    ("metrics: {file: 's3://bucket/dare.prom'}", ["metrics.file", "Path (no URL)"]),
    ("1: foo", ["key 1 is not text", "decode"]),
    ("decode: {true: 4}", ["key True is not text", "nodes"]),
    ("spark: {conf: {1: x}}", ["spark.conf.1"]),
    ("spark: {conf: {spark: {foo: 1}}}", ["spark.conf.spark", "string"]),
    ("decode: 3", ["decode = 3"]),
    ("decode: {nods: 3}", ["unknown key decode.nods (did you mean nodes?)", "valid keys: batch_size"]),
    ("decoding: {}", ["unknown key decoding (did you mean decode?)"]),
    ("verify: {rule: loose}", ["verify.rule = 'loose'", "'strict', 'relaxed'", "'ratio'", "'entropy'"]),
    ("verify: {c: 0}", ["verify.c = 0", "greater than 0"]),
    ("verify: {c: 1.5}", ["verify.c = 1.5", "less than or equal to 1"]),
    ("verify: {epsilon: 0, delta: 2}", ["verify.epsilon = 0", "verify.delta = 2"]),
    ("verify: {length_quantile: 1}", ["verify.length_quantile = 1", "less than 1"]),
    ("verify: {length_quantile: 95%}", ["verify.length_quantile = '95%'", "number"]),
    ("group: {user_attributes: [a, 1]}", ["group.user_attributes = 1", "string"]),
    ("decode: {schema: {jsn: a}}", ["unknown key decode.schema.jsn (did you mean json?)", "choices, item"]),
    ("decode: {schema: {json: no.json}}", ["json = 'no.json' cannot be read (No such file", "in place"]),
    ("decode: {schema: {json: [1]}}", ["json = [1] is no JSON schema"]),
    ("decode: {schema: {json: {const: 2026-01-01}}}", ["decode.schema: json holds a value", "quotes"]),
    ("decode: {schema: {regex: a, choices: [a]}}", ["regex and choices are both set: keep one of them"]),
    ("decode: {schema: {user: {regex: ''}}}", ["decode.schema.user.regex = ''", "at least 1 character"]),
    ("decode: {schema: {choices: [a, b, a]}}", ["choices: 'a' occurs twice"]),
    ("decode: {schema: {choices: ['a ']}}", ["choices: 'a ' begins or ends with white space"]),
    ("decode: {mode: beam, schema: {regex: a}}", ["decode.schema.regex: mode beam does not support it"]),
    ("decode: {min_new_tokens: 3, schema: {item: {regex: a}}}",
     ["decode.min_new_tokens = 3 with decode.schema.item.regex", "leave decode.min_new_tokens out"]),
    ("- a", ["must hold a mapping", "list"]),
    ("3", ["must hold a mapping", "int"]),
    ("a: [", ["not valid YAML"]),
    ("out: 2026-02-31", ["not valid YAML"]),
    ("decode: {nodes: -1, depth: 0}", ["decode.nodes = -1", "decode.depth = 0"]),
])
def test_refusals_name_key_file_and_choices(settings, text, parts):
    message = refused(settings, text)
    assert all(part in message for part in parts), message
    assert message.count("job.yaml") == 1


@pytest.mark.parametrize("override, parts", [
    ("decode.nodes=true", ["decode.nodes = True"]),
    ("decode.nods=1", ["unknown key decode.nods"]),
    ("decode=3", ["decode = 3"]),
    ("decode.nodes.deep=3", ["decode.nodes"]),
    ("decode.max_new_tokens=1", ["decode.min_new_tokens = 2"]),
    ("beam.min_width=5", ["beam.width = 4"]),
    ("spark.shards=0", ["spark.shards = 0"]),
])
def test_a_refused_override_names_itself_and_not_the_file(settings, override, parts):
    message = refused(settings, "decode: {min_new_tokens: 2}", override)
    assert message.startswith(f"--set {override}: ") and "job.yaml" not in message
    assert all(part in message for part in parts), message


def test_file_and_override_each_answer_for_their_own(settings):
    message = refused(settings, "decode: {nodes: -1}", "decode.context=0")
    file, _, flag = message.partition("; --set ")
    assert "job.yaml: decode.nodes = -1" in file and flag.startswith("decode.context=0: decode.context = 0")


def test_a_refused_flag_names_itself(settings):
    message = refused(settings, "", flags={"model.name": ("--model", "")})
    assert message.startswith("--model : model.name = ''")


@pytest.mark.parametrize("override", ["decode.nodes", "=3", " =3", "decode.nodes=[", "out.x=1"])
def test_overrides_of_the_wrong_shape(settings, override):
    assert "--set" in refused(settings, "out: o", override)


@pytest.mark.parametrize("text, overrides, key, expected", [
    ("decode:", [], "decode.nodes", "auto"),
    ("decode:", ["decode.nodes=4"], "decode.nodes", 4),
    ("decode: {depth: 3}", ["decode="], "decode.depth", 32),
    ("", [], "decode.nodes", "auto"),
    ("decode: {blend_lambda: 4}", [], "decode.blend_lambda", 4.0),
    ("verify: {p: 1e-3}", [], "verify.p", 0.001),
    ("", ["verify.p=5E-2"], "verify.p", 0.05),
    ("spark: {shards: 3}", ["spark.shards=auto"], "spark.shards", "auto"),
    ("", ['model.name="12345"'], "model.name", "12345"),
    ("", ["group.user_attributes=[age, city]"], "group.user_attributes", ["age", "city"]),
    ("", ["spark.conf.spark.foo=1"], "spark.conf", {"spark.foo": "1"}),
    ("spark: {conf: }", ["spark.conf.spark.a.b=true"], "spark.conf", {"spark.a.b": "true"}),
    ("spark: {conf: {spark.x: 1.5, spark.y: no}}", ["spark.conf.spark.x=z"], "spark.conf",
     {"spark.x": "z", "spark.y": "false"}),
    ("", ["spark.conf={spark.x: 2}"], "spark.conf", {"spark.x": "2"}),
    ("spark: {conf: }", [], "spark.conf", {}),
    ("embed: {vectors: {item: i}}", [], "embed.vectors", {"item": "i"}),
    ("", ["decode.schema.regex=a|b"], "decode.schema.regex", "a|b"),
    ("decode: {schema: {json: {b: 1, a: [é]}}}", [], "decode.schema.json", '{"b": 1, "a": ["é"]}'),
    ("decode: {schema: {user: {choices: [x]}}}", ["decode.schema.item.regex=a"], "decode.schema.user.choices",
     ["x"]),
])
def test_accepted(settings, text, overrides, key, expected):
    found = settings(text, *overrides)
    for name in key.split("."):
        found = getattr(found, name)
    assert found == expected and type(found) is type(expected)


def test_flags_win_and_are_taken_as_they_are(settings):
    found = settings("out: a", "out=b", flags={"out": ("--out", "c: 🙂"), "input.path": ("--input", "1")})
    assert (found.out, found.input.path) == ("c: 🙂", "1")


@pytest.mark.parametrize("make, part", [
    (lambda path: None, "does not exist"), (Path.mkdir, "cannot be read"),
    (lambda path: path.write_bytes(b"out: \xff"), "not valid YAML"),
])
def test_files_that_cannot_be_read(tmp_path, make, part):
    make(tmp_path / "c.yaml")
    with pytest.raises(ConfigError, match=part) as found:
        load(tmp_path / "c.yaml")
    assert "c.yaml" in str(found.value)


@pytest.fixture
def files(tmp_path):
    """Factory: texts become files, read together; messages name them a.yaml, b.yaml ..."""
    def read(*texts: str, overrides=()) -> JobConfig:
        paths = [tmp_path / f"{name}.yaml" for name, _ in zip("abc", texts, strict=False)]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text, encoding="utf-8")
        return load(paths, list(overrides))
    return read


def test_later_files_win_key_by_key(files):
    found = files("out: o\ndecode: {nodes: 4, depth: 3}\nspark: {conf: {spark.a: 1, spark.b: 2}}",
                  "decode: {nodes: 64}\nspark: {conf: {spark.b: 3}}\npools:", "decode:\nout: p",
                  overrides=["decode.context=7"])
    assert (found.out, found.decode.nodes, found.decode.depth, found.decode.context) == ("p", 64, 3, 7)
    assert found.spark.conf == {"spark.a": "1", "spark.b": "3"}


@pytest.mark.parametrize("texts, file, part", [
    (("decode: {nodes: -1}", "decode: {depth: 3}"), "a", "decode.nodes = -1"),
    (("decode: {nodes: 4}", "decode: {nodes: -1}"), "b", "decode.nodes = -1"),
    (("", "decode: {nods: 4}", "decode: {nodes: 4}"), "b", "unknown key decode.nods (did you mean nodes?)"),
    (("decode: {nodes: 4}", "decoding: {nodes: 4}"), "b", "unknown key decoding (did you mean decode?)"),
    (("decode: {nodes: 4}", "decoding: {}"), "b", "unknown key decoding"),
    (("decode: {nodes: 4}", "decode: 3"), "b", "decode = 3"),
    (("decode: 3", "decode: {nodes: 4}"), "b", "decode is a section here, but 3 in a file before it"),
    (("decode: {nodes: 4}", "decode: {nodes: }"), "b", "decode.nodes = None"),
    (("decode: {nodes: 4}", "1: foo"), "b", "key 1 is not text"),
    (("decode: {max_new_tokens: 8}", "decode: {min_new_tokens: 9}"), "b", "decode.min_new_tokens = 9"),
    (("decode: {max_new_tokens: 8, min_new_tokens: 9}", "decode: {}"), "a", "decode.min_new_tokens = 9"),
    (("", "- a"), "b", "must hold a mapping"), (("", "a: ["), "b", "not valid YAML")])
def test_of_several_files_the_wrong_one_is_named(files, texts, file, part):
    with pytest.raises(ConfigError) as found:
        files(*texts)
    message = str(found.value)
    assert part in message and f"{file}.yaml" in message
    assert not any(f"{other}.yaml" in message for other in set("abc") - {file})


def test_an_override_of_several_files_names_itself(files):
    with pytest.raises(ConfigError, match=r"^--set decode.nodes=-1: decode.nodes = -1"):
        files("decode: {nodes: 4}", "decode: {nodes: 64}", overrides=["decode.nodes=-1"])


@pytest.mark.parametrize("value", ["[]", "[500, 50]", "[50, 50]"])
def test_sizes_of_waves_ascend(settings, value):
    with pytest.raises(ConfigError, match=r"--set waves\.sizes.*each larger than the one before") as found:
        settings("", f"waves.sizes={value}")
    assert "waves.when=never" in str(found.value)


PRIVATE = re.compile(r"\b(tonight|anew|behind|hangs? on|laws?|judged?|verdicts?|spoilt|owed|company|people|"
                     r"lists|old text|own text|plain decoding|forwards|taken|guarded|by the clock)\b")


def leaves(section: type[Section] = JobConfig, above: str = "") -> dict:
    """All settings by key, with their fields."""
    found = {}
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            found |= leaves(kind, f"{above}{name}.")
        else:
            found[above + name] = field
    return found


def test_there_are_at_most_124_settings_and_those_of_the_input_tables():
    assert len([key for key in leaves() if not key.startswith("input.tables.")]) <= 124


@pytest.mark.parametrize("key", leaves())
def test_each_setting_has_a_description_in_sentences(key):
    text = leaves()[key].description
    assert text and len(text) >= 15 and text[0].isupper() and not text.endswith((".", ",", ":", ";")), text
    assert "  " not in text and not PRIVATE.search(text), text


@pytest.mark.parametrize("key", REPLACED)
def test_a_key_of_an_earlier_version_is_refused_with_what_replaced_it(settings, key):
    assert key not in leaves()
    section, name = key.split(".")
    for message in (refused(settings, f"{section}: {{{name}: 1}}"), refused(settings, "", f"{key}=1")):
        assert f"unknown key {key}: {REPLACED[key]}" in message


@pytest.mark.parametrize("key", REPLACED)
def test_what_replaced_a_key_is_a_setting(key):
    for name in re.findall(r"\b(?<!\.)[a-z]+\.[a-z_]+\b(?!\.)", REPLACED[key]):
        assert name in leaves() or name.startswith("spark."), name


@pytest.mark.parametrize("engine, section", [
    (EngineSettings, "decode"), (EngineSettings, "verify"), (Warp, "sample"), (Beams, "beam")])
def test_sections_have_the_defaults_and_descriptions_of_the_engine(engine, section):
    fields = type(getattr(JobConfig(), section)).model_fields
    assert values_for(engine, getattr(JobConfig(), section))
    for field in dataclasses.fields(engine):
        if field.name in fields and field.name != "nodes":
            assert fields[field.name].description == field.metadata["description"]
            assert fields[field.name].default == getattr(engine(), field.name)


def test_limits_of_checks_that_are_left_out_keep_their_defaults(settings):
    gates = settings("gates: {max_share: {loop: 0.1}}", "gates.max_share.cut_off=null").gates
    assert all(f"{check}: " in leaves()["gates.max_share"].description for check in MAX_SHARE)
    assert (gates.limit("loop"), gates.limit("cut_off"), gates.limit("empty")) == (0.1, None, 0.01)
    assert gates.limit("length_ratio") == 1.3
    assert settings("gates: {max_share: }").gates.limit("loop") == 0.02


@pytest.mark.parametrize(("text", "message"), [
    ("{max_share: {cutoff: 0.1}}", r"gates\.max_share\.cutoff: no such check \(did you mean cut_off\?\)"),
    ("{max_share: {loop: 2}}", r"gates\.max_share\.loop = 2: should be less than or equal to 1"),
    ("{max_share: 0.1}", r"gates\.max_share = 0\.1: should be a valid dictionary")])
def test_a_limit_that_cannot_be_is_named(settings, text, message):
    with pytest.raises(ConfigError, match=message):
        settings(f"gates: {text}")


def test_a_key_that_stands_twice_is_named(tmp_path):
    file = tmp_path / "twice.yaml"
    file.write_text("out: o\ncost:\n  per_gpu_hour: 3\nlog: {}\ncost:\n  per_gpu_hour: null\n")
    with pytest.raises(ConfigError, match="the key cost appears twice; keep one") as found:
        load(file)
    assert "twice.yaml" in str(found.value)


@pytest.mark.parametrize("zone, part", [
    ("Berlin", "not a known time zone; use one such as UTC or Europe/Berlin"),
    ("../x", "not a known time zone"),
    ("''", "not a known time zone"), ("localtime", "differs between hosts; name the zone")])
def test_a_day_boundary_is_a_time_zone_that_every_host_knows(settings, zone, part):
    with pytest.raises(ConfigError, match=part) as found:
        settings("", f"input.day_boundary={zone}")
    assert "input.day_boundary" in str(found.value)
    assert settings("", "input.day_boundary=Asia/Tokyo").input.day_boundary == "Asia/Tokyo"


def test_a_json_schema_is_read_from_its_file_and_stays_as_it_is(settings, tmp_path):
    """A worker has the schema itself; properties keep their order; settings can be validated again."""
    file = tmp_path / "film.json"
    file.write_text('{"type": "object",\n "properties": {"b": {}, "a": {}}}', encoding="utf-8")
    found = settings(f"decode: {{schema: {{item: {{json: {file}}}}}}}")
    text = '{"type": "object", "properties": {"b": {}, "a": {}}}'
    assert found.decode.forms.keys() == {"decode.schema.item.json"}
    assert found.decode.form_of("item").value == text and found.decode.form_of("user").kind is None
    file.unlink()
    assert JobConfig.model_validate(found.model_dump()) == found
    both = settings("decode: {schema: {regex: a, user: {choices: [b]}}}").decode
    assert (both.form_of().value, both.form_of("item").value, both.form_of("user").value) == ("a", "a", ["b"])
