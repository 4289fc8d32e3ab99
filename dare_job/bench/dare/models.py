"""Small models of several architectures, grown out of the embedded model and taught the prompts of the bench.

A model starts with the embedded model's weights where its shape has room for them. What it has besides
(layers, rows of its MLPs, biases) starts without a say in the output and is trained. All of them write well
after minutes, but their texts are relatives: they differ in what a step costs more than in what they say.

They also learn to write of advertisements and whom they suit, by a grammar of its own, which says nothing of
titles from outside the sample world. The rows of the tables are the prompt sets of the package, worded for
films, and the advertisement's.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from dare_job import prompts
from dare_job.data.sample_world import phrases
from dare_job.data.sample_world.catalogue import GENRES, title_facts
from dare_job.data.sample_world.foreign import foreign_examples
from dare_job.data.sample_world.grammar import description
from dare_job.data.sample_world.simulate import DAYS, Example, item_examples, simulate, user_examples
from dare_job.errors import ConfigError
from dare_job.models import embedded_path
from dare_job.prompts.sets import PromptSet
from dare_job.schemas import ENTITIES
from dare_job.training.embedded.corpus import FIRST_TRAINING_SEED, worlds
from dare_job.training.embedded.train import PEAK_RATE_GOING_ON, fit_steps, save, schedule
from dare_job.workspace import committing, digest, is_done

_LOG = logging.getLogger(__name__)
ADVERTISEMENT = "advertisement"
_USERS, _ITEMS, _FOREIGN = 200, 300, 400
_SAME = ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings",
         "rms_norm_eps", "rope_parameters", "tie_word_embeddings", "bos_token_id", "eos_token_id",
         "pad_token_id")
_WINDOW = 384  # tokens that a Mistral layer looks back: fewer than the longest rows have

_AUDIENCE = "{a} People who look for {m} films are the first to address."
_ADVANTAGE = (
    "Other {g} titles rarely offer {h0}.",
    "Its advantage over other {g} titles is {h1}.",
)
_ENDING = "A good slogan would promise {h} and stay {m}."
_VIEWER = "Advertisements for this {r} aged {a} should begin with {h}."
_SEEN = (
    "After {t} a slogan that is {m0} would be read to its end.",
    "{t} speaks for a picture of {h0}.",
    "Behind {t} stands a wish for {h1}.",
    "Like {t}, it may have {m1}.",
)
_OLDEST = "As early as {t} it was {h0}, so that much is safe to promise."
_FAREWELL = "What is {m} suits {o}; what is loud does not."


def analysis(title: str, attributes: Mapping[str, str]) -> str:
    """Characteristics, audience and advantages of a sample-world item. Raises KeyError for others."""
    mood, theme = title_facts(title)
    genre = attributes["genre"]
    values = {"g": genre, "m": mood, "h": theme, "a": phrases.AUDIENCE[genre],
              "h0": phrases.THEME[theme][0], "h1": phrases.THEME[theme][1]}
    advantage = _ADVANTAGE[GENRES.index(genre) % len(_ADVANTAGE)]
    more = " ".join(form.format(**values) for form in (_AUDIENCE, advantage, _ENDING))
    opening = description(title, attributes).split(phrases.AUDIENCE[genre])[0].strip()
    return f"{opening} {more}"


def advice(attributes: Mapping[str, str], titles: Sequence[str]) -> str:
    """What suits a sample-world viewer by the titles seen, newest first. Raises KeyError for others."""
    mood, theme = title_facts(titles[0])
    viewer = {"r": attributes["occupation"], "a": attributes["age"],
              "o": phrases.PRONOUNS[attributes["gender"]][1]}
    told = [*zip(_SEEN, titles, strict=False), *((_OLDEST, title) for title in titles[len(_SEEN):][-1:])]
    return " ".join((_VIEWER.format(h=theme, **viewer), *(_about(*one) for one in told),
                     _FAREWELL.format(m=mood, **viewer)))


def _about(form: str, title: str) -> str:
    mood_name, theme_name = title_facts(title)
    mood, theme = phrases.MOOD[mood_name], phrases.THEME[theme_name]
    return form.format(t=title, m0=mood[0], m1=mood[2], h0=theme[0], h1=theme[1])


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
    known = [*prompts.set_names(), ADVERTISEMENT]
    if unknown := sorted(set(names) - set(known)):
        raise ConfigError(f"--prompts: no prompt set {', '.join(unknown)}; choose from {', '.join(known)}")
    default = [name for name in known if name != prompts.SAMPLE]
    sources = {ADVERTISEMENT: str(Path(__file__).with_name(f"{ADVERTISEMENT}.yaml"))}
    return [Framework(name, prompts.load(sources.get(name, name)), ENTITIES) for name in names or default]


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
        attributes = {"user": world.users.attributes, "item": world.catalogue.attributes}
        asked = [*user_examples(world, framework.prompts, int(rng.integers(2, DAYS + 1))),
                 *item_examples(world, framework.prompts, DAYS)]
        yield [*(replace(example, text=_text(example, attributes[example.entity][example.row]))
                 for example in asked), *foreign_examples(_FOREIGN, framework.prompts, rng)]


def _text(example: Example, attributes: Mapping[str, str]) -> str:
    if example.entity == "user":
        return advice(attributes, example.titles)
    return analysis(example.titles[0], attributes)

@dataclass(frozen=True)
class Shape:
    """Layers and width of the MLPs; ``more``: settings of the architecture's own."""

    layers: int
    inner: int
    more: dict = field(default_factory=dict)


