"""Measures the embedded model on unseen worlds: ``python -m dare_job.evaluate.embedded``.

Decodes greedily with transformers' own ``generate`` and prints one JSON line.

Also replays known texts against a pool of other texts, without a model, to measure draft acceptance.
"""

import json
import operator
import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import torch
import typer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from dare_job import prompts
from dare_job.data.recorded_texts import by_digest, load_tokenizer, read
from dare_job.data.sample_world.catalogue import MOOD_OF, MOODS, PLACES, THEME_OF, THEMES
from dare_job.data.sample_world.foreign import foreign_examples
from dare_job.data.sample_world.simulate import DAYS, Example, item_examples, simulate, user_examples
from dare_job.errors import ConfigError
from dare_job.evaluate.replay.drafters import Blend
from dare_job.evaluate.replay.measure import replay
from dare_job.models import embedded_path
from dare_job.training.embedded.corpus import FIRST_TRAINING_SEED
from pools.draft import DraftSettings
from pools.index import Index

Texts = Sequence[Sequence[int]]  # token ids of each text


def accepted_per_step(texts: Texts, pool: Texts, nodes: int, context: int) -> float:
    """Accepted draft tokens over target steps, the bonus token not counted, exact match.

    Each text starts from its first token; each step drafts a tree of at most ``nodes`` nodes
    from ``pool`` by contexts of at most ``context`` tokens, accepts the path that agrees with the text and
    adds one token of the text.
    """
    index = Index.build([np.asarray(text, np.int32) for text in pool])
    rows = [np.asarray(text, np.int32) for text in texts if len(text) > 1]
    drafter = Blend([(index,)] * len(rows), DraftSettings(context=context, live=False))
    accepted, steps = replay(rows, drafter, nodes)["per_text"].sum(axis=0).tolist()
    return accepted / steps


def llama_profiles(folder: Path) -> list[list[int]]:
    """GPT-2 token ids of the ML-1M profiles in swapUniba/LLM-user-profiles-for-recsys (Llama 3, 8B).

    ``folder`` holds ``knowledge/ml1m_users_llama3chatqa.jsonl.gz`` (keys ``user``, ``plain``) and GPT-2's
    ``tokenizer/gpt2_encoder.json`` and ``gpt2_vocab.bpe``. Order: sha256 of the user id, so that the first N
    are a held-out set.

    Raises
    ------
    DataError
        A file is missing or damaged.
    """
    profiles = read(folder / "knowledge/ml1m_users_llama3chatqa.jsonl.gz", "plain", "user")
    ids = load_tokenizer([folder / "tokenizer"])([profiles.texts[i] for i in by_digest(profiles.ids)])
    return [row.tolist() for row in ids]


_TITLE = re.compile(rf"\b({'|'.join(MOOD_OF)}) ([A-Z][a-z]+)( in (?:{'|'.join(PLACES)}))?\b")
_MOOD = re.compile(rf"\b({'|'.join(MOODS)})\b")
_THEME = re.compile(rf"\b({'|'.join(THEMES)})\b")
_BATCH_ROWS = 64
_ITEMS = 300
_FOREIGN = 100  # profiles of made-up titles, and half as many descriptions
_SPARE_USERS = 40  # some users have no history
_REFERENCE_HELD_OUT = 1000


@dataclass(frozen=True)
class Generated:
    """``text`` without special tokens, its ``token_ids`` without BOS and EOS; ``ended``: EOS was written."""

    text: str
    token_ids: tuple[int, ...]
    ended: bool


@dataclass(frozen=True)
class Tally:
    """Counts over texts; a statement is a mood or theme in a sentence that names a title."""

    titles: int = 0
    titles_shown: int = 0
    statements: int = 0
    statements_true: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*map(operator.add, astuple(self), astuple(other)))


def generate(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str],
             max_new_tokens: int = 320) -> list[Generated]:
    """Greedy continuation of each prompt in ``texts``, in order, in padded batches."""
    results: dict[int, Generated] = {}
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for cut in range(0, len(order), _BATCH_ROWS):
        rows = order[cut : cut + _BATCH_ROWS]
        inputs = tokenizer([texts[i] for i in rows], return_tensors="pt", padding=True)
        with torch.inference_mode():
            output = model.generate(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"],
                                    do_sample=False, max_new_tokens=max_new_tokens)
        for i, ids in zip(rows, output[:, inputs["input_ids"].shape[1] :].tolist(), strict=True):
            ended = tokenizer.eos_token_id in ids
            kept = ids[: ids.index(tokenizer.eos_token_id)] if ended else ids
            results[i] = Generated(tokenizer.decode(kept), tuple(kept), ended)
    return [results[i] for i in range(len(texts))]


