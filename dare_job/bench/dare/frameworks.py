"""The rows of the tables: the prompt sets of the package, worded for films, and the advertisement's."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dare_job import prompts
from dare_job.bench.dare import adverts
from dare_job.data.world.foreign import foreign_examples
from dare_job.data.world.simulate import DAYS, Example, item_examples, simulate, user_examples
from dare_job.errors import ConfigError
from dare_job.model.corpus import FIRST_TRAINING_SEED, worlds
from dare_job.prompts import PromptSet
from dare_job.tables import ENTITIES

ADVERTISEMENT = "advertisement"
_USERS, _ITEMS, _FOREIGN = 200, 300, 400


@dataclass(frozen=True)
class Framework:
    """``sides``: entity types that text is written about."""

    name: str
    prompts: PromptSet
    sides: tuple[str, ...]


def find(names: Sequence[str]) -> list[Framework]:
    """Frameworks by name; where no name is given all but the embedded model's own set.

    Raises ConfigError for an unknown one.
    """
    known = [*prompts.known(), ADVERTISEMENT]
    if unknown := sorted(set(names) - set(known)):
        raise ConfigError(f"--prompts: no prompt set {', '.join(unknown)}; choose from {', '.join(known)}")
    default = [name for name in known if name != prompts.SAMPLE]
    return [_framework(name) for name in names or default]


def _framework(name: str) -> Framework:
    advertised = name == ADVERTISEMENT
    source = str(Path(__file__).with_name(f"{ADVERTISEMENT}.yaml")) if advertised else name
    return Framework(name, prompts.load(source), ENTITIES)


def lessons(frameworks: Sequence[Framework], seed: int) -> Iterator[list[Example]]:
    """Prompts and texts of fresh sample worlds and made-up titles, of all frameworks, without end."""
    streams = [_adverts(framework, seed + place) if framework.name == ADVERTISEMENT
               else worlds(framework.prompts, seed + place) for place, framework in enumerate(frameworks)]
    for parts in zip(*streams, strict=True):
        yield [example for part in parts for example in part]


def _adverts(framework: Framework, seed: int) -> Iterator[list[Example]]:
    """Users and items of fresh worlds and made-up ones with a text each, as ``corpus.worlds`` has them."""
    rng = np.random.default_rng((FIRST_TRAINING_SEED, seed))
    while True:
        world = simulate(_USERS, _ITEMS, FIRST_TRAINING_SEED + int(rng.integers(2**40)))
        attributes = {"user": world.people.attributes, "item": world.catalogue.attributes}
        asked = [*user_examples(world, framework.prompts, int(rng.integers(2, DAYS + 1))),
                 *item_examples(world, framework.prompts, DAYS)]
        yield [*(replace(example, text=_text(example, attributes[example.entity][example.row]))
                 for example in asked), *foreign_examples(_FOREIGN, framework.prompts, rng)]


def _text(example: Example, attributes: Mapping[str, str]) -> str:
    if example.entity == "user":
        return adverts.advice(attributes, example.titles)
    return adverts.analysis(example.titles[0], attributes)
