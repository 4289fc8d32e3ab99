"""Item ids in a model's vocabulary: a recommender's folder, its prompts, and the tokens of its items.

The folder is a Hugging Face folder (config, safetensors, a tokenizer with a token for every code) with two
more files, ``item_ids.json`` and ``recommender.json``:

    {"format": 1, "item_ids": "item_ids.json", "first_code_token": [4, 260, ...], "max_history_items": 20,
     "prompt": {"begin": [1], "separator": []}}

The codes of a level have consecutive tokens: code c of level l is token ``first_code_token[l] + c``.
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
    """A recommender's item vocabulary and prompt format.

    Attributes
    ----------
    first_code_token
        Token of code 0 of each level.
    max_history_items
        Maximum number of items in a prompt; the newest are kept.
    begin, separator
        Tokens before the history, and tokens between it and the recommended item.
    tokens : int32 (N, L)
        Tokens of each item, in the row order of ``ids``.

    Raises
    ------
    ModelError
        ``ids`` and ``first_code_token`` have different numbers of levels.
    """

    folder: Path
    ids: ItemIds
    first_code_token: tuple[int, ...]
    max_history_items: int
    begin: tuple[int, ...] = ()
    separator: tuple[int, ...] = ()
    tokens: np.ndarray = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        if len(self.first_code_token) != self.ids.length:
            raise ModelError(f"ids have {self.ids.length} levels, but first_code_token has "
                             f"{len(self.first_code_token)} entries")
        tokens = self.ids.codes + np.asarray(self.first_code_token, np.int32)
        object.__setattr__(self, "tokens", tokens.astype(np.int32))

    @classmethod
    def open(cls, folder: str | Path) -> "Recommender":
        """Open a recommender's folder.

        Raises
        ------
        ConfigError
            The folder is no recommender's, or its item ids are missing.
        ModelError
            A field of its record is missing or invalid, or its parts do not fit together.
        DataError
            Its item ids are invalid.
        """
        folder = Path(folder)
        record = _record(folder)
        try:
            prompt = record["prompt"]
            recommender = cls(folder, ItemIds.load(folder / record["item_ids"]),
                              tuple(map(int, record["first_code_token"])), int(record["max_history_items"]),
                              tuple(map(int, prompt["begin"])), tuple(map(int, prompt["separator"])))
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{folder / RECORD} has a missing or invalid field ({error!r}): train the "
                             "recommender again") from None
        if (max_token := int(recommender.tokens.max())) >= (vocabulary_size := vocabulary_of(folder)):
            raise ModelError(f"{folder}: the largest item token is {max_token}, but the vocabulary has "
                             f"{vocabulary_size} tokens: {record['item_ids']} or {RECORD} is another model's")
        return recommender

    def write(self, folder: Path) -> None:
        """Write the two files next to the model's own."""
        self.ids.save(folder / ITEM_IDS)
        write_json(folder / RECORD, {
            "format": FORMAT, "item_ids": ITEM_IDS, "first_code_token": list(self.first_code_token),
            "max_history_items": self.max_history_items,
            "prompt": {"begin": list(self.begin), "separator": list(self.separator)}})

    def prompt(self, history: Sequence[int]) -> list[int]:
        """Return the prompt's token ids for a history of item rows, oldest first.

        The next L tokens that the model generates are an item.
        """
        newest = np.asarray(history, np.int64)[max(0, len(history) - self.max_history_items):]
        return [*self.begin, *self.tokens[newest].reshape(-1).tolist(), *self.separator]


def extend(tokenizer, ids: ItemIds) -> tuple[int, ...]:
    """Add a token for each code to a tokenizer, in place; return the first token of each level.

    Raises
    ------
    ConfigError
        The tokenizer already has some of them; a level's tokens must be consecutive.
    """
    before, names = len(tokenizer), ids.vocabulary()
    tokenizer.add_tokens(names)
    for expected, name in enumerate(names, before):
        if tokenizer.convert_tokens_to_ids(name) != expected:
            raise ConfigError(f"the tokenizer already has the token {name}: start from a model without item "
                              "tokens, or continue training that recommender with its own ids")
    return tuple(int(before + start) for start in np.cumsum((0, *ids.sizes[:-1])))


def _record(folder: Path) -> dict:
    path = folder / RECORD
    if not path.is_file():
        raise ConfigError(f"{folder} is not a recommender: it has no {RECORD}; train one with "
                          "`dare-job recommender train`")
    try:
        record = json.loads(path.read_text("utf-8"))
        if record["format"] != FORMAT:
            raise ModelError(f"{path} has format {record['format']!r}; this version reads format {FORMAT}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} cannot be read ({error!r}): train the recommender again") from None
    return record
