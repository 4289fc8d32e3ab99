"""Training of a writer: what it learns, how it resumes, and what it refuses."""

import json
import random
import re
from collections import Counter
from datetime import UTC, datetime

import profile_files
import pyarrow.parquet as pq
import pytest
import torch
from chat_models import CHATML, tokenizer_with
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

from dare_job.bench.profiles import claims, data, two_date_input, writer_texts
from dare_job.bench.profiles.data import Film, Profile
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model.target import Target
from dare_job.decode.prompt.template import PromptFormat
from dare_job.decode.prompt.tokens import prompt_ids
from dare_job.decode.request import Request
from dare_job.decode.settings import EngineSettings
from dare_job.errors import ConfigError, DataError
from dare_job.prompts.sets import HistoryItem
from dare_job.training.writer import train
from dare_job.training.writer.settings import Options, Settings

SYSTEM = "You write profiles."
FILMS = ("Heat", "Alien")


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Folder of an untrained chat model."""
    folder = tmp_path_factory.mktemp("writer") / "start"
    tokenizer = tokenizer_with(CHATML)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=True))
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, do_sample=False)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def texts(tmp_path):
    """Thirty-two prompts; each answer names the prompt's film."""
    file = tmp_path / "texts.jsonl"
    rows = [{"system": SYSTEM, "prompt": f"Film: {FILMS[n % 2]}", "text": f" Likes {FILMS[n % 2]}. "}
            for n in range(32)]
    file.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return file


def options(start, texts, to, **settings):
    defaults = {"epochs": 40, "rate": 3e-3, "held_out": 4, "batch_tokens": 256}
    return Options(str(start), texts, to, device="cpu", threads=1, settings=Settings(**defaults | settings))


def test_it_learns_to_write_the_texts_and_to_end_them(start, texts, tmp_path):
    report = train.run(options(start, texts, tmp_path / "w"))
    assert report["texts"] == 28 and report["held_out"] == 4 and report["kind"] == "writer"
    assert report["training"]["validation"][-1] < 0.1 * report["training"]["validation"][0]
    tokenizer, target = AutoTokenizer.from_pretrained(tmp_path / "w"), Target.load(tmp_path / "w")
    asked = PromptFormat(system=SYSTEM)
    requests = [Request(film, prompt_ids(tokenizer, f"Film: {film}", asked)) for film in FILMS]
    for result in Engine(target, EngineSettings(max_new_tokens=40)).run(requests):
        assert result.finish_reason == "eos"
        assert tokenizer.decode(result.token_ids, skip_special_tokens=True) == f"Likes {result.id}."


def test_a_killed_training_ends_with_the_same_weights(start, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "_SAVE_EVERY_S", 0.0)
    whole = train.run(options(start, texts, tmp_path / "whole", epochs=2))
    saves = []

    def killed(self, *args, save=train.Checkpoint.save):
        save(self, *args)
        saves.append(1)
        if len(saves) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(train.Checkpoint, "save", killed)
        with pytest.raises(KeyboardInterrupt):
            train.run(options(start, texts, tmp_path / "resumed", epochs=2))
    assert not (tmp_path / "resumed").exists()
    resumed = train.run(options(start, texts, tmp_path / "resumed", epochs=2))
    assert resumed["training"]["validation"] == whole["training"]["validation"]
    models = [AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("whole", "resumed")]
    for one, other in zip(*(model.state_dict().values() for model in models), strict=True):
        assert torch.equal(one, other)
    assert not train.training_folder(tmp_path / "resumed").exists()


