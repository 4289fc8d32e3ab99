"""What a grammar adds to a decoding step: the same texts, written with a grammar and without one.

The texts are JSON objects of a schema that is typical of profiles, made from the profiles of a synthetic data
set. A small model with random weights has the vocabulary of a real tokenizer; whatever it computes, the next
token of the row's text has the highest score, so both ways write the same tokens, and only the drafts that
the grammar cuts or forces differ. Drafts come from the row's previous text, its group's pool and the global
pool, as in a run.
"""

import json
import re
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from dare_job import prompts
from dare_job.bench.step_timers import clock_of, profile_steps, time_steps
from dare_job.data.sample_world.catalogue import MOODS
from dare_job.data.sample_world.simulate import DAYS, simulate, user_examples
from dare_job.decode.draft.retrieval import RetrievalDrafter
from dare_job.decode.engine import latency_probe
from dare_job.decode.engine.draft_budget import AdaptiveBudget, max_row_nodes
from dare_job.decode.engine.engine import Engine
from dare_job.decode.engine.grammar import Grammar, definition, token_table
from dare_job.decode.engine.latency import LatencyCurve
from dare_job.decode.engine.rows import Rows
from dare_job.decode.model.target import Target
from dare_job.decode.model.tree import Tree
from dare_job.decode.prompt.tokens import prompt_ids
from dare_job.decode.request import Request, Result
from dare_job.decode.settings import EngineSettings
from dare_job.decode.verify.result import VerificationResult
from dare_job.models.files import resolve
from pools.draft import DraftSettings
from pools.index import Index

_WORLD = 7  # its seed
_ROUNDS = 3  # rows that each slot has; all but the last ones are timed
_LIMIT = 512  # tokens of a text; none is that long
_SCORE = 100.0  # above every score of the model
_TITLE = re.compile(r"[A-Z][a-z]+ [A-Z][a-z]+")
SCHEMA = json.dumps({
    "type": "object", "additionalProperties": False, "required": ["profile", "films", "mood"],
    "properties": {"profile": {"type": "string", "maxLength": 400},
                   "films": {"type": "array", "items": {"type": "string", "maxLength": 40}, "maxItems": 8},
                   "mood": {"enum": sorted(MOODS)}}})


class _ScriptedEngine(Engine):
    """Writes given texts.

    Parameters
    ----------
    texts : int32 (rows, L)
        By the requests' ids; padded with the end-of-text token.
    """

    def __init__(self, texts: np.ndarray, *args, **more):
        super().__init__(*args, **more)
        self._texts = texts

    def _verify_logits(self, rows: Rows, slots: np.ndarray, tree: Tree,
                       logits: torch.Tensor) -> VerificationResult:
        self.script(rows, slots, tree, logits)
        return super()._verify_logits(rows, slots, tree, logits)

    def script(self, rows: Rows, slots: np.ndarray, tree: Tree, logits: torch.Tensor) -> None:
        """Give the token of the row's text the highest of the scores (T, V) after each node, in place."""
        _, _, depths, starts = tree.host
        sizes = np.diff(starts)
        places = np.repeat(rows.length[slots] - rows.prompt[slots], sizes) + depths
        texts = np.repeat([rows.requests[slot].id for slot in slots], sizes)
        tokens = self._texts[texts, np.minimum(places, self._texts.shape[1] - 1)]
        logits[np.arange(len(tokens)), tokens] = _SCORE


def measure(model: str, batches: Sequence[int], nodes: Sequence[str], rule: str, repeats: int, threads: int,
            profile: str | None) -> list[dict]:
    """Return a line for each batch size and number of draft tokens: medians over the repeats.

    Parameters
    ----------
    model : str
        Its tokenizer is taken.
    """
    tokenizer = AutoTokenizer.from_pretrained(resolve(model))
    target = _random_model(len(tokenizer), tokenizer.eos_token_id)
    grammar = Grammar(definition("json", SCHEMA), token_table(tokenizer, target.vocabulary))
    lines = []
    for batch in batches:
        texts, requests = _requests(model, batch)
        for each in nodes:
            limit = max_row_nodes(batch) if each == "auto" else int(each)
            settings = EngineSettings(max_new_tokens=_LIMIT, batch_size=batch, nodes=limit, rule=rule)
            curve = _latency_curve(target, settings) if each == "auto" else None
            made = [_Way(target, settings, curve, texts, requests, form, threads) for form in (None, grammar)]
            measured = [[way.measure() for way in made] for _ in range(repeats)]
            if profile:
                made[1].profile(profile, f"{batch} rows, {each} draft nodes, grammar")
            lines.append({"batch": batch, "nodes": each} | _medians(measured))
    return lines


