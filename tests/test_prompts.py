"""Prompt sets: what they show, what they refuse, and that a change of wording changes the hash."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from dare_job import prompts
from dare_job.bench.profiles import data
from dare_job.bench.profiles.data import prompt
from dare_job.config.settings import PromptSettings
from dare_job.decode.model.prefix_cache import PrefixCache
from dare_job.errors import ConfigError, RowError
from dare_job.prompts import cost
from dare_job.prompts.read import DOMAINS, max_words
from dare_job.prompts.sets import HistoryItem, PromptSet

FRAMEWORKS = {"kar": "2306.10933", "trawl": "2403.06642", "once": "2305.06566", "rlmrec": "2310.15950"}
HISTORY = [HistoryItem("Toy Story (1995)"), HistoryItem("Heat (1995)", 4.5, {"genre": "Crime",
                                                                           "subcategory": "Noir"})]
WORDS = {"movies": ("film", "viewer"), "books": ("book", "reader")}


def _write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def _set(user="{{ history | length }}", item="{{ title }}", more=""):
    return f"name: own\nmax_history: 2\nuser: '{user}'\nitem: '{item}'\n{more}"


def _domains(**words) -> str:
    return yaml.safe_dump({"domains": words})


def _written(known, side, attributes):
    return known.user(attributes, HISTORY) if side == "user" else known.item("Heat (1995)", attributes)


def test_there_is_a_set_for_each_framework_and_one_for_the_embedded_model():
    assert prompts.set_names() == sorted([*FRAMEWORKS, "brief", "writer", prompts.SAMPLE])
    for name, paper in FRAMEWORKS.items():
        file = Path(prompts.__file__).with_name(f"{name}.yaml")
        assert paper in yaml.safe_load(file.read_text("utf-8"))["source"]


@pytest.mark.parametrize("name, domain, side", itertools.product(FRAMEWORKS, DOMAINS, ("user", "item")))
@pytest.mark.parametrize("attributes", [{}, {"year": "1995", "age": "25-34"}], ids=["bare", "attributes"])
def test_every_set_asks_for_its_factors_in_the_words_of_its_domain(name, domain, side, attributes):
    known = prompts.load(name, domain)
    text = _written(known, side, attributes)
    assert known.name == name
    assert all(factor in text for factor in known.words["factors"])
    for other, words in WORDS.items():
        assert any(word in text for word in words) is (other == domain), text
    assert "Heat (1995)" in text and all(f"\n{key}: {value}\n" in text for key, value in attributes.items())
    assert "{" not in text and not any(line != line.strip() for line in text.splitlines())
    assert "" not in text.splitlines()


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_instruction_is_what_all_prompts_of_a_side_begin_with(name):
    """It is read once, whatever users and items there are."""
    known = prompts.load(name)
    for side in ("user", "item"):
        one, other = _written(known, side, {}).splitlines(), _written(known, side, {"age": "1"}).splitlines()
        same = [a == b for a, b in zip(one, other, strict=False)].index(False)
        assert len(" ".join(one[:same])) > 150


def test_ratings_and_kinds_are_shown_where_they_are_known():
    def history(name, domain="movies"):
        return prompts.load(name, domain).user({}, HISTORY).splitlines()[-2]

    assert history("rlmrec") == (
        "The viewer watched, newest first: Heat (1995) (Crime), rated 4.5; Toy Story (1995).")
    assert "read, newest first: Heat (1995) (Noir), rated 4.5; Toy" in history("rlmrec", "books")
    assert history("kar").endswith("newest first: Heat (1995), rated 4.5; Toy Story (1995).")


def test_the_length_in_words_follows_from_the_limit_in_tokens():
    lengths = {1: 1, 10: 6, 33: 19, 34: 20, 64: 30, 160: 90, 192: 110, 256: 150, 512: 300}
    assert {tokens: max_words(tokens) for tokens in lengths} == lengths
    for name in FRAMEWORKS:
        known = prompts.load(name, max_new_tokens=192)
        for text in (known.user({}, HISTORY), known.item("Heat", {}), known.system_text("user")):
            assert "at most 110 words" in text
        shorter = prompts.load(name, max_new_tokens=160)
        assert known.version_hash != shorter.version_hash
        assert known.conversation_hash("user") != shorter.conversation_hash("user")


def test_a_set_without_the_length_has_one_hash_for_all_lengths(tmp_path):
    path = _write(tmp_path / "a.yaml", _set())
    jinja = _write(tmp_path / "a.jinja", "{{ title }}, in {{ max_words }} words")
    assert prompts.load(path, max_new_tokens=99).version_hash == prompts.load(path).version_hash
    assert prompts.load(jinja, side="item", max_new_tokens=100).item("Heat", {}) == "Heat, in 60 words"
    assert prompts.load(jinja, side="item", max_new_tokens=99).version_hash != prompts.load(
        jinja, side="item").version_hash


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_text_with_room_for_them_has_the_papers_factors(domain):
    long, short = (prompts.load("kar", domain, max_new_tokens=tokens) for tokens in (512, 256))
    assert len(long.words["paper_factors"]) == 9
    for known, factors in ((long, long.words["paper_factors"]), (short, short.words["factors"])):
        asked = ", ".join(factors)
        assert f"about {asked}, name" in known.user({}, HISTORY)
        assert f"about {asked} in plain" in known.item("Heat", {})


def _around(**keys) -> str:
    return (yaml.safe_dump(keys) if keys else "") + _domains(movies={"kind": "film"})


def test_system_text_and_examples_are_written_with_the_words_of_the_domain(tmp_path):
    turns = [{"user": "One {{ kind }}.", "assistant": "In {{ max_words }} words.\n"}]
    own = prompts.load(_write(tmp_path / "a.yaml", _set(more=_around(
        system={"user": "You know {{ kind }}s.\n"}, examples={"item": turns}))), max_new_tokens=100)
    assert (own.system_text("user"), own.system_text("item")) == ("You know films.", "")
    assert (own.example_turns("user"), own.example_turns("item")) == ((), (("One film.", "In 60 words."),))
    both = prompts.load(_write(tmp_path / "b.yaml", _set(more=_around(system="A {{ kind }}."))))
    assert both.system_text("user") == both.system_text("item") == "A film."


def test_system_text_and_examples_are_part_of_the_hash(tmp_path):
    def load(**keys):
        return prompts.load(_write(tmp_path / "a.yaml", _set(more=_around(**keys))))

    turn = {"user": "u", "assistant": "a"}
    sets = [load(), load(system="s"), load(system={"user": "s"}), load(system="t"),
            *(load(examples=turns) for turns in ({"user": [turn]}, {"user": [turn, turn]}, {"item": [turn]}))]
    assert len({known.version_hash for known in sets}) == len(sets)
    assert load(system=" ").version_hash == load().version_hash and not load().conversation_hash("user")
    only_users = load(system={"user": "s"})
    assert only_users.conversation_hash("user") and not only_users.conversation_hash("item")


def test_the_embedded_models_set_is_what_it_was_trained_on():
    for domain in DOMAINS:
        sample = prompts.load(prompts.SAMPLE, domain)
        assert sample.version_hash == "19461a5501606a54711ba652b045410364e004869bbfeaf8755dff21d31853d0"
    assert sample.user({"gender": "F", "age": "25"}, HISTORY) == (
        "Describe the film taste of this viewer by mood, theme and recent habits.\nage: 25\ngender: F\n"
        "Last 2 titles, newest first:\n1. Heat (1995)\n2. Toy Story (1995)\nProfile:\n")
    assert sample.item("Heat (1995)", {"genre": "Crime"}) == (
        "Describe this film by mood, theme and audience.\nTitle: Heat (1995)\ngenre: Crime\nDescription:\n")


def test_user_prompt_shows_only_the_newest_part_of_a_long_history():
    kar = prompts.load("kar")
    history = [HistoryItem(f"Film {n}") for n in range(50)]
    assert kar.user({}, history) == kar.user({}, history[-kar.max_history :])
    assert "Film 49" in kar.user({}, history) and "Film 29\n" not in kar.user({}, history)


def test_attributes_come_in_one_order():
    kar = prompts.load("kar")
    assert kar.item("Heat", {"a": "1", "b": "2"}) == kar.item("Heat", {"b": "2", "a": "1"})


def test_rows_without_content_are_row_errors():
    kar = prompts.load("kar")
    with pytest.raises(RowError, match="empty history"):
        kar.user({"age": "25"}, [])
    for title in ("", "  "):
        with pytest.raises(RowError, match="empty title"):
            kar.item(title, {})


def test_titles_are_text_and_never_templates():
    text = prompts.load("kar").item("{{ 7 * 7 }} <b>&", {})
    assert "{{ 7 * 7 }} <b>&" in text


def test_own_file_and_hash(tmp_path):
    first = prompts.load(_write(tmp_path / "a.yaml", _set()))
    same = prompts.load(_write(tmp_path / "b.yaml", _set(more="source: a paper\n")), "books")
    other = prompts.load(_write(tmp_path / "c.yaml", _set(item="{{ title }}!")))
    assert first.name == "own" and first.user({}, [HistoryItem("x")] * 5) == "2"
    assert first.version_hash == same.version_hash != other.version_hash
    assert len(first.version_hash) == 64


def test_an_own_system_text_for_a_built_in_set(tmp_path):
    text = "base: kar\nsystem: 'Speak as a {{ person }}.'\n"
    own = prompts.load(_write(tmp_path / "mine.yaml", text), "books")
    kar = prompts.load("kar", "books")
    assert (own.name, own.templates, own.max_history) == ("mine", kar.templates, kar.max_history)
    assert own.system_text("user") == own.system_text("item") == "Speak as a reader."
    assert own.version_hash != kar.version_hash
    for base in ("karr", "[kar]"):
        with pytest.raises(ConfigError, match=r"mine.yaml: base = .*: no such set; use one of brief, kar"):
            prompts.load(_write(tmp_path / "mine.yaml", f"base: {base}\nsystem: x\n"))


def test_a_domains_words_are_part_of_the_hash(tmp_path):
    def load(domain, **words):
        file = _set(item="{{ kind }} {{ title }}", more=_domains(**words))
        return prompts.load(_write(tmp_path / "a.yaml", file), domain)
    both = {"movies": {"kind": "film"}, "books": {"kind": "book"}}
    film, book = (load(domain, **both) for domain in DOMAINS)
    assert (film.item("Heat", {}), book.item("Heat", {})) == ("film Heat", "book Heat")
    assert film.version_hash != book.version_hash
    assert load("movies", movies={"kind": "film"}).version_hash == film.version_hash  # the others' are not
    with pytest.raises(ConfigError, match=r"a\.yaml is not for prompts\.domain = 'books'; it has movies$"):
        load("books", movies={"kind": "film"})


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (_set(user="{{ histroy }}"), ["user, line 1", "unknown histroy", "attributes, history, max_words"]),
        (_set(item="{{ history }}"), ["item, line 1", "unknown history", "use attributes, max_words, title"]),
        ("name: a\nmax_history: 1\nuser: u\nitem: |\n  {{ title }}\n  {{ titel }}\n",
         ["item, line 2", "titel"]),
        (_set(user="{% for x in %}"), ["user, line 1", "Expected an expression"]),
        (_set(user="{{ history | frist }}"), ["user, line 1", "No filter named 'frist'"]),
        (_set(user="{% include name %}"), ["user", "cannot include"]),
        (_set(user=" "), ["user", "empty"]),
        (_set().replace("name: own", "nome: own"),
         ["key name is missing", "unknown key nome (did you mean name?)",
          "keys: base, domains, examples, item"]),
        (_set().replace("max_history: 2", "max_history: 0"),
         ["max_history = 0", "greater than or equal to 1"]),
        (_set().replace("max_history: 2", "max_history: many"), ["max_history = 'many'", "integer"]),
        (_set().replace("max_history: 2", "max_history: true"), ["max_history = True", "integer"]),
        (_set().replace("name: own", "name: 5"), ["name = 5", "string"]),
        (_set(more="source: [a]\n"), ["source = ['a']", "string"]),
        (_set(more="domains: movies\n"), ["domains = 'movies'", "dictionary"]),
        (_set(more=_domains(music={"a": "b"})), ["unknown key domains.music", "movies, books"]),
        (_set(more=_domains(movies="film")), ["domains.movies = 'film'", "mapping"]),
        (_set(more=_domains(movies={"a": "x"}, books={"b": "y"})),
         ["domains.books and domains.movies differ in a, b: define"]),
        (_set(more=_domains(movies={"title": "x"})), ["domains.movies.title", "use another name"]),
        (_set(more=_domains(movies={"a-b": "x"})), ["domains.movies.a-b", "letters, digits and _"]),
        (_set(more=_domains(movies={"a": 3})), ["domains.movies.a = 3", "a text or a list of texts"]),
        (_set(more=_domains(movies={"a": []})), ["domains.movies.a = []", "a text or a list of texts"]),
        (_set(item="{{ a }}", more=_domains(movies={"b": "x"})), ["item, line 1", "b, max_words"]),
        (_set(more="system: [a]\n"), ["system", "string"]),
        (_set(more="system: {users: a}\n"), ["system", "users"]),
        (_set(more="system: '{{ title }}'\n"), ["system of user, line 1", "unknown title", "use max_words"]),
        (_set(more="examples: {user: [{user: a}]}\n"), ["examples.user, turn 1", "user and assistant"]),
        (_set(more="examples: {user: [{user: '{{ x }}', assistant: b}]}\n"),
         ["examples of user", "unknown x"]),
        (_set(more=_domains(movies={"max_words": "x"})), ["domains.movies.max_words", "use another name"]),
        ("- a\n- b\n", ["must hold a mapping with the keys name, max_history, user, item", ".jinja"]),
        ("name: [\n", ["not YAML", "line 2"]),
    ],
)
def test_bad_files_are_config_errors(tmp_path, text, messages):
    path = _write(tmp_path / "bad.yaml", text)
    with pytest.raises(ConfigError) as found:
        prompts.load(path)
    assert path in str(found.value) and all(part in str(found.value) for part in messages), found.value


def test_a_jinja_file_is_the_template_of_one_side(tmp_path):
    path = _write(tmp_path / "own.jinja", "{% for e in history %}{{ e.title }};{% endfor %}")
    own = prompts.load(path, side="user")
    assert own.user({}, [HistoryItem(str(n)) for n in range(100)]).count(";") == 100  # all that it is given
    assert prompts.load(path, "books", "user").version_hash == own.version_hash
    with pytest.raises(ConfigError, match=r"own\.jinja has no item template: use it only as prompts\.user"):
        own.item("Heat", {})
    with pytest.raises(ConfigError, match=r"own\.jinja, line 1 of the template: uses unknown history"):
        prompts.load(path, side="item")
    with pytest.raises(ConfigError, match=r"set prompts\.user or prompts\.item to it"):
        prompts.load(path)
    item = _write(tmp_path / "own.j2", "{{ title }}\n{{ attributes.genre | upper }}")
    assert prompts.load(item, side="item").item("Heat", {"genre": "crime"}) == "Heat\nCRIME"


def test_unknown_name_lists_the_known():
    with pytest.raises(ConfigError, match="use one of brief, kar, once, rlmrec, sample, trawl, writer or"):
        prompts.load("no-such-set")


def test_a_file_that_is_no_text_is_a_config_error(tmp_path):
    (tmp_path / "own.j2").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"own\.j2 cannot be read as text"):
        prompts.load(str(tmp_path / "own.j2"), side="item")


def test_templates_cannot_reach_python(tmp_path):
    own = prompts.load(_write(tmp_path / "a.yaml", _set(item="{{ title.__class__.__mro__ }}")))
    with pytest.raises(ConfigError):
        own.item("x", {})


@pytest.mark.parametrize("line, message", [
    ("{{ history[0].titel }}", "titel"), ("{{ attributes.age }}", "age"),
    ("{{ 1 // (history | length - 1) }}", "zero"), ("{{ '%d' | format(history[0].title) }}", "%d"),
    ("{{ '%(year)s' | format(**attributes) }}", "KeyError: 'year'"),
    ("{{ '{year}'.format(**attributes) }}", "KeyError: 'year'"),
    ("{{ '{1}'.format(history[0].title) }}", "IndexError: .* out of range"),
    ("{{ history[0].title.encode('x-none') }}", "LookupError: unknown encoding"),
    ("{{ history[0].title | xmlattr }}", "AttributeError: .*items"),
    ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "RecursionError: "),
    ("{{ history[0].title.center(10 ** 17) }}", "MemoryError$"),
    ("{{ history[0].title | truncate(1) }}", "AssertionError: "), ("{{ cycler() }}", "RuntimeError: ")])
def test_what_a_row_does_not_have_is_a_config_error_that_names_the_line(tmp_path, line, message):
    own = prompts.load(_write(tmp_path / "own.jinja", f"Hello\n{line}\n"), side="user")
    with pytest.raises(ConfigError, match=rf"'own\.jinja', user, line 2 of the template: .*{message}"):
        own.user({"gender": "F"}, [HistoryItem("x")])


def test_a_prompt_that_no_table_can_hold_is_a_config_error(tmp_path):
    path = _write(tmp_path / "own.jinja", "{{ '%c' | format(attributes.code | int) }}")
    own = prompts.load(path, side="item")
    assert own.item("Heat", {"code": "233"}) == "é"
    with pytest.raises(ConfigError, match=r"'own\.jinja', item: .*surrogates not allowed"):
        own.item("Heat", {"code": "55296"})


def test_the_real_profiles_model_is_asked_in_the_words_that_it_was_trained_on():
    wording = prompts.load(str(Path(data.__file__).with_name("prompts.yaml")))
    history = [HistoryItem(f"Film {n}, The (19{n})", attributes={"year": f"19{n}"}) for n in range(80, 94)]
    history.append(HistoryItem("1984"))
    assert wording.user({}, history) == prompt([*(f"Film {n}, The" for n in range(80, 94)), "1984"])
    assert wording.item("Heat (1995)", {"year": "1995"}) == prompt(["Heat"])
    assert wording.item("1984", {}) == prompt(["1984"])


@pytest.mark.parametrize("side", ["user", "item"])
@pytest.mark.parametrize("name", [name for name in prompts.set_names() if name not in ("writer", "sample")])
def test_shared_instructions_stand_first_so_that_a_worker_reads_them_once(name, side):
    """The words that all prompts share stand at their beginning, and the prefix cache reads them once.

    Models are trained on the prompts of ``writer`` and ``sample``, which stay as they are.
    """
    known = prompts.load(name)
    first, second = (cost._whole(known, side, row).split() for row in range(2))
    shared, last = (sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)) for pairs in (
        zip(first, second, strict=False), zip(first[::-1], second[::-1], strict=False)))
    assert shared >= 4 * last and shared >= 50
    rows = [[*range(shared), *range(1000 * row, 1000 * row + len(first) - shared)] for row in range(1, 9)]
    ids = [np.array(row, np.int32) for row in rows]  # eight rows that share these words and no others
    reads, cache = [], PrefixCache()

    def read(tokens):
        reads.append(tokens)
        return [torch.zeros(2, 1, len(tokens), 1)]

    for _ in range(2):  # batches
        cache.update(ids, read)
        (prefix, members), = cache.group(ids)
        assert len(prefix) == shared and len(members) == 8
    assert [tokens.tolist() for tokens in reads] == [[*range(shared)]]


def test_compact_histories_are_titles_alone():
    kar, entries = prompts.load("kar"), [HistoryItem("Heat (1995)", 4.5, {"genre": "Crime"}),
                                         HistoryItem("(1995)", None), HistoryItem("2001 (a film)", 2.0)]
    compact = replace(kar, compact=True)
    text = compact.user({"age": "25-34"}, entries)
    assert "watched, newest first: 2001 (a film); (1995); Heat.\n" in text and "rated" not in text
    assert "age: 25-34" in text
    assert kar.version_hash != compact.version_hash == replace(kar, compact=True).version_hash
    assert compact.item("Heat (1995)", {}) == kar.item("Heat (1995)", {})


def test_the_setting_makes_the_histories_of_users_compact():
    settings = PromptSettings(user="kar", item="kar", history="compact")
    assert settings.of("user").compact and not settings.of("item").compact
    assert not PromptSettings(user="kar", item="kar").of("user").compact


def test_cost_is_shared_tokens_and_those_of_a_row():
    template = "Say it. {% for e in history %}{{ e.title }}, {% endfor %}"
    known = PromptSet("own", 2, {"user": template}, system={"user": "Be kind."})
    found = cost.cost(known, "user", lambda text: len(text.split()))
    assert found == cost.Cost(4, 6)
    compact = cost.cost(replace(known, compact=True), "user", lambda text: len(text.split()))
    assert compact == cost.Cost(4, 4)
