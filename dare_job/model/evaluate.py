"""Measures the embedded model on worlds that it was not trained on: ``python -m dare_job.model.evaluate``.

Decodes greedily with transformers' own ``generate`` and prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from dare_job import prompts
from dare_job.data.world.simulate import DAYS, Example, item_examples, simulate, user_examples
from dare_job.data.world.words import MOOD_OF, MOODS, PLACES, THEME_OF, THEMES
from dare_job.model import embedded_path

_TITLE = re.compile(rf"\b({'|'.join(MOOD_OF)}) ([A-Z][a-z]+)( in (?:{'|'.join(PLACES)}))?\b")
_MOOD = re.compile(rf"\b({'|'.join(MOODS)})\b")
_THEME = re.compile(rf"\b({'|'.join(THEMES)})\b")
_BATCH_ROWS = 25


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

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.titles + other.titles,
            self.titles_shown + other.titles_shown,
            self.statements + other.statements,
            self.statements_true + other.statements_true,
        )


def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    max_new_tokens: int = 320,
) -> list[Generated]:
    """Greedy continuation of each prompt in ``texts``, in order, in padded batches."""
    results: list[Generated | None] = [None] * len(texts)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for cut in range(0, len(order), _BATCH_ROWS):
        rows = order[cut : cut + _BATCH_ROWS]
        inputs = tokenizer([texts[i] for i in rows], return_tensors="pt", padding=True)
        with torch.inference_mode():
            output = model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                do_sample=False,
                max_new_tokens=max_new_tokens,
            )
        for i, ids in zip(rows, output[:, inputs["input_ids"].shape[1] :].tolist(), strict=True):
            ended = tokenizer.eos_token_id in ids
            kept = ids[: ids.index(tokenizer.eos_token_id)] if ended else ids
            results[i] = Generated(tokenizer.decode(kept), tuple(kept), ended)
    return [result for result in results if result is not None]


def tally(text: str, shown: Sequence[str]) -> Tally:
    """Check one text against the titles that its prompt showed and the facts of the titles it names.

    Titles: which named ones were shown. Statements: in each sentence with a title, every mood and theme,
    true when it is the fact of the title's word. A title with an unknown noun counts as not shown.
    """
    total = Tally()
    for sentence in re.split(r"(?<=\.) ", text):
        found = _TITLE.search(sentence)
        if found is None:
            continue
        adjective, noun = found.group(1), found.group(2)
        rest = sentence[: found.start()] + sentence[found.end() :]
        moods, themes = _MOOD.findall(rest), _THEME.findall(rest)
        true = sum(mood == MOOD_OF[adjective] for mood in moods)
        true += sum(theme == THEME_OF.get(noun) for theme in themes)
        total += Tally(1, int(found.group(0) in shown), len(moods) + len(themes), true)
    return total


def measure(folder: Path, users: int, items: int, seed: int) -> dict[str, object]:
    """Figures on the first ``users`` users with a history and ``items`` items of the world ``seed``."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    world, prompt_set = simulate(max(400, users + 40), 300, seed), prompts.load("kar")
    profiles = list(user_examples(world, prompt_set, DAYS))[:users]
    descriptions = list(item_examples(world, prompt_set, DAYS))[:items]
    return {
        "seed": seed,
        "users": _figures(profiles, generate(model, tokenizer, [x.prompt for x in profiles])),
        "items": _figures(descriptions, generate(model, tokenizer, [x.prompt for x in descriptions])),
    }


def _figures(examples: Sequence[Example], generated: Sequence[Generated]) -> dict[str, float]:
    total = sum((tally(g.text, x.titles) for x, g in zip(examples, generated, strict=True)), Tally())
    written = sum((tally(x.text, x.titles) for x in examples), Tally())
    count = len(examples)
    return {
        "texts": count,
        "titles_named_per_text": total.titles / count,
        "titles_named_per_text_of_grammar": written.titles / count,
        "share_of_named_titles_shown": total.titles_shown / max(total.titles, 1),
        "share_of_statements_true": total.statements_true / max(total.statements, 1),
        "statements_per_text": total.statements / count,
        "share_distinct": len({g.text for g in generated}) / count,
        "share_as_grammar": sum(g.text == x.text for x, g in zip(examples, generated, strict=True)) / count,
        "share_ended": sum(g.ended for g in generated) / count,
        "mean_tokens": sum(len(g.token_ids) for g in generated) / count,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=embedded_path())
    parser.add_argument("--users", type=int, default=200)
    parser.add_argument("--items", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.model, arguments.users, arguments.items, arguments.seed), indent=1))


if __name__ == "__main__":
    main()
