"""Texts of a published date sampled several times: ``python -m dare_job.bench.downstream.sampled``.

    --out OUT --into DIR [--date D] [--sets 4] [--temperature 0.7] [--seed 0] [--batch 64] [--limit N]

The job decodes greedily. To see how much chance in decoding matters downstream, the date's model writes all
of its prompts again with transformers' ``generate``, as often as asked, each time with seeds of its own.
DIR/s1, DIR/s2, ... are what ``dare-job ctr --knowledge s1=DIR/s1`` reads. A set that is there already, of the
same texts and settings, is not written again.
"""

import logging
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from transformers import AutoTokenizer

from dare_job.bench.downstream import published
from dare_job.bench.downstream.published import Published, Text
from dare_job.decode.engine.prompt import prompt_ids
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request
from dare_job.errors import DataError, ModelError
from dare_job.generate import baseline
from dare_job.models import files
from dare_job.observe import log
from dare_job.schemas import ENTITIES
from dare_job.workspace import Workspace, committing, digest, is_done

_LOG = logging.getLogger("dare_job")
_LOG_EVERY_S = 15.0


@dataclass(frozen=True)
class Sampling:
    """How a set is decoded. top_p 1 and top_k 0: from the whole distribution."""

    temperature: float
    seed: int
    batch: int
    top_p: float = 1.0
    top_k: int = 0


def main(
    out: Annotated[Path, typer.Option(help="Output of the run whose prompts are answered again.")],
    into: Annotated[Path, typer.Option(help="Folder that gets a folder for each set.")],
    date_: Annotated[str | None, typer.Option("--date", help="The newest where not given.")] = None,
    sets: Annotated[int, typer.Option(min=1)] = 4,
    temperature: Annotated[float, typer.Option(min=0.01, max=5)] = 0.7,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    batch: Annotated[int, typer.Option(min=1, help="Rows decoded at once.")] = 64,
    limit: Annotated[int | None, typer.Option(min=1, help="Rows of each entity type.")] = None,
) -> None:
    """Write the sets; prints the folder of each."""
    log.to_stderr()
    dt = date_ or Workspace(out, date.min).newest()
    if dt is None:
        raise DataError(f"--out {out}: no published date in it")
    found = {entity: published.read(Workspace(out, date.fromisoformat(dt)), entity) for entity in ENTITIES}
    model = Writer(found["user"].manifest)
    for number in range(1, sets + 1):
        how = Sampling(temperature, seed * 1000 + number, batch)
        write_set(found, model, how, limit, into / f"s{number}")
        print(into / f"s{number}", flush=True)


class Writer:
    """The model of a snapshot, its tokenizer, and how it was asked to write."""

    def __init__(self, manifest: dict):
        """Raises ModelError where the model is gone, or is another one by now."""
        said, settings = manifest["model"], manifest["settings"]
        folder = files.resolve(said["name"], said["revision"])
        if files.fingerprint(folder) != said["hash"]:
            raise ModelError(f"model {said['name']} has changed since the texts were written; run that date "
                             "again")
        self.target = Target.load(folder, said["dtype"], settings["model"]["device"])
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.chat_template = settings["model"]["chat_template"]
        self.least, self.most = manifest["new_tokens"]

    def request(self, name: str, prompt: str) -> Request:
        return Request(name, prompt_ids(self.tokenizer, prompt, self.chat_template))

    def sample(self, requests: list[Request], how: Sampling) -> list[Text]:
        """One text for each prompt, all decoded at once."""
        rows = baseline.generate_texts(
            self.target, requests, len(requests), self.most, min_new_tokens=self.least or None,
            do_sample=True, temperature=how.temperature, top_p=how.top_p, top_k=how.top_k)
        return [self._text(ids) for ids in rows]

    def _text(self, ids: np.ndarray) -> Text:
        ends = self.target.generation_config.eos_token_id
        ended = len(ids) and ids[-1] in np.atleast_1d(ends)
        text = self.tokenizer.decode(ids, skip_special_tokens=True).strip()
        return Text(text, ids.tolist(), "eos" if ended else "length")


def write_set(found: dict[str, Published], model: Writer, how: Sampling, limit: int | None, into: Path
              ) -> None:
    """One set in ``into``, complete or not at all."""
    fingerprint = digest([vars(how), limit, [table.manifest["fingerprint"] for table in found.values()]])
    if is_done(into, fingerprint):
        return
    with committing(into, fingerprint, {"sampling": vars(how), "limit": limit}) as staging:
        for table in found.values():
            published.write(table, _texts(table, model, how, limit), vars(how), staging)


def _texts(table: Published, model: Writer, how: Sampling, limit: int | None) -> dict[str, Text]:
    """By id; prompts of like length are decoded together."""
    names = list(table.prompts)[:limit]
    requests = sorted((model.request(name, table.prompts[name]) for name in names),
                      key=lambda request: len(request.prompt_ids))
    torch.manual_seed(how.seed)
    texts, began, told = {}, time.monotonic(), time.monotonic()
    for start in range(0, len(requests), how.batch):
        some = requests[start:start + how.batch]
        texts |= zip((request.id for request in some), model.sample(some, how), strict=True)
        if time.monotonic() - told > _LOG_EVERY_S or len(texts) == len(requests):
            told, spent = time.monotonic(), time.monotonic() - began
            _LOG.info("seed %d: %d of %d %s texts, %.0f s, about %.0f s left", how.seed, len(texts),
                      len(requests), table.manifest["entity"], spent,
                      spent / len(texts) * (len(requests) - len(texts)))
    return texts


if __name__ == "__main__":
    typer.run(main)
