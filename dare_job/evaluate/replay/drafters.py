"""Drafters for replays: dare-job's blend, and the methods that it is compared with."""

from collections.abc import Sequence

import numpy as np

from dare_job.config.base import MAX_INT
from dare_job.config.plugins import PlugIn
from dare_job.decode.draft.checked import CheckedDrafter
from dare_job.decode.request import Request
from dare_job.errors import ConfigError
from dare_job.evaluate.replay.measure import Drafter
from pools.draft import DraftSettings, draft
from pools.frequency import FrequencyDrafter
from pools.index import Index


class Blend(Drafter):
    """Drafts from each text's pools, nearest first, and from the text so far.

    Attributes
    ----------
    scores : float32 (nodes,)
        Of the last tree: estimated probability that the path to a node is accepted.
    """

    def __init__(self, pools: Sequence[Sequence[Index]], settings: DraftSettings):
        """pools : of each replayed text"""
        self._pools, self._settings = pools, settings
        self._budget, self._length, self._prompt = (np.zeros(1, np.int32) for _ in range(3))

    def start(self, number: int, row: np.ndarray, prompt: int) -> None:
        self._row, self._sources, self._prompt[0] = row[None], [self._pools[number]], prompt

    def draft(self, row: np.ndarray, known: int, nodes: int):
        self._length[0], self._budget[0] = known, nodes
        tree = draft(self._row, self._length, self._budget, self._sources, self._settings,
                     prompts=self._prompt)
        size = tree.sizes[0]
        self.scores = tree.scores[0, :size]
        return tree.tokens[0, :size], tree.parents[0, :size]


class Plugged(Drafter):
    """A drafter of a user, which drafts for one row at a time and sees nothing that is not known yet."""

    def __init__(self, plugin: PlugIn, pools: Sequence[Sequence[Index]],
                 previous: Sequence[np.ndarray | None], depth: int):
        """``pools`` and ``previous`` texts, int32 (tokens,), are those of each replayed text."""
        self._drafter = CheckedDrafter(plugin.make(), MAX_INT)
        self._pools, self._previous = pools, previous
        self._depth = np.array([depth], np.int32)

    def start(self, number: int, row: np.ndarray, prompt: int) -> None:
        known = max(1, prompt)
        self._requests = (Request(number, row[:known].copy(), tuple(self._pools[number]),
                                  previous_ids=self._previous[number]),)
        self._context = np.zeros((1, row.size), np.int32)
        self.add(row, 0, known)

    def draft(self, row: np.ndarray, known: int, nodes: int):
        drafts = self._drafter.draft(self._requests, self._context, np.array([known], np.int32),
                                     np.array([nodes], np.int32), self._depth)
        size = drafts.sizes[0]
        self.scores = drafts.scores[0, :size]
        return drafts.tokens[0, :size], drafts.parents[0, :size]

    def add(self, row: np.ndarray, before: int, known: int) -> None:
        self._context[0, before:known] = row[before:known]


class Published(Drafter):
    """The retrieval rule of DARE's authors (``pools.frequency``) on our index of the same texts."""

    def __init__(self, index: Index, nodes: int, depth: int):
        self._draft = FrequencyDrafter(index, nodes, depth)

    def draft(self, row: np.ndarray, known: int, nodes: int):
        return self._draft(row, known)


class NGram(Drafter):
    """Prompt lookup as vLLM's n-gram drafts: what follows the first earlier place of the last four tokens.

    If they do not occur before, the last three are looked up, and then the last two.
    """

    def draft(self, row: np.ndarray, known: int, nodes: int):
        text = row[:known]
        for size in range(min(4, known - 1), 1, -1):
            places = np.lib.stride_tricks.sliding_window_view(text[:-1], size)
            found = np.flatnonzero((places == text[-size:]).all(1))
            if found.size:
                tokens = text[found[0] + size:found[0] + size + nodes]
                return tokens, np.arange(-1, len(tokens) - 1)
        return text[:0], text[:0]


# max_spec_factor and min_token_prob of speculate(), with trees. The first is the package's default.
ARCTIC_SETTINGS = ((1.0, 0.1), (4.0, 0.05), (64.0, 0.01), (64.0, 0.0))


class Arctic(Drafter):
    """The suffix tree of ArcticInference, in the package ``arctic-inference``."""

    def __init__(self, texts: Sequence[np.ndarray]):
        """Draft from texts, int32 (tokens,) each. Raises ConfigError if the package is not installed."""
        try:
            from arctic_inference.suffix_decoding import SuffixDecodingCache
        except ImportError:
            raise ConfigError("--against arctic needs the package arctic-inference, or its suffix tree "
                              "alone: docs/lab-log.md says how to build it") from None
        self._cache = SuffixDecodingCache(max_tree_depth=64)
        for place, text in enumerate(texts):
            self._cache.start_request(place, np.zeros(0, np.int32))
            self._cache.add_active_response(place, np.ascontiguousarray(text))
            self._cache.stop_request(place)
        self._pool, self._current = len(texts), None
        self.factor, self.min_probability = ARCTIC_SETTINGS[0]

    def start(self, number: int, row: np.ndarray, prompt: int) -> None:
        """Removes the previous text, so that all texts are drafted from the same pool."""
        if self._current is not None:
            self._cache.stop_request(self._current)
            self._cache.evict_cached_response(self._current)
        self._current = self._pool + number
        self._cache.start_request(self._current, row[:prompt])
        self._cache.add_active_response(self._current, row[prompt:max(1, prompt)])

    def draft(self, row: np.ndarray, known: int, nodes: int):
        drafts = self._cache.speculate(
            self._current, row[:known], max_spec_tokens=nodes, max_spec_factor=self.factor,
            min_token_prob=self.min_probability, use_tree_spec=True)
        return drafts.token_ids, drafts.parents

    def add(self, row: np.ndarray, before: int, known: int) -> None:
        self._cache.add_active_response(self._current, row[before:known])
