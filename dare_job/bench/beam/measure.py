"""One way of writing: the rows written by it, what that took, and how good the texts are.

What the caches of a way of writing hold, as its own forwards find and leave them.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from dare_job.bench.beam.bound import BoundedEngine
from dare_job.bench.beam.methods import Way
from dare_job.bench.sampling.measure import drafter_of, metered
from dare_job.bench.sampling.world import BATCH, World, logits_of
from dare_job.decode.beam.drafting import BeamDrafter
from dare_job.decode.beam.engine import BeamEngine
from dare_job.decode.model.cache import TreeCache
from dare_job.decode.model.masks import Level
from dare_job.decode.model.target import Target
from dare_job.decode.model.tree import Tree
from dare_job.decode.request import BeamStatistics
from dare_job.decode.sampling.engine import Sampling, SamplingEngine
from dare_job.decode.settings import EngineSettings, Warp
from dare_job.publish.prompted_texts import Row
from dare_job.training.embedded.evaluate import Tally, tally


@dataclass(frozen=True)
class Memory:
    """Most of any row of a run, in cache columns (a token each), and bytes.

    columns, draft_columns  text, nodes and what a forward adds, of the target's cache and the draft model's
    nodes         behind the text in the target's cache during a forward
    kept          of these, between forwards: what is held beside one text
    bytes         of ``columns`` and ``draft_columns``: keys and values of all layers
    """

    columns: int = 0
    draft_columns: int = 0
    nodes: int = 0
    kept: int = 0
    bytes: int = 0


class Watched(Target):
    """A model, shared with the one given, that notes what a row's cache holds in each forward over trees.

    columns, nodes, kept  as in ``Memory``, so far; bytes: of a column
    """

    def __init__(self, target: Target):
        self.__dict__.update(vars(target))
        self.columns = self.nodes = self.kept = self.bytes = 0

    def extend(self, cache: TreeCache, level: Level, wanted: np.ndarray | None = None) -> torch.Tensor:
        self._note(cache, level.lengths, level.first, level.starts)
        return super().extend(cache, level, wanted)

    def forward(self, cache: TreeCache, tree: Tree, lengths: np.ndarray) -> torch.Tensor:
        self._note(cache, lengths, np.zeros_like(lengths), tree.starts)
        return super().forward(cache, tree, lengths)

    def _note(self, cache: TreeCache, texts: np.ndarray, kept: np.ndarray, starts: np.ndarray) -> None:
        nodes = kept + np.diff(starts)
        self.columns = max(self.columns, int((texts + nodes).max()))
        self.nodes = max(self.nodes, int(nodes.max()))
        self.kept = max(self.kept, int(kept.max()))
        self.bytes = cache.column_bytes


def memory(target: Watched, draft: Watched | None) -> Memory:
    """Of a run by these models, which were new to it."""
    drafted = (draft.columns, draft.columns * draft.bytes) if draft else (0, 0)
    return Memory(target.columns, drafted[0], target.nodes, target.kept,
                  target.columns * target.bytes + drafted[1])


@dataclass(frozen=True)
class Written:
    """tokens, steps, layers, queries  int64 (R,): of each row's text and its forwards behind the prompt's
    likelihoods  float64 (R,): log P of each text under the target, in nats
    facts        of each text, against the titles that its prompt showed
    width, passed_width, beta  means over layers; over layers whose drafts passed; over judged layers
    judged       layers of drafts that were judged, and passed
    most         share of them that any exact rule could pass, at most; None: not asked
    last         int64 (R,): layers of a row's last forward
    seconds, processor  in wall-clock time, and of processor time
    joules       of the GPU; None where they cannot be read
    memory       of the caches
    """

    tokens: np.ndarray
    steps: np.ndarray
    layers: np.ndarray
    queries: np.ndarray
    likelihoods: np.ndarray
    facts: list[Tally]
    seconds: float
    processor: float
    joules: float | None = None
    last: np.ndarray | int = 1
    width: float = 1.0
    passed_width: float = 1.0
    beta: float = 0.0
    judged: int = 0
    passed: int = 0
    most: float | None = None
    memory: Memory = Memory()

    @property
    def per_token(self) -> np.ndarray:
        """Nats a token, float64 (R,)."""
        return self.likelihoods / self.tokens

    @property
    def true(self) -> float:
        """Share of statements that are true: of titles named, those that were shown; of moods and themes said
        of a title, those that are its own.
        """
        total = sum(self.facts, Tally())
        return (total.titles_shown + total.statements_true) / max(1, total.titles + total.statements)


def written(world: World, way: Way, tokens: int, warp: Warp, seed: int, titles: dict[str, tuple[str, ...]],
            tokenizer: PreTrainedTokenizerBase, bounds: bool = False) -> Written:
    """Write tonight's rows. Raises ModelError where one cannot be.

    titles: shown, by row; bounds: find ``most``, too
    """
    target, draft = Watched(world.target), Watched(world.drafters["after"]) if way.drafted else None
    engine = _engine(replace(world, target=target, drafters={"after": draft}), way, tokens, warp, seed,
                     BoundedEngine if bounds and way.drafted else BeamEngine)
    results, joules, took = metered(world, engine, way.name)
    found = sorted(results, key=lambda result: str(result.id))
    prompts = {request.id: request.prompt_ids for request in world.requests}
    tokens, steps = (np.array(values) for values in ([len(one.token_ids) for one in found],
                                                     [one.target_steps for one in found]))
    likelihoods = np.array([_likelihood(world, prompts[one.id], one.token_ids) for one in found])
    texts = [tokenizer.decode(one.token_ids, skip_special_tokens=True) for one in found]
    facts = [tally(text, titles[one.id]) for text, one in zip(texts, found, strict=True)]
    quality = {"tokens": tokens, "steps": steps, "likelihoods": likelihoods, "facts": facts,
               "seconds": took["seconds"][0], "processor": took["processor"][0], "joules": joules,
               "memory": memory(target, draft)}
    if way.beams is None:
        return Written(layers=tokens, queries=(way.drawn.size + 1) * steps, **quality)
    most = float(np.mean(engine.bounds)) if isinstance(engine, BoundedEngine) and engine.bounds else None
    return Written(**quality, **_counts([one.beams for one in found]), most=most)


def _counts(beams: list[BeamStatistics]) -> dict:
    layers, last, queries, judged, passed, width, passed_width, beta = (
        np.array([getattr(one, name) for one in beams])
        for name in ("layers", "last_layers", "queries", "verified", "passed", "width", "passed_width",
                     "beta"))
    return {"layers": layers, "last": last, "queries": queries, "judged": int(judged.sum()),
            "passed": int(passed.sum()), "width": _mean(width, layers),
            "passed_width": _mean(passed_width, passed),
            "beta": _mean(beta, judged)}


def _mean(values: np.ndarray, weights: np.ndarray) -> float:
    return float(np.average(values, weights=weights)) if weights.any() else 0.0


def _engine(world: World, way: Way, tokens: int, warp: Warp, seed: int, kind: type[BeamEngine]):
    size, depth = (0, 1) if way.drawn is None else (way.drawn.size, max(1, len(way.drawn.widths)))
    settings = EngineSettings(max_new_tokens=tokens, batch_size=BATCH, nodes=size, depth=depth, score="never")
    if way.beams is None:
        sampling = Sampling(warp, seed, distribution=way.drawn.law, rule=way.drawn.rule)
        return SamplingEngine(world.target, settings, sampling, drafter_of(world, way.drawn))
    return kind(world.target, settings, way.beams,
                BeamDrafter(world.drafters["after"]) if way.drafted else None)


@torch.inference_mode()
def _likelihood(world: World, prompt: np.ndarray, text: np.ndarray) -> float:
    """log P of a text behind its prompt."""
    row = Row("", prompt.astype(np.int64), text.astype(np.int64), True)
    logs = torch.log_softmax(logits_of(world.target, row).double(), -1).cpu()
    return float(logs.gather(1, torch.from_numpy(row.text)[:, None]).sum())
