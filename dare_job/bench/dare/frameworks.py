"""The rows of the tables: every prompt set of the package, and the advertisement's."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dare_job import prompts
from dare_job.bench.dare import adverts
from dare_job.data.world.foreign import foreign_examples
from dare_job.data.world.simulate import DAYS, Example, item_examples, simulate
from dare_job.errors import ConfigError
from dare_job.model.corpus import FIRST_TRAINING_SEED, worlds
from dare_job.prompts import PromptSet
from dare_job.tables import ENTITIES

ADVERTISEMENT = "advertisement"
_ITEMS, _FOREIGN = 300, 400


@dataclass(frozen=True)
class Framework:
    """``source``: as ``prompts.load`` takes it; ``sides``: entity types that text is written about."""

    name: str
    source: str
    prompts: PromptSet
    sides: tuple[str, ...]


def find(names: Sequence[str]) -> list[Framework]:
    """Frameworks by name; all of them where no name is given. Raises ConfigError for an unknown one."""
    known = [path.stem for path in sorted(Path(prompts.__file__).parent.glob("*.yaml"))] + [ADVERTISEMENT]
    if unknown := sorted(set(names) - set(known)):
        raise ConfigError(f"--prompts: no prompt set {', '.join(unknown)}; choose from {', '.join(known)}")
    return [_framework(name) for name in names or known]


def _framework(name: str) -> Framework:
    advertised = name == ADVERTISEMENT
    source = str(Path(__file__).with_name(f"{ADVERTISEMENT}.yaml")) if advertised else name
    return Framework(name, source, prompts.load(source), ("item",) if advertised else ENTITIES)


def lessons(frameworks: Sequence[Framework], seed: int) -> Iterator[list[Example]]:
    """Prompts and texts of fresh sample worlds and made-up titles, of all frameworks, without end."""
    streams = [_adverts(framework, seed + place) if framework.name == ADVERTISEMENT
               else worlds(framework.prompts, seed + place) for place, framework in enumerate(frameworks)]
    for parts in zip(*streams, strict=True):
        yield [example for part in parts for example in part]


def _adverts(framework: Framework, seed: int) -> Iterator[list[Example]]:
    """Items of fresh worlds and made-up ones with an analysis each, as ``corpus.worlds`` has descriptions."""
    rng = np.random.default_rng((FIRST_TRAINING_SEED, seed))
    while True:
        world = simulate(1, _ITEMS, FIRST_TRAINING_SEED + int(rng.integers(2**40)))
        attributes = world.catalogue.attributes
        known = [replace(example, text=adverts.analysis(example.titles[0], attributes[example.row]))
                 for example in item_examples(world, framework.prompts, DAYS)]
        made_up = [example for example in foreign_examples(_FOREIGN, framework.prompts, rng)
                   if example.entity == "item"]
        yield known + made_up
