"""Options of ``dare-job lab refresh``. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from dare_job.config.options import option, words
from dare_job.errors import ConfigError
from dare_job.evaluate.ctr.options import MODELS, TrainSettings, ctr_models

_WORLD, _MODELS = "World", "CTR models"


def _shares(flag: str, text: str) -> list[float]:
    try:
        shares = [float(part) for part in words(flag, text)]
    except ValueError:
        shares = []
    if not shares or not all(0 < share < 1 for share in shares):
        raise ConfigError(f"{flag} {text!r} is not a list of shares above 0 and below 1; write for example "
                          "0.1,0.3")
    return shares


@dataclass(frozen=True)
class Options:
    """Options of ``dare-job lab refresh``."""

    shares: Sequence[float] = option("Budgets, as shares of the cost of all rows that changed in a day.",
                                     (0.1, 0.2, 0.3), flag="--share", parse=_shares)
    unit: Literal["rows", "tokens"] = option("What a budget counts: rows, or tokens of prompts and texts.",
                                             "rows", metavar="rows|tokens")
    users: int = option("Users of the simulated world.", 400, min=20, panel=_WORLD)
    items: int = option("Items of the simulated world.", 80, min=20, panel=_WORLD)
    history_days: int = option("Days of history before the first label.", 14, min=1, panel=_WORLD)
    train_days: int = option("Days that the CTR models are trained on.", 56, min=7, panel=_WORLD)
    replay_days: int = option("Days that are replayed under each policy.", 56, min=4, panel=_WORLD)
    seed: int = option("Seed of the world and the policies.", 0, panel=_WORLD)
    models: Sequence[str] = option("CTR models: din, dcnv2.", MODELS, flag="--ctr-model",
                                   parse=ctr_models, panel=_MODELS)
    seeds: int = option("Trainings of each CTR model, with seeds from 0.", 3, min=1, panel=_MODELS)
    clicks: int = option("Last clicks in the input of a CTR model.", 2, flag="--history", min=1,
                         panel=_MODELS)
    samples: int = option("Bootstrap samples of users.", 400, min=20)
    encoder: str = option("Sentence encoder of the texts: 'embedded', folder or hub name.", "embedded")
    input: str | None = option("Real data, in any form that a run reads: also rank changes of texts there.",
                               None)
    nights: str | None = option("Output folder of a job: learn from its published dates, in place of a "
                                "simulated world.", None, metavar="OUT")
    save: Path | None = option("JSON file for the learned coefficients, which refresh.priority can name.",
                               None)
    quick: bool = option("Few users and trainings: exercises the command.", False)
    training: TrainSettings = field(default_factory=lambda: TrainSettings(patience=8))


def quick(options: Options) -> Options:
    """The options with a world that takes a minute."""
    return replace(options, users=min(options.users, 150), items=min(options.items, 80), history_days=7,
                   train_days=10, replay_days=7, seeds=1, samples=min(options.samples, 100),
                   training=replace(options.training, epochs=3))
