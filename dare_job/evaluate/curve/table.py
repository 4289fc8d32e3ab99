"""``curve.json``: quality and speed of each setting of lossy verification; and the curve as a table."""

from typing import Literal

from pydantic import Field, model_validator
from rich.console import Console
from rich.table import Table

from dare_job.config.base import Section
from dare_job.errors import ConfigError
from dare_job.job import Job
from dare_job.storage.paths import AnyPath
from dare_job.tables import published

VERSION = 1


class Distance(Section):
    """Mean over rows, and its bound on the side of more distance."""

    mean: float
    bound: float


class Loss(Section):
    """AUC with strict texts minus AUC with the setting's texts, of one CTR model.

    Attributes
    ----------
    by_seed
        The paired differences.
    bound
        One-sided, over seeds; null if all differences are equal.
    """

    by_seed: list[float] = Field(min_length=2)
    mean: float
    bound: float | None


class Entry(Section):
    """One setting: k and p of the relaxed rule, or a verifier; the strict rule has neither.

    Attributes
    ----------
    plugin
        ``PlugIn.record`` of the verifier, and its ``text`` as in the settings.
    speed
        Rows per second relative to strict in the same round: median, minimum and maximum.
    length
        Mean of |tokens - strict's tokens| / tokens of the longer text.
    differing
        Share of the rows with another text than strict.
    facts
        Share of the rows whose text names other facts than the strict one (``publish.loss.facts``).
    lengthened
        Tokens of all texts over those of all strict texts.
    auc
        By CTR model; empty: not measured.
    """

    k: int | None = None
    p: float | None = None
    plugin: dict | None = None
    tokens_per_s: float
    accepted_per_step: float | None
    relaxed_share: float
    speed: tuple[float, float, float]
    cosine: Distance | None = None
    rouge_l: Distance | None = None
    length: Distance | None = None
    facts: Distance | None = None
    differing: float = 0.0
    lengthened: float = 1.0
    auc: dict[str, Loss] = {}

    @model_validator(mode="after")
    def _is_measured(self):
        if not self.is_strict and None in (self.cosine, self.rouge_l, self.length):
            raise ValueError(f"{self.name}: cosine, rouge_l or length is missing")
        if (self.k is None) != (self.p is None):
            raise ValueError(f"k = {self.k}, p = {self.p}: one of them is missing")
        return self

    @property
    def is_strict(self) -> bool:
        return self.k is None and self.plugin is None

    @property
    def name(self) -> str:
        if self.plugin:
            return plug_in_name(self.plugin["text"])
        return "strict" if self.k is None else f"k={self.k} p={self.p:g}"


def plug_in_name(text: str) -> str:
    """A verifier without its module, such as Mars(theta=0.9)."""
    return text.partition(":")[2]


class QualityCurve(Section):
    """What ``dare-job curve`` measured.

    Attributes
    ----------
    level
        Of the bounds, which hold for all settings together (Bonferroni).
    identity
        Model, prompts and limits; a run with others cannot use the curve.
    rows
        Generated with each setting.
    timed
        Number of these rows that are timed in each of ``turns`` rounds.
    carried
        Of the AUC: texts that were not generated, so the same in all sets.
    """

    schema_version: Literal[1]
    date: str
    made: str
    identity: dict
    settings: dict
    level: float = Field(gt=0, lt=1)
    rows: int = Field(ge=1)
    timed: int
    turns: int
    seeds: int
    carried: int = 0
    entities: dict[str, int]
    encoder: str
    machine: str
    command: str
    entries: list[Entry]


def identity(job: Job) -> dict:
    """Model, tokenizer, prompts, and the settings except (k, p) that change relaxed text most."""
    writer, config = published.writer_record(job), job.config
    return {"model": writer["model"]["hash"], "tokenizer": writer["tokenizer"], "prompts": writer["prompts"],
            "new_tokens": writer["new_tokens"], "dtype": config.model.dtype,
            "chat_template": config.model.chat_template,
            "template_arguments": config.model.template_arguments or None,
            "repetition_penalty": config.decode.repetition_penalty, "stop": config.decode.stop or None,
            "length_quantile": config.verify.length_quantile,
            "schema": {key: form.value for key, form in config.decode.forms.items()} or None}


def read(path: AnyPath, job: Job) -> QualityCurve:
    """Read a curve of this job's model, prompts and limits.

    Raises
    ------
    ConfigError
        The curve is missing, damaged, or was measured with another model, prompt or limit. The message names
        what is wrong.
    """
    again = "measure one with `dare-job curve`"
    try:
        curve = QualityCurve.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"verify.curve = {path} cannot be read ({error.strerror or error}): {again}"
                          ) from None
    except ValueError:
        raise ConfigError(f"verify.curve = {path} is damaged or not a quality curve of version {VERSION}: "
                          f"{again}") from None
    for name, value in identity(job).items():
        if curve.identity.get(name) != value:
            raise ConfigError(f"verify.curve = {path} was measured with another {name.replace('_', ' ')} "
                              f"({_short(curve.identity.get(name))}; this run: {_short(value)}): {again} and "
                              "the settings of this run")
    return curve


def _short(value) -> str:
    """A value for messages, with the first 12 digits of hashes."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_short(part)}" for name, part in value.items())
    return value[:12] if isinstance(value, str) else str(value)


def show(curve: QualityCurve, console: Console) -> None:
    """Print a line for each setting: speed, distances and AUC loss with their bounds."""
    models = list(next((entry.auc for entry in curve.entries if entry.auc), {}))
    table = Table("setting", "tokens/s", "speed", "min to max", "accepted", "relaxed", "changed texts",
                  "cosine", "ROUGE-L", "length", "other facts", *(f"AUC loss, {model}" for model in models))
    for entry in curve.entries:
        table.add_row(*_cells(entry, models))
    console.print(table)
    console.print(f"{curve.rows} rows, {curve.timed} of them timed {curve.turns} times; speed: rows per "
                  f"second relative to strict; in brackets bounds of the means at {curve.level:.0%}, for all "
                  "settings together")


def _cells(entry: Entry, models: list[str]) -> list[str]:
    median, slowest, fastest = entry.speed
    accepted = "" if entry.accepted_per_step is None else f"{entry.accepted_per_step:.2f}"
    cells = [entry.name, f"{entry.tokens_per_s:.0f}", f"{median:.2f}", f"{slowest:.2f} to {fastest:.2f}",
             accepted]
    if entry.is_strict:
        return [*cells, *[""] * (6 + len(models))]
    cells += [f"{entry.relaxed_share:.2%}", f"{entry.differing:.1%}"]
    distances = (entry.cosine, entry.rouge_l, entry.length)
    cells += [_with_bound(part.mean, part.bound, ".4f") for part in distances]
    cells.append(_with_bound(entry.facts.mean, entry.facts.bound, ".4f") if entry.facts else "")
    return cells + [_with_bound(entry.auc[model].mean, entry.auc[model].bound, "+.4f") for model in models]


def _with_bound(mean: float, bound: float | None, form: str) -> str:
    return f"{mean:{form}} ({'none' if bound is None else format(bound, form)})"