class _Way:
    """One way of writing the texts: with a grammar, or without one."""

    def __init__(self, target: Target, settings: EngineSettings, curve, texts: np.ndarray,
                 requests: list[Request], grammar: Grammar | None, threads: int):
        self._target, self._clock = target, clock_of(target, threads)
        self._requests = [Request(r.id, r.prompt_ids, r.pools, grammar=grammar) for r in requests]
        budget = AdaptiveBudget(curve, settings.nodes) if curve else None
        drafter = RetrievalDrafter(DraftSettings(threads=threads))
        self._decoder = _ScriptedEngine(texts, target, settings, drafter, draft_budget=budget)
        self._texts = [text[: np.flatnonzero(text == text[-1])[0] + 1] for text in texts]

    def measure(self) -> dict[str, float]:
        """Return microseconds per step."""
        self._time(())  # compiles; the engine learns what drafts are worth
        spent, results = self._time(("forward", "script"))
        outside = spent["step"] - spent["forward"] - spent["script"]
        parts, _ = self._time(("forward", "script", "verify", "constrain", "follow"))
        return {"outside": outside, "forward": parts["forward"], "verify": parts["verify"] - parts["script"],
                "drafts": parts["constrain"], "advance": parts["follow"], "tokens": _tokens_per_step(results)}

    def profile(self, file: str, title: str) -> None:
        profile_steps(self._decoder, self._requests, file, title)

    def _time(self, parts: tuple[str, ...]) -> tuple[dict[str, float], list[Result]]:
        spent, results, _ = time_steps(self._target, self._decoder, self._requests, self._clock, parts)
        for result in results:
            if not np.array_equal(result.token_ids, self._texts[result.id]):
                raise AssertionError(f"row {result.id} has another text than its script")
        return spent, results


def _tokens_per_step(results: Sequence[Result]) -> float:
    return sum(len(result.token_ids) for result in results) / sum(result.target_steps for result in results)


def _medians(measured: list[list[dict[str, float]]]) -> dict[str, float]:
    """Return one line of the table, by (without, with) of each repeat."""
    free, held = ({key: np.median([pair[way][key] for pair in measured]) for key in measured[0][way]}
                  for way in (0, 1))
    line = {"free_us": free["outside"], "grammar_us": held["outside"],
            "more_us": held["outside"] - free["outside"],
            "masks_us": held["verify"] - free["verify"],  # the argmax of a node is part of verification
            "drafts_us": held["drafts"], "advance_us": held["advance"],
            "free_forward_us": free["forward"], "forward_us": held["forward"],
            "free_tokens_per_step": free["tokens"], "tokens_per_step": held["tokens"]}
    return {key: round(float(value), 3) for key, value in line.items()}


def _latency_curve(target: Target, settings: EngineSettings) -> LatencyCurve:
    return LatencyCurve.of(latency_probe.measure(target, settings), "the measured latency curve")


def _random_model(vocabulary: int, eos: int) -> Target:
    torch.manual_seed(_WORLD)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=vocabulary, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, eos_token_id=eos, bos_token_id=None, pad_token_id=eos))
    model.generation_config.eos_token_id = eos
    return Target(model, check=False)


def as_json(text: str) -> str:
    """Return a profile of the synthetic data set as a JSON object of the schema."""
    profile = ". ".join(text.split(". ")[:2])
    films = list(dict.fromkeys(_TITLE.findall(text)))[:8]
    mood = next((mood for mood in re.findall(r"\w+", text) if mood in MOODS), sorted(MOODS)[0])
    return json.dumps({"profile": profile, "films": films, "mood": mood})


@cache
def _written(model: str) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray], dict[int, np.ndarray]]:
    """Prompts, texts and texts of the day before, by row, of users whose text changed."""
    tokenizer = AutoTokenizer.from_pretrained(resolve(model))
    world, prompt_set = simulate(400, 300, _WORLD), prompts.load(prompts.SAMPLE)
    before, today = ({example.row: example for example in user_examples(world, prompt_set, day)}
                     for day in (DAYS - 1, DAYS))
    rows = [row for row in today if row in before and as_json(today[row].text) != as_json(before[row].text)]

    def ids(examples: dict) -> dict[int, np.ndarray]:
        texts = [as_json(examples[row].text) for row in rows]
        made = tokenizer(texts, add_special_tokens=False)["input_ids"]
        return {row: np.array([*text, tokenizer.eos_token_id], np.int32)
                for row, text in zip(rows, made, strict=True)}

    return {row: prompt_ids(tokenizer, today[row].prompt) for row in rows}, ids(today), ids(before)


def _requests(model: str, batch: int) -> tuple[np.ndarray, list[Request]]:
    """Return the texts of rows for ``batch`` slots, int32 (rows, L), and their requests."""
    prompts_of, today, before = _written(model)
    rows = list(today)[: _ROUNDS * batch]
    group = Index.build([before[row] for row in list(before)[: len(before) // 3]], kind="collaborative")
    all_rows = Index.build(list(before.values()))
    texts = np.full((len(rows), _LIMIT), today[rows[0]][-1], np.int32)
    for text, row in zip(texts, rows, strict=True):
        text[: len(today[row])] = today[row]
    return texts, [Request(place, prompts_of[row], (Index.build([before[row]], kind="own"), group, all_rows))
                   for place, row in enumerate(rows)]
