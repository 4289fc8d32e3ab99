"""A model in memory that generates texts with drafts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from itertools import chain
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

from dare_job.api import prompts as prompts_
from dare_job.api.completion import Completion, completion_of
from dare_job.api.pool import Pool, indexes
from dare_job.api.prompts import Prompt, Text, Tokens, as_list
from dare_job.config.errors import explain
from dare_job.config.schema import TextForm
from dare_job.config.settings import JobConfig
from dare_job.decode.engine.engine import Engine
from dare_job.decode.model import failures
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request, Result
from dare_job.decode.request import failed as without_text
from dare_job.errors import ConfigError, InfrastructureError, RowError, describe
from dare_job.inference import checks, engines
from dare_job.inference import model as model_
from dare_job.inference.grammars import grammar_of
from dare_job.inference.prompt_format import model_format
from dare_job.models import files
from dare_job.observe import progress
from pools.index import Index

Section = Mapping[str, Any]
_MODES_WITH_PREVIOUS = ("dare", "sample")


class LLM:
    """A language model in memory. Generates texts with drafts from earlier texts.

    Settings are those of the job, with the names of its configuration file (docs/reference/settings.md): each
    of its sections for decoding is an argument. Not safe for use by several threads at once.

    Parameters
    ----------
    model
        ``model.name``: a folder, its URL, a GGUF file, or a hub name (``owner/model@revision``). embedded: a
        small model that knows only the synthetic data set.
    dtype, device, chat_template, template_arguments, trust_remote_code
        As in the section ``model``. A prompt that is a string becomes a user message of the chat template
        where there is one; ``chat_template="never"`` gives it to the model as it is.
    decode, verify, sample, beam, drafter
        Values of these sections, such as ``decode={"batch_size": 4}``. ``decode.hang_timeout_s``,
        ``decode.schema.user``, ``decode.schema.item``, ``verify.refresh_nights``, ``verify.target`` and
        ``verify.curve`` are for the job alone.
    seed
        Random seed of the modes sample and beam. Sampled text depends on it and on the prompt's place.

    Raises
    ------
    ConfigError
        A setting is unknown or invalid; the message names its key.
    ModelError
        The model is not found, damaged, or not supported.
    InfrastructureError
        The model does not fit into memory, or the hub cannot be reached.
    """

    def __init__(self, model: str, *, dtype: str = "float32", device: str = "auto",
                 chat_template: str = "auto", template_arguments: Section | None = None,
                 trust_remote_code: bool = False, decode: Section | None = None,
                 verify: Section | None = None, sample: Section | None = None, beam: Section | None = None,
                 drafter: Section | None = None, seed: int = 0):
        named = {"name": model, "dtype": dtype, "device": device, "chat_template": chat_template,
                 "template_arguments": dict(template_arguments or {}), "trust_remote_code": trust_remote_code}
        sections = {"decode": decode, "verify": verify, "sample": sample, "beam": beam, "drafter": drafter}
        self._sections = {"model": named, "seed": seed,
                          **{name: section for name, section in sections.items() if section}}
        self._config = _config(self._sections)
        self._threads = torch.get_num_threads()
        with progress.doing(f"loading {model}"), _no_other_progress_bar():
            self._load(trust_remote_code)

    def _load(self, trust_remote_code: bool) -> None:
        config, settings = self._config, self._config.model
        folder = files.resolve(settings.name, trust_remote_code, setting="model")
        checks.check_drafting(config, lambda: folder, self._draft_folder)
        self._loaded = model_.load(str(folder), settings.dtype, settings.device, trust_remote_code,
                                  model_format(config))
        self._tokens = Tokens.of_folder(folder, self._loaded.tokenizer, trust_remote_code)

    def _draft_folder(self) -> Path:
        return files.resolve(self._config.drafter.model, self._config.model.trust_remote_code,
                             setting="drafter.model")

    @cached_property
    def _draft(self) -> Target:
        settings = self._config.model
        return model_.load_target(str(self._draft_folder()), settings.dtype, settings.device,
                                 settings.trust_remote_code)

    def __repr__(self) -> str:
        return f"<LLM {self._config.model.name}, {self._config.model.dtype}>"

    def generate(self, prompts: Iterable[Prompt], previous: Iterable[Text | None] | None = None,
                 pool: Pool | Sequence[Pool] | None = None, *, max_new_tokens: int | None = None,
                 schema: Section | None = None, drafts: bool = True,
                 show_progress: bool = True) -> list[Completion]:
        """Generate a text for each prompt.

        With the default settings each text is that of greedy decoding, whatever drafts there are. A prompt
        that fails does not affect the others: its completion has an error.

        Parameters
        ----------
        prompts
            A list or a column of a table: strings, or conversations. A conversation is a list of messages
            such as ``{"role": "user", "content": "..."}`` that ends with a user message.
        previous
            For each prompt the text that an earlier version of it got, or None (in a table, NaN). It is the
            nearest source of drafts. Strings, or token ids (tokens,), as in ``Completion.token_ids``.
        pool
            Further texts to draft from. Several: the nearest first. The prompt and the text so far always
            are drafted from.
        max_new_tokens
            Maximum number of tokens of a text; None: ``decode.max_new_tokens``.
        schema
            Form of the texts, as ``decode.schema``: ``{"json": {"type": "object", ...}}`` (a JSON schema, or
            the path of a file), ``{"regex": "..."}`` or ``{"choices": ["yes", "no"]}``. None:
            ``decode.schema``. ``Completion.parsed`` has the value of JSON.
        drafts
            False: autoregressive decoding, to compare with.
        show_progress
            Whether to show progress on a terminal or in a notebook, after two seconds.

        Returns
        -------
        list of Completion
            In the order of the prompts.

        Raises
        ------
        ConfigError
            An argument is invalid, such as ``previous`` of another length than ``prompts``.
        PoolError
            ``pool`` was made with another tokenizer.
        InfrastructureError
            The batch does not fit into memory.
        """
        done = self.iterate(prompts, previous, pool, max_new_tokens=max_new_tokens, schema=schema,
                            drafts=drafts, show_progress=show_progress)
        return sorted(done, key=lambda completion: completion.index)

    def iterate(self, prompts: Iterable[Prompt], previous: Iterable[Text | None] | None = None,
                pool: Pool | Sequence[Pool] | None = None, *, max_new_tokens: int | None = None,
                schema: Section | None = None, drafts: bool = True,
                show_progress: bool = False) -> Iterator[Completion]:
        """As ``generate``, but yield each completion as soon as its text has ended.

        Arguments are checked at once. ``Completion.index`` tells which prompt it belongs to.

        Raises
        ------
        ConfigError, PoolError, InfrastructureError
            As ``generate``; the last one while texts are generated.
        """
        prompts = as_list("prompts", prompts)
        if max_new_tokens is not None and not (isinstance(max_new_tokens, Integral) and max_new_tokens > 0):
            raise ConfigError(f"max_new_tokens is {max_new_tokens!r}; it must be a whole number above 0")
        nearest = self._tokens.previous_ids(previous, "prompts", len(prompts))
        shared = indexes(pool, self._tokens, self._config.model.name)
        config = self._config if schema is None else self._with_schema(schema)
        common = Request(None, np.zeros(0, np.int32), max_new_tokens=max_new_tokens,
                         grammar=grammar_of(config, self._loaded))
        return self._run(prompts, nearest, shared, common, drafts, show_progress, config.decode.form_of())

    def _with_schema(self, schema: Section) -> JobConfig:
        decode = {**self._sections.get("decode", {}), "schema": schema}
        return _config({**self._sections, "decode": decode})

    def _run(self, prompts: Sequence[Prompt], previous: Sequence[np.ndarray | None],
             pools: tuple[Index, ...], common: Request, drafts: bool, show: bool,
             form: TextForm) -> Iterator[Completion]:
        failed: list[Result] = []
        rows = zip(range(len(prompts)), prompts, previous, strict=True)
        requests = self._requests(rows, pools, common, drafts, failed)
        with progress.doing("measuring the latency of forward passes, once per model and machine"):
            engine = engines.make_engine(self._config, self._loaded, self._threads, lambda: self._draft,
                                         None if drafts else "autoregressive")
        with _counting(len(prompts), show) as counter, _memory_errors(engine):
            for result in chain(engine.run(requests), failed):  # the latter are complete by then
                counter.advance()
                yield self._completion(result, common.max_new_tokens, form)

    def _requests(self, rows: Iterable[tuple[int, Prompt, np.ndarray | None]], pools: tuple[Index, ...],
                  common: Request, drafts: bool, failed: list[Result]) -> Iterator[Request]:
        """The requests of rows, with the limit and the grammar of ``common``. The results of rows that have
        none are added to ``failed``.
        """
        own = drafts and self._config.decode.mode in _MODES_WITH_PREVIOUS
        for index, prompt, previous in rows:
            request = replace(common, id=index)
            try:
                ids = prompts_.token_ids(prompt, self._loaded.tokenizer, self._config)
            except RowError as error:
                failed.append(without_text(request, str(error)))
                continue
            previous = previous if own and previous is not None and len(previous) else None
            nearest = () if previous is None else (Index.build([previous], kind="own"),)
            sources = (*nearest, *pools) if drafts else ()
            yield replace(request, prompt_ids=ids, pools=sources, previous_ids=previous,
                          max_relaxed_tokens=engines.length_limit(sources, self._config))

    def _completion(self, result: Result, limit: int | None, form: TextForm) -> Completion:
        text = ""
        if result.error is None:
            try:
                text = model_.decode_text(result.token_ids, self._loaded, self._config, limit)
            except RowError as error:
                result = replace(result, finish_reason="error", error=str(error))
        if result.error is not None:
            result = replace(result, error=f"prompts[{result.id}]: {result.error}")
        return completion_of(result, text, form.kind == "json")


def _config(sections: dict) -> JobConfig:
    """The settings of the job with these sections. Raises ConfigError."""
    try:
        config = JobConfig.model_validate(sections)
    except ValidationError as error:
        raise ConfigError(explain(error, JobConfig, "LLM")) from None
    if config.verify.target:
        raise ConfigError(f"verify.target = {config.verify.target!r} is for the job alone: set verify.rule, "
                          "verify.k and verify.p instead")
    if any(key.startswith(("decode.schema.user", "decode.schema.item")) for key in config.decode.forms):
        raise ConfigError("decode.schema.user and decode.schema.item are for the job alone: set json, regex "
                          "or choices of decode.schema instead")
    return config


@contextmanager
def _no_other_progress_bar() -> Iterator[None]:
    """Hide the progress bars of transformers while the block runs."""
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()


def _counting(prompts: int, show: bool):
    if not show:
        return nullcontext(progress.Counter(prompts))
    return progress.counting("generating texts", prompts, unit="texts")


@contextmanager
def _memory_errors(engine: Engine) -> Iterator[None]:
    """Raise InfrastructureError if the batch does not fit into memory, or the device fails."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if failures.is_out_of_memory(error):
            raise InfrastructureError(f"out of memory with decode.batch_size = {engine.settings.batch_size}: "
                                      f"lower it, or max_new_tokens ({describe(error)})") from error
        if failures.is_device_failure(error):
            raise InfrastructureError(f"the device failed: {describe(error)}") from error
        raise
