"""Settings of a CTR evaluation: the options of ``dare-job ctr``. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date

from dare_job.config.options import Device, day, device, option, words
from dare_job.errors import ConfigError

ENTITIES = ("user", "item")
MODELS = ("din", "dcnv2")
_DATA, _MODELS = "Data", "CTR models"


def _sets(flag: str, texts: list[str]) -> dict[str, str]:
    sets: dict[str, str] = {}
    for text in texts:
        name, equals, out = text.partition("=")
        if not equals:
            name, out = "knowledge", text
        if not name or not out:
            raise ConfigError(f"{flag} {text!r}: write NAME=OUT, for example strict=out/strict")
        if name in sets:
            raise ConfigError(f"{flag} {text!r}: the name {name!r} is given twice; each set needs its own")
        sets[name] = out
    return sets


def _entities(flag: str, text: str) -> list[str]:
    entities = words(flag, text)
    if not entities or set(entities) - set(ENTITIES):
        raise ConfigError(f"{flag} {text!r}: choose user, item, or user,item")
    return [entity for entity in ENTITIES if entity in entities]


def ctr_models(flag: str, text: str) -> list[str]:
    """Names of CTR models, separated by commas.

    Raises
    ------
    ConfigError
        There is no name, or a name is unknown. The message names the option.
    """
    models = words(flag, text)
    if not models or set(models) - set(MODELS):
        raise ConfigError(f"{flag} {text!r}: choose from {', '.join(MODELS)}")
    return models


def _pairs(flag: str, texts: list[str]) -> list[tuple[str, str]]:
    pairs = [words(flag, text) for text in texts]
    for pair, text in zip(pairs, texts, strict=True):
        if len(pair) != 2 or pair[0] == pair[1]:
            raise ConfigError(f"{flag} {text!r}: write two names, for example strict,relaxed")
    return [(first, second) for first, second in pairs]


@dataclass(frozen=True)
class TrainSettings:
    """Settings of the training of one CTR model."""

    epochs: int = option("Maximum number of epochs.", 30, panel=_MODELS, min=1)
    batch_size: int = option("Label rows per update.", 256, flag="--batch", panel=_MODELS, min=2)
    learning_rate: float = 1e-3
    weight_decay: float = 1e-5
    patience: int = 4  # epochs without a better AUC on the validation part
    average: float = option("Decay of the moving average of the weights; 0: use the last weights.", 0.99,
                            panel=_MODELS, min=0, max=0.9999)


@dataclass(frozen=True)
class Options:
    """Options of ``dare-job ctr``."""

    data: str = option("Clicks: input data of a run, the output of `dare-job data prepare`, a folder with "
                       "train, valid and test.csv.gz, or 'sample'.", panel=_DATA)
    knowledge: dict[str, str] = option(
        "Texts to compare: output folder of a run; repeatable. Names that start with 'cluster' use cluster "
        "ids instead of vectors.", (), metavar="NAME=OUT", parse=_sets, repeatable=True, panel=_DATA)
    models: Sequence[str] = option(
        "CTR models to train, comma-separated: din, dcnv2.", MODELS, flag="--ctr-model", parse=ctr_models,
        panel=_MODELS)
    seeds: int = option("Trainings of each model, with seeds from 0; use 5 or more.", 5, min=2, panel=_MODELS)
    dt: str | None = option("Published date of the texts. Default: the newest.", None, flag="--date",
                            metavar="YYYY-MM-DD", parse=lambda flag, text: day(flag, text).isoformat(),
                            panel=_DATA)
    labels_from: date | None = option(
        "First day to predict; earlier days are history. Default: the day after the texts.", None,
        metavar="YYYY-MM-DD", parse=day, panel=_DATA)
    entities: Sequence[str] = option("Use the texts of users, items or both.", ENTITIES, parse=_entities,
                                     panel=_DATA)
    encoder: str = option("Sentence encoder of texts without features: 'embedded', folder or hub name.",
                          "embedded", panel=_DATA)
    equivalent: Sequence[tuple[str, str]] = option(
        "Two sets to test for equal AUC within --margin; repeatable.", (), metavar="A,B", parse=_pairs,
        repeatable=True)
    margin: float = option("Largest difference of AUC that --equivalent counts as equal.", 0.002)
    history: int = option("Number of a user's last clicks in the input of a model.", 20, min=1, panel=_DATA)
    min_rating: float = option("Lowest rating that counts as a click.", 4.0, panel=_DATA)
    device: Device = device(_MODELS)
    training: TrainSettings = field(default_factory=TrainSettings)