def test_a_text_ends_as_the_chat_template_ends_it(start, texts, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(start)
    tokenizer.eos_token = next(token for token in sorted(tokenizer.get_vocab())
                               if token.isalpha() and token not in texts.read_text())
    rows, _ = train.read_rows(texts, tokenizer, 256)
    assert {row.text[-1] for row in rows} == {tokenizer.convert_tokens_to_ids("<|im_end|>")}


@pytest.mark.parametrize("line", ["{", '{"prompt": "p"}', '{"prompt": "p", "text": " "}', '["p", "t"]', "7"])
def test_an_unusable_line_is_named(line, start, texts, tmp_path):
    texts.write_text(f"{texts.read_text()}{line}\n")
    with pytest.raises(DataError, match="texts.jsonl, line 33"):
        train.run(options(start, texts, tmp_path / "w"))


def test_what_cannot_be_trained_is_refused(start, texts, tmp_path):
    with pytest.raises(DataError, match="32 texts that fit --context; --held-out 20"):
        train.run(options(start, texts, tmp_path / "w", held_out=20))
    with pytest.raises(DataError, match="cannot be read"):
        train.run(options(start, tmp_path / "none", tmp_path / "w"))
    with pytest.raises(ConfigError, match="--save .* is the folder of --base"):
        train.run(options(start, texts, start))
    with pytest.raises(ConfigError, match="no chat template"):
        train.read_rows(texts, tokenizer_with(None), 100)


def test_rows_longer_than_the_context_are_left_out(texts):
    tokenizer = tokenizer_with(CHATML)
    rows, left_out = train.read_rows(texts, tokenizer, 1000)
    longest = max(map(len, rows))
    assert (len(rows), left_out) == (32, 0)
    assert train.read_rows(texts, tokenizer, longest - 1)[1] == sum(len(row) == longest for row in rows)


HISTORY = tuple(Film(title, title, year, genres) for title, year, genres in (
    ("The Matrix", "1999", ("Action", "Sci-Fi")), ("Fargo", "1996", ("Crime",)),
    ("Pulp Fiction", "1994", ("Crime", "Drama")), ("Se7en (Seven)", "1995", ("Crime", "Thriller")),
    ("Heat", "1995", ("Crime",)), ("Alien", "1979", ("Horror", "Sci-Fi")),
    ("Casablanca", "1942", ("Drama",)), ("Laura", "1944", ("Crime", "Drama")),
    ("Gilda", "1946", ("Crime",)), ("Rififi", "1955", ("Crime",))))
OPENING = "Based on the user's favorite movies, it can be inferred that their favourite genre is crime."
ON_FILMS = 'The user also seems to enjoy crime and drama, as seen in "Pulp Fiction" and "Laura."'
OTHERS = ('Additionally, the user appears to enjoy movies with a mix of crime and drama, such as "Laura."',
          'They also enjoy horror, as evidenced by the inclusion of movies like "Heat" on the list.')
FRAMES = (("The user seems to enjoy ", ", as seen in ", ""), ("The user appears to enjoy ", ", such as ", ""),
          ("They enjoy ", ", as evidenced by the inclusion of movies like ", " on the list"))
LEFT_OUT = ('The user\'s fondness for "Heat" suggests a preference for crime.',  # films come first
            'The user seems to enjoy gritty crime dramas, as seen in "Heat."',  # claims more
            'The user enjoys historical drama, as seen in "Heat."',  # so does this
            'The user enjoys drama, as seen in "Heat," which is dark.',  # says more of a film
            'The user enjoys horror, as shown by their favorites "Heat" and "Alien."',  # not one film
            "The user likes a wide range of genres.", "The runtime is two hours.")


def recorded(history=HISTORY, user="1"):
    return Profile(user, " ".join((OPENING, ON_FILMS, *OTHERS, *LEFT_OUT)), history)


def test_openings_and_what_stands_around_genres_and_films_are_kept():
    kept = writer_texts.Sentences()
    kept.add(recorded())
    assert kept.openings == {OPENING.replace("avourite", "avorite"): ("Crime",)}
    assert tuple(kept.frames) == FRAMES


@pytest.fixture(scope="module")
def made():
    examples = writer_texts.examples([recorded(user=str(n)) for n in range(90)], 8, 30)
    assert len(examples) == 30 and len({each.user for each in examples}) == 30
    return examples


def asked(each):
    return writer_texts.prompts.load(writer_texts.PROMPTS).user({}, writer_texts.history(each.films))


def test_a_text_has_a_sentence_for_each_group_of_its_prompt(made):
    all_claims = set()
    for each in made:
        assert each.text.startswith(("Based on", "No genre")) and 4 <= len(each.films) <= 8
        assert len(each.text.split()) <= 140 and "(Seven)" not in each.text
        groups = re.findall(r"^- ([a-z, -]+): (.+)$", asked(each), re.M)
        said = each.text.split(". ", 2)[2].split(". ")
        titles = 0
        for (genres, films), sentence in zip(groups, said, strict=True):
            group = re.findall(r'"([^"]+)"', films)
            others = genres == "others"
            newest = group[:3 if len(group) > 3 or len(groups) <= 2 or others else 2]
            assert re.findall(r'"([^",]+),?"', sentence.replace('", "', '" "')) == newest
            titles += len(newest)
            if others:
                assert sentence.startswith("They also liked" if newest == group else "Other films they liked")
                assert not writer_texts.claims_of(sentence)
                continue
            claim = " and ".join(writer_texts._NOUNS[genre.title()] for genre in genres.split(", "))
            assert f" {claim}" in sentence and writer_texts.claims_of(sentence) == set(claim.split(" and "))
            assert len(group) > 1
            all_claims.add(claim)
        assert titles == each.titles >= 3
    assert {"crime films", "crime films and drama"} <= all_claims
    assert any("They also liked" in each.text for each in made)


def test_films_whose_genres_no_other_film_has_are_grouped_by_the_first_genre_or_come_last():
    def film(title, *genres):
        return Film(title, title, "1990", genres)

    films = (film("a", "Crime", "War"), film("b", "Drama"), film("c", "Crime", "Drama"), film("d", "Horror"),
             film("e", "Crime", "Drama"), film("f", "Crime", "Horror"), film("g", "War"))
    counts = Counter(genre for each in films for genre in each.genres)
    found = [("".join(each.title for each in group), genres)
             for group, genres in writer_texts.groups(films, counts)]
    assert found == [("ec", ["Crime", "Drama"]), ("fa", ["Crime"]), ("gdb", [])]
    prompt = writer_texts.prompts.load(writer_texts.PROMPTS).user({}, writer_texts.history(films))
    assert re.findall(r"^- ([a-z, ]+): (.+)$", prompt, re.M) == [
        ("crime, drama", '"e" (1990), "c" (1990)'), ("crime", '"f" (1990), "a" (1990)'),
        ("others", '"g" (1990), "d" (1990), "b" (1990)')]
    assert "\nMost frequent: crime\n" in prompt
    assert writer_texts.groups(films[3:5], Counter(("Horror", "Crime", "Drama"))) == []


@pytest.mark.parametrize(("genres", "said"), [
    (("Crime", "Crime", "War"), "crime"), (("Crime", "War", "Crime", "War"), "crime and war"),
    (("Crime", "War", "Drama") * 2, "none of them alone"), (("Crime", "War"), None)])
def test_the_prompt_names_the_genres_that_lead(genres, said):
    films = [Film(str(n), str(n), "", (genre,)) for n, genre in enumerate(reversed(genres))]
    prompt = writer_texts.prompts.load(writer_texts.PROMPTS).user({}, writer_texts.history(films))
    assert re.findall("^Most frequent: (.+)$", prompt, re.M) == ([said] if said else [])


def test_a_text_counts_what_its_prompt_counts_and_speaks_of_all_of_it(made):
    for each in made:
        in_prompt = re.search(r"Of these (\d) films: (.*)", asked(each))
        said = re.search(r"(?:Of the|All) (\d) films,? ([^.]+)\. (.*)", each.text)
        assert said[1] == in_prompt[1] == str(len(each.films))
        numbers = re.findall(r"(\d+) (?:have the genre |(?:are )?from the )?([a-z0-9'-]+)", said[2])
        counted = [re.fullmatch(r"(.+?)( all)? (\d+)( each)?", entry)
                   for entry in re.split("[;,] ", in_prompt[2])]
        assert numbers == [(one[3], value) for one in counted for value in one[1].split(" and ")]
        assert all(bool(one[2]) == (one[3] == in_prompt[1]) for one in counted)
        assert all(bool(one[4]) == (" and " in one[1]) for one in counted)
        for number, value in numbers:
            assert int(number) == sum(value in map(str.lower, (*film.genres, f"{film.year[:3]}0s"))
                                      for film in each.films) > 1
            assert value.endswith("0s") or writer_texts._NOUNS[value.title()] in said[3]


@pytest.mark.parametrize(("counts", "said"), [
    ({"Crime": 5, "Drama": 3, "War": 2, "Horror": 1}, "5 have the genre crime, 3 drama and 2 war."),
    ({"Crime": 5, "Drama": 2, "War": 2, "Sci-Fi": 2}, "5 have the genre crime, 2 drama, 2 war and 2 sci-fi."),
    ({"Crime": 5, **dict.fromkeys(("Drama", "War", "Sci-Fi", "Musical", "Horror"), 2)},
     "5 have the genre crime."), (dict.fromkeys("abcdef", 2), None), ({"Crime": 1}, None)])
def test_genres_that_are_equally_frequent_are_all_counted_or_none_of_them(counts, said):
    frequent = writer_texts.most_frequent(Counter(counts))
    assert writer_texts._counted(frequent, [], 8) == ([f"Of the 8 films, {said}"] if said else [])


def test_what_all_films_have_is_said_so():
    assert writer_texts._counted([("War", 4), ("Drama", 2)], [("1980s", 4)], 4) == [
        "All 4 films have the genre war and 2 drama; all are from the 1980s."]
    assert writer_texts._counted([], [("1980s", 4)], 4) == ["All 4 films are from the 1980s."]


@pytest.mark.parametrize(("counts", "said"), [
    ({"Crime": 4, "Drama": 3}, "many"), ({"Crime": 8, "Drama": 3}, "is crime."), ({"Crime": 3}, "is crime."),
    ({"Crime": 4, "Drama": 4}, None), ({"Drama": 4}, None), ({"Crime": 4, "Drama": 4, "War": 4}, "No genre"),
    ({"Crime": 1, "Drama": 1, "War": 1}, "No genre"), ({"Crime": 1}, None)])
def test_an_opening_names_the_most_frequent_genre_and_a_right_quantity(counts, said):
    many = OPENING.replace("favourite", "favorite").replace("crime.", "crime, as many movies are crime.")
    composer = writer_texts._Composer([Profile("1", f"{OPENING} {many}", HISTORY)], 8)
    composer._used[OPENING.replace("favourite", "favorite")] += 1  # the other one is preferred
    text = composer._opening(Counter(counts), 8, random.Random(0))
    assert said in text if said else text is None


@pytest.mark.parametrize(("text", "counts"), [
    ('The inclusion of "Fargo" and "Gilda" suggests a fondness for crime films.', (2, 2, 2, 2)),
    ('The user seems to enjoy horror, as seen in "Alien," "Fargo" and "Jaws."', (3, 2, 3, 1)),
    ('They enjoy crime films and drama, as seen in "Laura" and "Heat".', (2, 2, 2, 1)),
    ('Their love for "Laura" and "Heat" suggests a taste for drama.', (2, 2, 2, 1)),
    ("The user's favorite genre is drama.", (0, 0, 0, 0)), ('They like "Heat."', (1, 1, 0, 0))])
def test_titles_and_claims_are_held_against_the_history(text, counts):
    assert claims.count_claims(text, HISTORY) == claims.ClaimCounts(*counts)


def test_a_history_that_bears_out_too_little_has_no_text():
    profiles = [recorded(), *(recorded(HISTORY[:3], str(n)) for n in range(2, 9))]
    assert {each.user for each in writer_texts.examples(profiles, 8, 9)} <= {"1"}


def test_records_ask_for_somewhat_more_words_than_the_text_has():
    made = writer_texts.Example("1", HISTORY, ON_FILMS, 2)
    record = writer_texts._record(made, writer_texts.prompts.load(writer_texts.PROMPTS))
    limit, words = int(record["prompt"].split("at most ")[1].split()[0]), len(made.text.split())
    assert words <= limit < words + 50 and record["system"].startswith("You write")
    films = '"Rififi" (1955), "Gilda" (1946), "Heat" (1995), "Se7en" (Seven) (1995), "Fargo" (1996)'
    assert f"- crime: {films}\n" in record["prompt"] and record["text"] == made.text
    counted = "Of these 10 films: crime 7, drama 3, sci-fi 2; 1990s 5, 1940s 3"
    assert f"\n{counted}\n" in record["prompt"]
    bare = writer_texts.prompts.load(writer_texts.PROMPTS).user({}, [HistoryItem("Heat")])
    assert '- "Heat"\n' in bare and "Of these" not in bare


def test_the_bench_writes_what_the_command_reads(tmp_path):
    profile_files.write(tmp_path)
    folder = data.load(tmp_path)
    assert folder[0].films[0].year and folder[0].films[0].genres == ("Drama",)
    assert writer_texts.examples(folder, 12, 5) == []  # their profiles are too short to be learned
    assert writer_texts.Options(tmp_path, tmp_path / "x.jsonl").held_out == pytest.approx(1 / 3)


def test_the_input_of_two_dates_ends_with_three_new_films_of_each_user(tmp_path, capsys):
    profile_files.write(tmp_path)
    save = tmp_path / "input"
    two_date_input.main(data=tmp_path, save=save, date="2026-01-02", held_out=0.5)
    said = json.loads(capsys.readouterr().out)
    rows = pq.read_table(save / "interactions.parquet").to_pylist()
    midnight = datetime(2026, 1, 2, tzinfo=UTC).timestamp()
    _, users = data.split(data.load(tmp_path), said["users"])
    assert {row["user_id"] for row in rows} == {profile.user for profile in users}
    for profile in users:
        own = sorted((row["timestamp"], row["item_id"]) for row in rows if row["user_id"] == profile.user)
        assert [item for _, item in own] == [film.id for film in profile.films]
        assert [when >= midnight for when, _ in own] == [False] * (len(own) - 3) + [True] * 3
        assert own[-1][0] < midnight + 86400
    items = pq.read_table(save / "items.parquet").to_pylist()
    assert len(items) == said["items"] and all(dict(item["attributes"])["genre"] for item in items)
    with pytest.raises(ConfigError, match="exists already"):
        two_date_input.Options(tmp_path, save)
