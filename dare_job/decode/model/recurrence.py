"""Recurrent layers over chains of draft tokens, with the state after each token.

``generate`` reads a prompt in the chunked form of a recurrence and every later token in its step form. The
two differ in rounding, and the chunked form gives the last state only. So chains run in the step form, token
by token, which is the form that ``generate`` uses for the same tokens; projections, convolutions and
feed-forward layers read the whole chain at once.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

Step = Callable[..., torch.Tensor]


class StateRecorder:
    """States between the calls of a recurrence and of the cache, in one forward pass.

    Attributes
    ----------
    before : float (R, ...), optional
        State that the layer asked for last.
    after : list of float (R, ...)
        States after each token, by the recurrence that ran last.
    """

    def __init__(self):
        self.before: torch.Tensor | None = None
        self.after: list[torch.Tensor] = []

    def run(self, length: int, step: Callable[[int, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]):
        """Run ``step(token, state) -> (output, new state)`` over tokens; return the outputs."""
        state, outputs, self.after = self.before, [], []
        for token in range(length):
            output, state = step(token, state)
            outputs.append(output)
            self.after.append(state)
        return outputs


def _gated_delta_rule(step: Step, recorder: StateRecorder):
    def chunk(query, key, value, *, g, beta, initial_state=None, output_final_state=True, **options):
        def one(t: int, state: torch.Tensor):
            now = slice(t, t + 1)
            return step(query[:, now], key[:, now], value[:, now], g=g[:, now], beta=beta[:, now],
                        initial_state=state, output_final_state=True, **options)

        outputs = recorder.run(query.shape[1], one)
        return torch.cat(outputs, 1), recorder.after[-1]

    return chunk


def _mamba2(step: Step, recorder: StateRecorder):
    def chunk(hidden_states, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, dt_softplus=False,
              **options):
        batch, length, heads, dim = hidden_states.shape
        wide_a = A[:, None, None].expand(-1, dim, B.shape[-1]).to(torch.float32)
        wide_d, wide_bias = (None if part is None else part[:, None].expand(-1, dim) for part in (D, dt_bias))

        def one(t: int, state: torch.Tensor):
            state = state.clone()
            output = step(state, hidden_states[:, t], dt[:, t, :, None].expand(-1, -1, dim), wide_a, B[:, t],
                          C[:, t], wide_d, z=None, dt_bias=wide_bias, dt_softplus=dt_softplus)
            return output, state

        outputs = recorder.run(length, one)
        return torch.stack(outputs, 1).view(batch, length, heads, dim), recorder.after[-1]

    return chunk


def _mamba(step: Step, recorder: StateRecorder):
    def scan(hidden_states, dt, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, **options):
        def one(t: int, state: torch.Tensor):
            state = state.clone()
            output = step(state, hidden_states[..., t], dt[..., t], A, B[..., t], C[..., t], D,
                          z=None if z is None else z[..., t], dt_bias=delta_bias, dt_softplus=delta_softplus)
            return output, state

        outputs = recorder.run(hidden_states.shape[2], one)
        return torch.stack(outputs, -1), recorder.after[-1]

    return scan


# Names in a model's code: of the chunked form, and of the step form with its wrapper.
_FORMS = {"torch_chunk_gated_delta_rule": ("torch_recurrent_gated_delta_rule", _gated_delta_rule),
          "chunk_kimi_delta_attention": ("recurrent_kimi_delta_attention", _gated_delta_rule),
          "mamba2_chunk_scan": ("mamba2_selective_state_update", _mamba2),
          "mamba_selective_scan": ("mamba_selective_state_update", _mamba)}


class Recurrence(NamedTuple):
    """A function of a model's code that runs a recurrence in its chunked form, and how its step form runs."""

    code: ModuleType
    name: str
    step: Step
    wrap: Callable[[Step, StateRecorder], Callable]


def find(model: PreTrainedModel) -> list[Recurrence]:
    """Return the recurrences of a model's code."""
    codes = {id(code): code for module in model.modules()
             if (code := sys.modules.get(type(module).__module__)) is not None}.values()
    return [Recurrence(code, name, getattr(code, step), wrap) for code in codes
            for name, (step, wrap) in _FORMS.items() if hasattr(code, name) and hasattr(code, step)]


@contextmanager
def by_token(recurrences: Sequence[Recurrence], recorder: StateRecorder) -> Iterator[None]:
    """Run recurrent layers in the step form, with their states recorded."""
    chunked = [getattr(code, name) for code, name, *_ in recurrences]
    for code, name, step, wrap in recurrences:
        setattr(code, name, wrap(step, recorder))
    try:
        yield
    finally:
        for (code, name, *_), function in zip(recurrences, chunked, strict=True):
            setattr(code, name, function)
