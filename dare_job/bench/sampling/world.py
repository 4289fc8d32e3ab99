"""What is sampled, and the draft model before and after it was distilled on the target's own texts."""

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer

from dare_job.bench.sampling.source import Source
from dare_job.decode import EngineSettings, Request, Target
from dare_job.decode.sampled import Sampling, SamplingEngine
from dare_job.decode.sampling.warp import Warp
from dare_job.drafter import teacher
from dare_job.drafter.settings import KEPT, Settings
from dare_job.drafter.teacher import Lesson
from dare_job.drafter.texts import Row
from dare_job.drafter.train import network, train
from dare_job.errors import ModelError
from dare_job.model_files import fingerprint as fingerprint_of
from dare_job.workspace import committing, digest, done_record, is_done
from pools.index import Index

BATCH, BEFORE_STEPS = 8, 60
_CONTEXT = 1024
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class World:
    """requests: tonight's rows, with a pool of the other users' texts, which the target sampled.

    drafters  before: fitted on texts that the target did not write; after: distilled on its own
    training  what each took
    seed      of what is sampled
    """

    target: Target
    requests: list[Request]
    drafters: dict[str, Target]
    training: dict[str, dict]
    seed: int = 0


def prepare(source: Source, tokens: int, settings: Settings, work: Path, device: str = "cpu",
            dtype: str = "float32") -> World:
    """The target samples a text of every other user at temperature 1, and the draft model learns them.

    work: folder that keeps the draft models; one of the same settings is there or is made
    """
    target = Target.load(source.folder, dtype, device)
    others = [Request(name, prompt) for name, prompt in source.others.items()]
    _LOG.info("the target samples %d texts for the draft model to learn from", len(others))
    texts = sampled(target, others, tokens)
    lessons = {"before": lambda: [_plain(row) for row in source.foreign],
               "after": lambda: teacher.lessons(target, texts, settings.kept, settings.temperature)}
    trainings = {"before": replace(settings, kl=0.0, steps=min(BEFORE_STEPS, settings.steps)),
                 "after": settings}
    made = {name: _drafter(name, lessons[name], target, source, trainings[name], work, tokens)
            for name in lessons}
    pool = Index.build([row.text.astype(np.int32) for row in texts])
    requests = [Request(name, prompt, (pool,)) for name, prompt in source.tonight.items()]
    return World(target, requests, {name: model for name, (model, _) in made.items()},
                 {name: record for name, (_, record) in made.items()})


def sampled(target: Target, requests: list[Request], tokens: int, temperature: float = 1.0) -> list[Row]:
    """The target's own texts."""
    settings = EngineSettings(max_new_tokens=tokens, batch_size=BATCH, nodes=0, score="never")
    engine = SamplingEngine(target, settings, Sampling(Warp(temperature)))
    found = {result.id: result for result in engine.run(requests)}
    if failed := [result for result in found.values() if result.error]:
        raise ModelError(f"row {failed[0].id} could not be sampled: {failed[0].error}")
    return [Row(request.id, request.prompt_ids.astype(np.int64), found[request.id].token_ids.astype(np.int64),
                True) for request in requests]


@torch.inference_mode()
def entropy(world: World, temperature: float, tokens: int) -> dict:
    """Of what the target says behind each token of texts that it samples: mean and 90th percentile of its
    entropy in nats, and the mean share of its first choice; over the rows.
    """
    nats, first = [], []
    for row in sampled(world.target, world.requests, tokens, temperature):
        shares = torch.softmax(logits_of(world.target, row).double() / max(temperature, 1e-6), -1)
        nats.append(-torch.xlogy(shares, shares).sum(-1))
        first.append(shares.amax(-1))
    nats = torch.cat(nats)
    return {"mean": round(float(nats.mean()), 4), "p90": round(float(nats.quantile(0.9)), 4),
            "first_choice": round(float(torch.cat(first).mean()), 4)}


def _drafter(name: str, lessons: Callable[[], list[Lesson]], target: Target, source: Source,
             settings: Settings, work: Path, tokens: int) -> tuple[Target, dict]:
    """The draft model, and what its training took."""
    prompts = [list(source.tonight), list(source.others), len(source.foreign)]
    device, dtype = target.device.type, str(target.dtype).removeprefix("torch.")
    fingerprint = digest([name, asdict(settings), tokens, prompts, fingerprint_of(source.folder), device,
                          dtype])
    folder = work / f"drafter-{name}-{fingerprint[:12]}"
    if not is_done(folder, fingerprint):
        record: dict = {}
        with committing(folder, fingerprint, record) as staging:
            tokenizer = AutoTokenizer.from_pretrained(source.folder)
            model = network(tokenizer, target.vocabulary, target.traits.context or _CONTEXT, settings)
            record["training"] = train(model, lessons(), settings, device)
            record["training"]["parameters"] = model.num_parameters()
            model.save_pretrained(staging)
    record = done_record(folder)["training"]
    _LOG.info("draft model %s: %s", name, record)
    return Target.load(folder, dtype, device), record


def _plain(row: Row) -> Lesson:
    """A text without what a target says of it."""
    shape = len(row.text), KEPT
    return Lesson(row, np.zeros(shape, np.int32), np.zeros(shape, np.float16))


def logits_of(target: Target, row: Row) -> torch.Tensor:
    """Logits (tokens, V) of a text's tokens behind its prompt."""
    ids = np.concatenate((row.prompt, row.text[:-1]))[None]
    lengths, scored = np.array([len(row.prompt)]), np.array([len(row.text) - 1])
    return target.prefill(target.new_cache(1), np.arange(1), ids, lengths, scored)
