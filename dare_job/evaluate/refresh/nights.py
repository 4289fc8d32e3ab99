"""What a full refresh would write on each night of a simulated world, and what a policy knows then.

Also vectors and tokens of texts, and vectors of items, for replayed nights.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from dare_job.data.item_vectors import ItemVectors
from dare_job.data.sample_world.catalogue import MOODS, THEMES
from dare_job.data.sample_world.daily import DailyWorld, profile_of_interests
from dare_job.embed.attributes import attribute_vectors
from dare_job.embed.lightgcn import Pairs
from dare_job.evaluate.ctr.sets import TextEncoder
from dare_job.models.files import EMBEDDED, resolve
from dare_job.prompts.sets import HistoryItem, PromptSet
from dare_job.schemas import ATTRIBUTES
from dare_job.training import lightgcn

NONE = -1
_HISTORY = pa.list_(pa.struct([("item_id", pa.string())]))
TextTokens = Callable[[list[str]], list[int]]  # tokens of each text


@dataclass(frozen=True)
class Nights:
    """D nights, each after the day of its number, and U users.

    Attributes
    ----------
    texts
        All T distinct texts.
    text : int32 (D, U)
        Place in ``texts`` of the text that a full refresh writes; NONE without clicks.
    clicks : int32 (D, U)
        Clicks up to and including the day.
    prompt_tokens, text_tokens : int32 (D, U)
        Tokens of the prompt and of the text that it gets; 0 without clicks.
    moved : float32 (D, U, max_history + 1)
        How far the history in the prompt moved with its newest 0, 1, ... entries (``ItemVectors.moved``).
    """

    texts: list[str]
    text: np.ndarray
    clicks: np.ndarray
    prompt_tokens: np.ndarray
    text_tokens: np.ndarray
    moved: np.ndarray

    @property
    def tokens(self) -> np.ndarray:
        """(D, U) tokens to read and write for the text."""
        return self.prompt_tokens + self.text_tokens

    def changed(self, night: int, written: np.ndarray) -> np.ndarray:
        """(U,) whether the prompt differs from the one of the night ``written`` (U,); NONE: not written."""
        now = self.clicks[night]
        before = np.where(written == NONE, 0, self.at(self.clicks, written))
        return now > before

    @staticmethod
    def at(table: np.ndarray, night: np.ndarray) -> np.ndarray:
        """Rows of ``table`` (D, U, ...) on the night (U,) of each user; NONE reads the last night."""
        return table[night, np.arange(len(night))]


def full_refresh(world: DailyWorld, prompts: PromptSet, items: np.ndarray, count: TextTokens) -> Nights:
    """Texts and facts of every night.

    Parameters
    ----------
    items : (I, d)
        Vectors of the items.
    count
        Counts the tokens of prompts and texts.
    """
    shape = (world.days, len(world.users.attributes))
    text, clicks = np.full(shape, NONE, np.int32), np.zeros(shape, np.int32)
    prompt_tokens, text_tokens = np.zeros((2, *shape), np.int32)
    known: dict[str, int] = {}
    for night, active, history in _histories(world):
        for table in (text, clicks, prompt_tokens, text_tokens):
            table[night] = table[night - 1] if night else table[night]
        rendered = [_rendered(world, prompts, user, history[user]) for user in active]
        lengths = count([part for pair in rendered for part in pair])
        for place, (user, (_, written)) in enumerate(zip(active, rendered, strict=True)):
            text[night, user] = known.setdefault(written, len(known))
            prompt_tokens[night, user], text_tokens[night, user] = lengths[2 * place : 2 * place + 2]
            clicks[night, user] = len(history[user])
    return Nights(list(known), text, clicks, prompt_tokens, text_tokens,
                  moves(world, items, prompts.max_history))


def moves(world: DailyWorld, items: np.ndarray, shown: int) -> np.ndarray:
    """``Nights.moved`` float32 (D, U, shown + 1) by item vectors (I, d)."""
    moved = np.zeros((world.days, len(world.users.attributes), shown + 1), np.float32)
    vectors = ItemVectors(pa.array(map(str, range(len(items)))), items)
    for night, active, history in _histories(world):
        moved[night] = moved[night - 1] if night else moved[night]
        rows = pa.array([[{"item_id": str(item)} for item in history[user]] for user in active], _HISTORY)
        for user, distances_ in zip(active, vectors.moved(rows, shown).to_pylist(), strict=True):
            moved[night, user] = np.pad(distances_, (0, shown + 1 - len(distances_)), "edge")
    return moved


def _histories(world: DailyWorld) -> Iterator[tuple[int, list[int], list[list[int]]]]:
    """Each night, the users with clicks on its day, and the items that each user clicked so far, in order."""
    history: list[list[int]] = [[] for _ in world.users.attributes]
    shown = world.shown
    for night in range(world.days):
        clicked = (shown.day == night) & shown.click
        for user, item in zip(shown.user[clicked].tolist(), shown.item[clicked].tolist(), strict=True):
            history[user].append(item)
        yield night, np.unique(shown.user[clicked]).tolist(), history


def _rendered(world: DailyWorld, prompts: PromptSet, user: int, history: list[int]) -> tuple[str, str]:
    """Prompt and text of a user with a history of items, oldest first."""
    titles, attributes = world.catalogue.titles, world.users.attributes[user]
    recent = history[-prompts.max_history:]
    prompt = prompts.user(attributes, [HistoryItem(titles[item]) for item in recent])
    return prompt, profile_of_interests(attributes, [titles[item] for item in reversed(recent)])


def encoded(texts: Sequence[str], encoder: str) -> np.ndarray:
    """Vectors float32 (n, d) of length 1, by the sentence encoder that ``dare-job ctr`` uses."""
    vectors, _ = TextEncoder(encoder)(list(texts))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)


def distances(vectors: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """1 - cosine (n,) of the texts at ``first`` and ``second`` (n,); ``vectors`` (T, d) have length 1."""
    return 1 - np.einsum("nd,nd->n", vectors[first], vectors[second])


def token_counter():
    """Function that counts the tokens of texts by the embedded model's tokenizer."""
    tokenizer = Tokenizer.from_file(str(resolve(EMBEDDED) / "tokenizer.json"))
    return lambda texts: [len(each.ids) for each in tokenizer.encode_batch(texts, add_special_tokens=False)]


def item_facts(world: DailyWorld) -> list[dict[str, str]]:
    """Attributes of the items of a world with mood and theme, which its own attributes lack."""
    made = world.catalogue
    return [known | {"mood": MOODS[mood], "theme": THEMES[theme]}
            for known, mood, theme in zip(made.attributes, made.mood, made.theme, strict=True)]


def kinds(attributes: Sequence[Mapping[str, str]]) -> np.ndarray:
    """Vectors float32 (I, d) of items by their attributes, as a run makes them."""
    return attribute_vectors([pa.array([list(known.items()) for known in attributes], ATTRIBUTES)])


def item_vectors(user: np.ndarray, item: np.ndarray, users: int, items: int, seed: int) -> np.ndarray:
    """LightGCN vectors float32 (items, d), of length 1, from clicks: user and item int64 (n,)."""
    pair = np.unique(user * items + item)
    numbers = [pa.array(map(str, range(count))) for count in (users, items)]
    pairs = Pairs(*numbers, *np.divmod(pair, items), np.zeros(len(pair), bool))
    vectors = lightgcn.train(pairs, lightgcn.Training(seed=seed), "cpu").items
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