def tally(text: str, shown: Sequence[str]) -> Tally:
    """Check one text against the titles that its prompt showed and the facts of the titles it names.

    Titles: which named ones were shown. Statements: in each sentence with a title, every mood and theme,
    true when it is the fact of the title's word. A title with an unknown noun counts as not shown.
    """
    total = Tally()
    for sentence in re.split(r"(?<=\.) ", text):
        title = _TITLE.search(sentence)
        if title is None:
            continue
        adjective, noun = title.group(1), title.group(2)
        rest = sentence[: title.start()] + sentence[title.end() :]
        moods, themes = _MOOD.findall(rest), _THEME.findall(rest)
        true = sum(mood == MOOD_OF[adjective] for mood in moods)
        true += sum(theme == THEME_OF.get(noun) for theme in themes)
        total += Tally(1, int(title.group(0) in shown), len(moods) + len(themes), true)
    return total


def _replayed(texts: Texts, pool: Texts) -> dict[str, float]:
    return {"pool_texts": len(pool)} | {
        f"{nodes}_nodes_context_{context}": accepted_per_step(texts, pool, nodes, context)
        for nodes in (16, 64) for context in (2, 12)}


def _figures(examples: Sequence[Example], generated: Sequence[Generated]) -> dict[str, float]:
    total = sum((tally(g.text, x.titles) for x, g in zip(examples, generated, strict=True)), Tally())
    count = len(examples)
    return {
        "texts": count,
        "titles_named_per_text": total.titles / count,
        "share_of_named_titles_shown": total.titles_shown / max(total.titles, 1),
        "share_of_statements_true": total.statements_true / max(total.statements, 1),
        "share_distinct": len({g.text for g in generated}) / count,
        "share_as_grammar": sum(g.text == x.text for x, g in zip(examples, generated, strict=True)) / count,
        "share_ended": sum(g.ended for g in generated) / count,
        "mean_tokens": sum(len(g.token_ids) for g in generated) / count,
    }


def _foreign_figures(examples: Sequence[Example], generated: Sequence[Generated]) -> dict[str, float]:
    """Figures of texts about made-up titles.

    share_of_titles_copied is the share of the reference text's titles that the generated text spells exactly.
    """
    copied = [title in g.text for x, g in zip(examples, generated, strict=True)
              for title in x.titles if title in x.text]
    return {
        "texts": len(examples),
        "share_of_titles_copied": sum(copied) / len(copied),
        "share_distinct": len({g.text for g in generated}) / len(examples),
        "share_ended": sum(g.ended for g in generated) / len(examples),
    }


def measure(model: Path | None = None, users: int = 200, items: int = 200, pool: int = 600, seed: int = 7,
            reference: Path | None = None) -> None:
    """Measure the embedded model, or another one, on an unseen world, and print one JSON line.

    ``users`` profiles of the last day and ``items`` descriptions are checked. The profiles are then replayed
    against the model's profiles of ``pool`` other users as of the day before; 0 leaves this out. With
    ``reference`` (see ``llama_profiles``) an 8B model's real profiles are replayed by the same rule.
    """
    if seed >= FIRST_TRAINING_SEED:
        raise ConfigError(f"seed {seed} may have been trained on: use one below {FIRST_TRAINING_SEED}")
    tokenizer = AutoTokenizer.from_pretrained(model or embedded_path())
    network = AutoModelForCausalLM.from_pretrained(model or embedded_path(), dtype=torch.float32).eval()

    def written(examples: Sequence[Example]) -> list[Generated]:
        return generate(network, tokenizer, [example.prompt for example in examples])

    world, prompt_set = simulate(users + pool + _SPARE_USERS, _ITEMS, seed), prompts.load(prompts.SAMPLE)
    profiles = list(user_examples(world, prompt_set, DAYS))[:users]
    descriptions = list(item_examples(world, prompt_set, DAYS))[:items]
    foreign = list(foreign_examples(_FOREIGN, prompt_set, np.random.default_rng((seed, 0))))
    texts = written(profiles)
    result = {"seed": seed, "users": _figures(profiles, texts),
              "items": _figures(descriptions, written(descriptions)),
              "foreign": _foreign_figures(foreign, written(foreign))}
    if pool:
        others = [x for x in user_examples(world, prompt_set, DAYS - 1) if x.row > profiles[-1].row][:pool]
        result["accepted_per_step"] = _replayed([text.token_ids for text in texts],
                                                [text.token_ids for text in written(others)])
    if reference is not None:
        real = llama_profiles(reference)
        result["accepted_per_step_of_reference"] = _replayed(real[:_REFERENCE_HELD_OUT],
                                                             real[_REFERENCE_HELD_OUT:])
    print(json.dumps(result))


if __name__ == "__main__":
    typer.run(measure)
