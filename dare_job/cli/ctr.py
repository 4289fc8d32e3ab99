"""The options of ``dare-job ctr``."""

from datetime import date
from typing import Annotated

import typer

from dare_job.cli import options
from dare_job.cli.options import Device
from dare_job.cli.result import AsJson, print_result
from dare_job.errors import ConfigError


def ctr(
    data: Annotated[str, typer.Option(
        "--data", help="Clicks: any input of the job (MovieLens, Amazon, Parquet), a folder that 'dare-job "
        "prepare' wrote, one with train, valid and test.csv.gz (uid, iid, label, timestamp, title), or "
        "'sample'.")],
    knowledge: Annotated[list[str] | None, typer.Option(
        "--knowledge", metavar="NAME=OUT", help="Texts to compare: the output of a run. A name that begins "
        "with 'cluster' takes cluster ids instead of vectors. Repeatable; a single OUT needs no name.")]
    = None,
    model: Annotated[str, typer.Option("--ctr-model", help="CTR models: din, dcnv2.")] = "din,dcnv2",
    seeds: Annotated[int, typer.Option("--seeds", min=2, help="Runs of each, with seeds from 0; below 5 "
                                "they say little.")] = 5,
    date_: Annotated[str | None, typer.Option(
        "--date", metavar="YYYY-MM-DD", help="Whose texts; the newest where not given.")] = None,
    labels_from: Annotated[str | None, typer.Option(
        "--labels-from", metavar="YYYY-MM-DD", help="First day whose interactions are predicted; those "
        "before are history. Without it the day after the texts'. Texts that are not older are refused.")]
    = None,
    entities: Annotated[str, typer.Option("--entities", help="Whose texts are used.")] = "user,item",
    encoder: Annotated[str, typer.Option(
        "--encoder", help="Sentence encoder of texts without features: 'embedded', a folder or a hub name.")]
    = "embedded",
    equivalent: Annotated[list[str] | None, typer.Option(
        "--equivalent", metavar="A,B", help="Two sets to test for equal AUC within --margin; repeatable.")]
    = None,
    margin: Annotated[float, typer.Option("--margin", help="Of AUC.")] = 0.002,
    history: Annotated[int, typer.Option("--history", min=1, help="Last clicks that a model sees.")] = 20,
    min_rating: Annotated[float, typer.Option("--min-rating", help="A click is a rating from this on.")] = 4,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="At most; early stopping ends sooner.")] = 30,
    batch: Annotated[int, typer.Option("--batch", min=2, help="Label rows of a training step.")] = 256,
    average: Annotated[float, typer.Option(
        "--average", min=0, max=0.9999, help="Decay of the moving average of the weights over steps, which "
        "is what predicts; 0: the last weights.")] = 0.99,
    device: Annotated[Device, typer.Option(
        "--device", help="auto: cuda where torch finds a GPU.")] = Device.auto,
    as_json: AsJson = False,
) -> None:
    """Train CTR models without and with the texts, and say what the texts are worth.

    AUC and log loss on the last part of the time, over seeds, with intervals, paired tests against the base
    and tests for equivalence.
    """
    from dare_job.evaluate.ctr import report
    from dare_job.evaluate.ctr.command import run
    from dare_job.evaluate.ctr.options import Options
    from dare_job.evaluate.ctr.train import TrainSettings
    from dare_job.observe import log

    log.to_stderr()
    dt = _day("--date", date_).isoformat() if date_ else None
    since = _day("--labels-from", labels_from) if labels_from else None
    asked = Options(
        data, _named(knowledge or []), options.words(model), seeds, dt, since, _entities(entities), encoder,
        [_pair(text) for text in equivalent or []], margin, history, min_rating, options.torch_device(device),
        TrainSettings(epochs=epochs, batch_size=batch, average=average))

    def work() -> dict:
        result = run(asked)
        report.show(result)
        return result

    print_result(as_json, work)


def _named(given: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, equals, out = text.partition("=")
        if not equals:
            name, out = "knowledge", text
        if not name or not out:
            raise ConfigError(f"--knowledge {text!r}: write NAME=OUT, for example strict=out/strict")
        if name in found:
            raise ConfigError(f"--knowledge {text!r}: the name {name!r} is there twice; each set needs "
                              "its own")
        found[name] = out
    return found


def _day(option: str, text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option} {text!r} is not a date; write it as YYYY-MM-DD") from None


def _entities(text: str) -> list[str]:
    from dare_job.schemas import ENTITIES

    found = options.words(text)
    if not found or set(found) - set(ENTITIES):
        raise ConfigError(f"--entities {text!r}: choose user, item, or user,item")
    return [entity for entity in ENTITIES if entity in found]


def _pair(text: str) -> tuple[str, str]:
    found = options.words(text)
    if len(found) != 2 or found[0] == found[1]:
        raise ConfigError(f"--equivalent {text!r}: write two names, for example strict,relaxed")
    return found[0], found[1]
