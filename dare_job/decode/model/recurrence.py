"""Recurrent layers over chains of draft tokens, with the state after each token.

``generate`` reads a prompt in the chunked form of a recurrence and every later token in its step form. The
two differ in rounding, and the chunked form gives the last state only. So chains run in the step form, token
by token, which is the form that ``generate`` uses for the same tokens; projections, convolutions and
feed-forward layers read the whole chain at once. If a chain follows its prompt in one forward pass, the
prompt runs in the chunked form.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

Form = Callable


class StateRecorder:
    """States between the calls of a recurrence and of the cache, in one forward pass.

    Attributes
    ----------
    prompt : int
        Tokens of the prompts that come first; 0: the tokens continue texts.
    before : float (R, ...), optional
        State that the layer asked for last.
    after : list of float (R, ...)
        States after the last token of a prompt and after each token that follows, or after each token that
        continues a text, by the recurrence that ran last.
    """

    def __init__(self):
        self.prompt = 0
        self.before: torch.Tensor | None = None
        self.after: list[torch.Tensor] = []

    def run(self, length: int, chunk: Callable[[slice], tuple[torch.Tensor, torch.Tensor]],
            step: Callable[[int, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]):
        """Run ``chunk(tokens) -> (output, state)`` over a prompt and ``step(token, state) -> (output, new
        state)`` over later tokens; return the outputs, that of the prompt first.
        """
        state, outputs, self.after = self.before, [], []
        if self.prompt:
            output, state = chunk(slice(self.prompt))
            outputs.append(output)
            self.after.append(state)
        for token in range(self.prompt, length):
            output, state = step(token, state)
            outputs.append(output)
            self.after.append(state)
        return outputs


def _gated_delta_rule(chunked: Form, step: Form, recorder: StateRecorder):
    def chunk(query, key, value, *, g, beta, initial_state=None, output_final_state=True, **options):
        def read(form: Form, now: slice, state: torch.Tensor | None):
            return form(query[:, now], key[:, now], value[:, now], g=g[:, now], beta=beta[:, now],
                        initial_state=state, output_final_state=True, **options)

        outputs = recorder.run(query.shape[1], lambda now: read(chunked, now, None),
                               lambda t, state: read(step, slice(t, t + 1), state))
        return torch.cat(outputs, 1), recorder.after[-1]

    return chunk


def _mamba2(chunked: Form, step: Form, recorder: StateRecorder):
    def chunk(hidden_states, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, dt_softplus=False,
              **options):
        batch, length, heads, dim = hidden_states.shape
        wide_a = A[:, None, None].expand(-1, dim, B.shape[-1]).to(torch.float32)
        wide_d, wide_bias = (None if part is None else part[:, None].expand(-1, dim) for part in (D, dt_bias))

        def prompt(now: slice):
            return chunked(hidden_states[:, now], dt[:, now], A, B[:, now], C[:, now], chunk_size, D=D,
                           dt_bias=dt_bias, dt_softplus=dt_softplus, **options)

        def one(t: int, state: torch.Tensor):
            state = state.clone()
            output = step(state, hidden_states[:, t], dt[:, t, :, None].expand(-1, -1, dim), wide_a, B[:, t],
                          C[:, t], wide_d, z=None, dt_bias=wide_bias, dt_softplus=dt_softplus)
            return output.reshape(batch, 1, heads, dim), state

        outputs = recorder.run(length, prompt, one)
        return torch.cat([output.view(batch, -1, heads, dim) for output in outputs], 1), recorder.after[-1]

    return chunk


def _mamba(chunked: Form, step: Form, recorder: StateRecorder):
    def scan(hidden_states, dt, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, **options):
        def prompt(now: slice):
            return chunked(hidden_states[..., now], dt[..., now], A, B[..., now], C[..., now], D=D,
                           z=None if z is None else z[..., now], delta_bias=delta_bias,
                           delta_softplus=delta_softplus, **options)

        def one(t: int, state: torch.Tensor):
            state = state.clone()
            output = step(state, hidden_states[..., t], dt[..., t], A, B[..., t], C[..., t], D,
                          z=None if z is None else z[..., t], dt_bias=delta_bias, dt_softplus=delta_softplus)
            return output[..., None], state

        outputs = recorder.run(hidden_states.shape[2], prompt, one)
        return torch.cat(outputs, -1), recorder.after[-1]

    return scan


def _linear_unit(chunked: Form, step: Form, recorder: StateRecorder):
    def scan(unit, hidden_states, recurrent_gate, reset, recurrent_states, **options):
        def read(form: Form, now: slice, state: torch.Tensor | None):
            return form(unit, hidden_states[:, now], recurrent_gate[:, now], reset[:, now], state, **options)

        outputs = recorder.run(hidden_states.shape[1], lambda now: read(chunked, now, None),
                               lambda t, state: read(step, slice(t, t + 1), state))
        return torch.cat(outputs, 1), recorder.after[-1]

    return scan


# Names in a model's code: of the chunked form, and of the step form with its wrapper.
_FORMS = {"torch_chunk_gated_delta_rule": ("torch_recurrent_gated_delta_rule", _gated_delta_rule),
          "chunk_kimi_delta_attention": ("recurrent_kimi_delta_attention", _gated_delta_rule),
          "mamba2_chunk_scan": ("mamba2_selective_state_update", _mamba2),
          "mamba_selective_scan": ("mamba_selective_state_update", _mamba)}


_METHOD = "_rnn_scan"  # of RecurrentGemma's linear unit, for both forms


class Recurrence(NamedTuple):
    """A function of a module or class that runs a recurrence in chunked form, and how its step form runs."""

    code: ModuleType | type
    name: str
    step: Form
    wrap: Callable[[Form, Form, StateRecorder], Form]


def find(model: PreTrainedModel) -> list[Recurrence]:
    """Return the recurrences of a model's code."""
    types = {type(module) for module in model.modules()}
    codes = {id(code): code for kind in types
             if (code := sys.modules.get(kind.__module__)) is not None}.values()
    functions = [Recurrence(code, name, getattr(code, step), wrap) for code in codes
                 for name, (step, wrap) in _FORMS.items() if hasattr(code, name) and hasattr(code, step)]
    return functions + [Recurrence(kind, _METHOD, getattr(kind, _METHOD), _linear_unit) for kind in types
                        if hasattr(kind, _METHOD)]


@contextmanager
def by_token(recurrences: Sequence[Recurrence], recorder: StateRecorder) -> Iterator[None]:
    """Run recurrent layers in the step form, with their states recorded."""
    chunked = [getattr(code, name) for code, name, *_ in recurrences]
    for (code, name, step, wrap), function in zip(recurrences, chunked, strict=True):
        setattr(code, name, wrap(function, step, recorder))
    try:
        yield
    finally:
        for (code, name, *_), function in zip(recurrences, chunked, strict=True):
            setattr(code, name, function)
