"""Settings of the engine, with their bounds and descriptions.

The sections of the configuration are made from these dataclasses, so this module imports neither torch nor
numpy.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any, Literal, get_args, get_type_hints

from dare_job.errors import ConfigError

MAX_INT32 = 2**31 - 1
MAX_BEAMS = 64  # of a row
MIN_TEMPERATURE = 1e-6
# Within these limits a logit stays finite in float32, whatever the settings do to it one after the other.
MAX_BIAS, MIN_PENALTY, MAX_PENALTY = 1e4, 1e-3, 1e3

Rule = Literal["strict", "relaxed", "top_k", "threshold", "literal", "ratio", "entropy"]
RULES: tuple[Rule, ...] = get_args(Rule)
BeamDistribution = Literal["iid", "without_replacement"]

_BOUNDS = {"ge": ("at least", lambda value, bound: value >= bound),
           "gt": ("above", lambda value, bound: value > bound),
           "le": ("at most", lambda value, bound: value <= bound),
           "lt": ("below", lambda value, bound: value < bound)}


def setting(default: Any, description: str, **bounds: float) -> Any:
    """A dataclass field with a description and bounds (``ge``, ``gt``, ``le``, ``lt``)."""
    metadata = {"description": description, **bounds}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def check(settings: Any, sections: Mapping[str, str]) -> None:
    """Check that all values are within their bounds and among their choices.

    Parameters
    ----------
    sections
        Section of the configuration by field name; the key ``""`` holds the section of the others.

    Raises
    ------
    ConfigError
        A value is not; the message names the first one.
    """
    hints = get_type_hints(type(settings))
    for entry in fields(settings):
        value, key = getattr(settings, entry.name), sections.get(entry.name, sections[""]) + entry.name
        choices = get_args(hints[entry.name])
        if choices and all(isinstance(choice, str) for choice in choices) and value not in choices:
            raise ConfigError(f"{key} = {value!r} is unknown; choose from {', '.join(choices)}")
        if value is None or not set(entry.metadata) & set(_BOUNDS):
            continue
        bounds = [(words, bound, holds) for name, (words, holds) in _BOUNDS.items()
                  if (bound := entry.metadata.get(name)) is not None]
        if not _is_finite(value) or not all(holds(value, bound) for _, bound, holds in bounds):
            text = " and ".join(f"{words} {bound:g}" for words, bound, _ in bounds)
            raise ConfigError(f"{key} is {value!r}; it must be {text}")


def require_temperature(key: str, value: Any) -> None:
    """Check a sampling temperature, the value of the setting ``key``.

    Raises
    ------
    ConfigError
        It is neither 0 nor at least ``MIN_TEMPERATURE``.
    """
    if not _is_finite(value) or value != 0 and value < MIN_TEMPERATURE:
        raise ConfigError(f"{key} is {value!r}; it must be 0 (greedy), or at least {MIN_TEMPERATURE:g}")


def _is_finite(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True)
class EngineSettings:
    """Settings of one engine. Those of a drafter belong to the drafter.

    Attributes
    ----------
    one_shape
        Over pages, give all passes the shape of a full batch (``PagedCache.fixed_nodes``).
    """

    rule: Rule = setting(
        "strict", "Rule that verifies draft tokens. strict: text equals greedy decoding. All others accept "
        "tokens that are not the argmax. relaxed: among the k most probable and above probability p (DARE). "
        "literal: DARE's equation 8 as printed. top_k and threshold: one of its two conditions alone. ratio: "
        "at least c times the top probability. entropy: above a bound that falls with the entropy (Medusa). "
        "package.module:Class: a verifier of your own, in mode dare (docs/how-to/add-your-method.md). Unless "
        "it is lossless, a change of its options, version or file makes all texts stale")
    k: int = setting(2, "Rules relaxed, top_k and literal: a draft token has to be among the k most probable "
                     "tokens. 2 is the value of the DARE paper", ge=1, le=64)
    p: float = setting(0.1, "Rules relaxed, threshold and literal: a draft token needs a probability above p",
                       ge=0, lt=1)
    c: float = setting(0.5, "Rule ratio: a draft token needs at least c times the probability of the argmax",
                       gt=0, le=1)
    epsilon: float = setting(0.09, "Rule entropy: a draft token needs a probability above min(epsilon, "
                             "delta * exp(-entropy)). 0.09 is the value of Medusa", gt=0, le=1)
    delta: float = setting(0.3, "Rule entropy: factor of exp(-entropy), see epsilon. Medusa uses the square "
                           "root of epsilon, which is 0.3", gt=0, le=1)
    max_new_tokens: int | None = setting(
        256, "Maximum number of tokens of a text. A change makes all texts stale", ge=1, le=MAX_INT32)
    min_new_tokens: int = setting(
        0, "Number of tokens before which a text cannot end. 0: as in the model's generation config",
        ge=0, le=MAX_INT32)
    repetition_penalty: float | None = setting(
        None, "Penalty of tokens that the prompt or the text already holds, as in generate; not in mode "
        "beam. null: as in the model's generation config",
        ge=MIN_PENALTY, le=MAX_PENALTY)
    batch_size: int = setting(
        8, "Number of rows decoded together on one device. In float32 it changes no strict text; in bfloat16 "
        "and float16 it changes some texts, where two tokens are almost equally probable", ge=1, le=65536)
    # With its root, a row has 16 queries, to which a GPU would pad 9 or more.
    nodes: int = setting(15, "Draft tokens of each row per forward pass, at most; 0: autoregressive decoding",
                         ge=0)
    depth: int = setting(32, "Maximum length of a draft path, in tokens", ge=1, le=64)
    score: Literal["auto", "always", "never"] = setting(
        "auto", "Mode dare: verify a row's previous text (pools.own) in the forward pass of its prompt and "
        "keep the part that still holds. auto: as much of it as is worth its cost")
    row_timeout_s: float | None = setting(
        None, "Seconds of forward passes after which a row is moved out of its batch, retried alone, and "
        "then recorded as failed. null: no limit", gt=0)
    one_shape: bool = False

    def __post_init__(self):
        verify = dict.fromkeys(("rule", "k", "p", "c", "epsilon", "delta"), "verify.")
        check(self, {"": "decode.", **verify})


@dataclass(frozen=True)
class Warp:
    """Settings of sampling from logits, with the meaning that ``generate`` gives them; the defaults change
    nothing.

    With temperature 0 the most probable token alone is kept (of equals the first), and top_k, top_p and
    min_p have no effect. top_k keeps tokens that equal the last one. top_k 0, top_p 1 and min_p 0 keep all.
    """

    temperature: float = setting(
        1.0, "Sampling temperature. 0: the most probable token in mode sample, and beam search in mode beam")
    top_k: int | None = setting(
        None, "Keep only the k most probable tokens; in mode beam, pairs of a beam and a token. null: all")
    top_p: float | None = setting(
        None, "Keep only the most probable tokens up to this probability mass; in mode beam, pairs of a beam "
        "and a token. null: all", ge=0, le=1)
    min_p: float | None = setting(
        None, "Mode sample: keep only tokens with at least this share of the highest probability. null: all",
        ge=0, le=1)
    repetition_penalty: float = setting(
        1.0, "Penalty of tokens that the prompt or the text already holds", ge=MIN_PENALTY, le=MAX_PENALTY)
    logit_bias: Mapping[int, float] = setting(
        {}, "Mode sample: values added to the logits, by token id, before all other settings. -10000 forbids "
        "a token")

    def __post_init__(self) -> None:
        check(self, {"": "sample."})
        require_temperature("sample.temperature", self.temperature)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def generate_arguments(self) -> dict:
        """The arguments with which ``generate`` samples from the same distribution."""
        bias = {(int(token),): float(value) for token, value in self.logit_bias.items()}
        warp = {"temperature": self.temperature, "top_k": self.top_k or 0, "min_p": self.min_p,
                "top_p": 1.0 if self.top_p is None else self.top_p}
        return {"do_sample": not self.greedy, "num_beams": 1, "sequence_bias": bias or None,
                "repetition_penalty": float(self.repetition_penalty), **({} if self.greedy else warp)}


@dataclass(frozen=True)
class Beams:
    """Settings of mode beam (Qin et al., "Dynamic-Width Speculative Beam Decoding", AAAI 2025).

    Attributes
    ----------
    warp
        Temperature, top-k and top-p of pairs.
    distribution, draft_distribution
        Of a layer's beams, and of its drafts.
    seed
        With a row's id it decides the row's samples.
    """

    width: int = setting(4, "Maximum number of beams of a row, and of finished beams that are kept",
                         ge=1, le=MAX_BEAMS)
    draft_width: int = setting(4, "Drafts of a layer (W_S of the paper)", ge=1, le=MAX_BEAMS)
    min_width: int = setting(1, "Minimum number of beams of a drafted layer (W_min of the paper). Equal to "
                             "width: all layers have the same number", ge=1, le=MAX_BEAMS)
    threshold: float = setting(0.9, "A drafted layer keeps the largest number of beams, from min_width to "
                               "width, that its drafts yield with at least this probability (t of the "
                               "paper)", ge=0, le=1)
    layers: int = setting(4, "Layers per step that drafter.model drafts (gamma of the paper). 0: none",
                          ge=0, le=MAX_BEAMS)
    warp: Warp = field(default_factory=Warp)
    distribution: BeamDistribution = "iid"
    draft_distribution: BeamDistribution = "iid"
    length_penalty: float = setting(1.0, "The text is the finished beam with the highest log-probability / "
                                    "tokens ** length_penalty. 1: mean log-probability per token")
    single_cache: bool = setting(False, "Continue only the most probable beam in the next step. Lossy: it "
                                 "saves memory, and the texts have no known distribution")
    seed: int = 0

    def __post_init__(self):
        check(self, {"": "beam."})
        check_widths(self, self.warp.temperature)


def check_widths(beams: Any, temperature: float, drafted: bool = True) -> None:
    """Check the widths of ``Beams`` (or of the section beam).

    Parameters
    ----------
    drafted
        False where no draft model is used, so that ``draft_width`` has no effect.

    Raises
    ------
    ConfigError
        They contradict each other.
    """
    if beams.min_width > beams.width:
        raise ConfigError(f"beam.min_width = {beams.min_width} is more than beam.width = {beams.width}")
    for name in ("min_width", "width") if temperature == 0 else ("min_width",):
        if drafted and beams.layers and beams.draft_width < getattr(beams, name):
            raise ConfigError(
                f"beam.draft_width = {beams.draft_width} is less than beam.{name} = {getattr(beams, name)}: "
                "no layer of drafts could pass; use as many or more, or beam.layers = 0")


# Rule that verifies the candidates of a draft model, and the draft distributions that it is exact for. The
# first distribution is the one of the rule's paper: the method is then called as the rule.
_DISTRIBUTIONS = {
    "rrs": ("without_replacement", "iid", "distinct", "top_k", "greedy", "spechub"),
    "mcss": ("iid", "without_replacement"),
    "speculative": ("iid", "without_replacement", "distinct", "top_k", "greedy"),
    "naive": ("top_k", "iid", "without_replacement", "distinct", "greedy", "spechub"),
    "k_seq": ("iid",),
    "priority": ("iid",),
    "greedy": ("greedy", "without_replacement"),
    "spechub": ("spechub",),
    "traversal": ("without_replacement", "iid", "distinct", "top_k", "greedy", "spechub"),
}
# sample.method -> (rule, distribution of the draft model's candidates)
SAMPLE_METHODS = {rule if name == names[0] else f"{rule}/{name}": (rule, name)
                  for rule, names in _DISTRIBUTIONS.items() for name in names}
# beam.method -> (distribution of a layer's beams, distribution of its drafts)
BEAM_METHODS = {beams if beams == drafts else f"{beams}/{drafts}": (beams, drafts)
                for beams in get_args(BeamDistribution) for drafts in get_args(BeamDistribution)}