SHAPES = {
    "llama": Shape(4, 640),  # as the embedded model
    "qwen2": Shape(6, 640),  # with biases in its attention
    "mistral": Shape(4, 1280, {"sliding_window": _WINDOW, "head_dim": 64}),
}


def check(names: Sequence[str]) -> None:
    """Raises ConfigError for an unknown architecture, or none."""
    if not names or (unknown := sorted(set(names) - set(SHAPES))):
        raise ConfigError(f"--architectures: {', '.join(unknown) if names else 'none'} cannot be measured; "
                          f"choose from {', '.join(SHAPES)}")


def trained(name: str, frameworks: Sequence[Framework], steps: int, work: Path) -> Path:
    """Folder of the architecture's model, trained for ``steps`` updates where ``work`` has none like it."""
    folder = work / "models" / name
    taught = [[framework.name, framework.prompts.version_hash, framework.sides] for framework in frameworks]
    made_of = digest([vars(SHAPES[name]), steps, taught])
    if not is_done(folder, made_of):
        record: dict = {"steps": steps}
        with committing(folder, made_of, record) as staging:
            record["loss"] = _train(name, frameworks, steps, staging)
    return folder


def _train(name: str, frameworks: Sequence[Framework], steps: int, out: Path) -> dict[str, float]:
    seed = list(SHAPES).index(name)
    torch.manual_seed(seed)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    tokenizer = AutoTokenizer.from_pretrained(embedded_path())
    model = grown(name).train()
    lesson = schedule(lessons(frameworks, seed), tokenizer, seed, drills=0)
    _LOG.info("%s: training", name)
    _, loss = fit_steps(model, lesson, steps, PEAK_RATE_GOING_ON, lambda: None)
    save(model, tokenizer, out)
    return loss


@torch.no_grad()
def grown(name: str) -> PreTrainedModel:
    """A model of this architecture that computes what the embedded model does, but for its window."""
    source = AutoModelForCausalLM.from_pretrained(embedded_path(), dtype=torch.float32)
    shape, same = SHAPES[name], {key: getattr(source.config, key) for key in _SAME}
    config = AutoConfig.for_model(name, num_hidden_layers=shape.layers, intermediate_size=shape.inner,
                                  **same, **shape.more)
    model = AutoModelForCausalLM.from_config(config)
    known = source.state_dict()
    for key, weight in model.state_dict().items():
        if key.endswith(("o_proj.weight", "down_proj.weight", "bias")):
            weight.zero_()  # what is new adds nothing to the residual stream
        if key in known:
            rows, *columns = known[key].shape
            weight[(slice(rows), *map(slice, columns))] = known[key]
    return model
