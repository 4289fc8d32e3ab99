"""Item ids inside a model's vocabulary: a recommender's folder, its prompts, and where its items' tokens are.

A folder is one of Hugging Face (config, safetensors, tokenizer whose added tokens are all codes) with two
more files: ``item_ids.json`` and ``recommender.json``,

    {"format": 1, "item_ids": "item_ids.json", "first_code_token": [4, 260, ...], "max_history_items": 20,
     "prompt": {"begin": [1], "separator": []}}

A level's codes have consecutive tokens: code c of level l is token ``first_code_token[l] + c``.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dare_job.errors import ConfigError, ModelError
from dare_job.models.files import vocabulary as vocabulary_of
from dare_job.recommend.item_ids import ItemIds
from dare_job.workspace import write_json

FORMAT = 1
RECORD = "recommender.json"
ITEM_IDS = "item_ids.json"


@dataclass(frozen=True)
class Recommender:
    """What a folder says of its items.

    first_code_token   token of code 0 of each level
    max_history_items  newest items that a prompt holds
    begin              tokens before the history; separator: tokens behind it, before the item that is said
    tokens             int32 (N, L): the tokens of each item, row by row as in ``ids``
    """

    folder: Path
    ids: ItemIds
    first_code_token: tuple[int, ...]
    max_history_items: int
    begin: tuple[int, ...] = ()
    separator: tuple[int, ...] = ()
    tokens: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        object.__setattr__(self, "tokens", tokens_of(self.ids, self.first_code_token))

    @classmethod
    def open(cls, folder: str | Path) -> "Recommender":
        """Of a folder. Raises ConfigError where it is no recommender's, ModelError where parts do not fit."""
        folder = Path(folder)
        record = _record(folder)
        try:
            prompt = record["prompt"]
            found = cls(folder, ItemIds.load(folder / record["item_ids"]),
                        tuple(map(int, record["first_code_token"])), int(record["max_history_items"]),
                        tuple(map(int, prompt["begin"])), tuple(map(int, prompt["separator"])))
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{folder / RECORD} lacks a field or has a wrong one ({error!r}): train the "
                             "recommender again") from None
        if (most := int(found.tokens.max())) >= (known := vocabulary_of(folder)):
            raise ModelError(f"{folder}: item tokens go to {most}, but the model knows {known}: its "
                             f"{record['item_ids']} or {RECORD} is another model's")
        return found

    def write(self, folder: Path) -> None:
        """The two files beside a model's own."""
        self.ids.save(folder / ITEM_IDS)
        write_json(folder / RECORD, {
            "format": FORMAT, "item_ids": ITEM_IDS, "first_code_token": list(self.first_code_token),
            "max_history_items": self.max_history_items,
            "prompt": {"begin": list(self.begin), "separator": list(self.separator)}})

    def prompt(self, history: Sequence[int]) -> list[int]:
        """Token ids of a prompt for a history of item rows, oldest first."""
        return history_prompt(history, self.tokens, self.max_history_items, self.begin, self.separator)


def tokens_of(ids: ItemIds, first_code_token: Sequence[int]) -> np.ndarray:
    """Token ids int32 (N, L) of all items. Raises ModelError where there is not one first token a level."""
    if len(first_code_token) != ids.length:
        raise ModelError(f"ids of {ids.length} levels, first_code_token has {len(first_code_token)} numbers")
    return (ids.codes + np.asarray(first_code_token, np.int32)).astype(np.int32)


def history_prompt(history: Sequence[int], tokens: np.ndarray, max_history_items: int,
                   begin: Sequence[int] = (), separator: Sequence[int] = ()) -> list[int]:
    """[begin] + the tokens of the newest ``max_history_items`` rows of a history, oldest first + [separator].

    tokens  int (N, L). The next L tokens that the model says are an item. An empty history is just ``begin``
    and ``separator``.
    """
    newest = np.asarray(history, np.int64)[max(0, len(history) - max_history_items):]
    return [*begin, *tokens[newest].reshape(-1).tolist(), *separator]


def extend(tokenizer, ids: ItemIds) -> tuple[int, ...]:
    """Add a token for each code to a tokenizer, in place; returns the first token of each level.

    Raises ConfigError where it knows some of them already, so that a level's tokens would not be consecutive.
    """
    before, names = len(tokenizer), ids.vocabulary()
    tokenizer.add_tokens(names)
    found = tokenizer.convert_tokens_to_ids(names)
    wrong = [name for place, name in enumerate(names) if found[place] != before + place]
    if wrong:
        raise ConfigError(f"the tokenizer knows {wrong[0]} already: start from a model without item tokens, "
                          "or train on from that recommender with its own ids")
    return tuple(int(before + start) for start in np.cumsum((0, *ids.sizes[:-1])))


def _record(folder: Path) -> dict:
    path = folder / RECORD
    if not path.is_file():
        raise ConfigError(f"{folder} is no recommender: it has no {RECORD}; make one with "
                          "`dare-job train-recommender`")
    try:
        record = json.loads(path.read_text("utf-8"))
        if record["format"] != FORMAT:
            raise ModelError(f"{path} is of format {record['format']!r}; this version reads {FORMAT}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} cannot be read ({error!r}): train the recommender again") from None
    return record
