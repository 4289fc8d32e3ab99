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
from functools import partial
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

Form = Callable
After = Callable[[np.ndarray], torch.Tensor]


class StateRecorder:
    """States between the calls of a recurrence and of the cache, in one forward pass.

    Attributes
    ----------
    prompt : int
        Tokens of the prompts that come first; 0: the tokens continue texts.
    before : float (R, ...), optional
        State that the layer asked for last.
    after : callable, optional
        Of the recurrence that ran last: returns the states (R, ...) after the first token that continues a
        text, or after the prompt, and n (R,) more. None: it ran in another form.
    """

    def __init__(self):
        self.prompt = 0
        self.before: torch.Tensor | None = None
        self.after: After | None = None

    def run(self, length: int, chunk: Callable[[slice], tuple[torch.Tensor, torch.Tensor]],
            step: Callable[[int, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]):
        """Run ``chunk(tokens) -> (output, state)`` over a prompt and ``step(token, state) -> (output, new
        state)`` over later tokens; return the outputs, that of the prompt first, and the last state.
        """
        state, outputs, states = self.before, [], []
        if self.prompt:
            output, state = chunk(slice(self.prompt))
            outputs.append(output)
            states.append(state)
        for token in range(self.prompt, length):
            output, state = step(token, state)
            outputs.append(output)
            states.append(state)
        self.after = partial(_recorded, states)
        return outputs, state


def _recorded(states: list[torch.Tensor], counts: np.ndarray) -> torch.Tensor:
    """Return one of the states (R, ...) for each row."""
    first = counts[0].item()
    if (counts == first).all():
        return states[first]
    device = states[0].device
    return torch.stack(states)[torch.from_numpy(counts).to(device), torch.arange(len(counts), device=device)]


def _gated_delta_rule(chunked: Form, step: Form, recorder: StateRecorder):
    """The step form reads several tokens in one call and gives the last state. For an earlier one, it
    reads the tokens up to it again.
    """
    def chunk(query, key, value, *, g, beta, initial_state=None, output_final_state=True, **options):
        tensors, first, length = (query, key, value, g, beta), recorder.prompt, query.shape[1]

        def read(form: Form, parts: Sequence[torch.Tensor], state: torch.Tensor | None):
            q, k, v, decay, b = parts
            return form(q, k, v, g=decay, beta=b, initial_state=state, output_final_state=True, **options)

        state, outputs = recorder.before, []
        if first:
            output, state = read(chunked, [part[:, :first] for part in tensors], None)
            outputs.append(output)
        output, last = read(step, [part[:, first:] for part in tensors], state)

        def after(counts: np.ndarray) -> torch.Tensor:
            kept = counts + (not first)
            if kept.min() == length - first:
                return last
            if not kept.max():
                return state
            end = first + kept.max().item()
            shown = torch.from_numpy(np.arange(first, end) < first + kept[:, None]).to(query.device)
            # Later tokens of shorter chains leave the state as it is: no decay, nothing added.
            parts = [part[:, first:end].masked_fill(~shown.view(*shown.shape, *[1] * (part.dim() - 2)), 0)
                     for part in tensors]
            return read(step, parts, state)[1]

        recorder.after = after
        return torch.cat([*outputs, output], 1), last

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

        def one_step(t: int, state: torch.Tensor):
            state = state.clone()
            output = step(state, hidden_states[:, t], dt[:, t, :, None].expand(-1, -1, dim), wide_a, B[:, t],
                          C[:, t], wide_d, z=None, dt_bias=wide_bias, dt_softplus=dt_softplus)
            return output.reshape(batch, 1, heads, dim), state

        outputs, last = recorder.run(length, prompt, one_step)
        return torch.cat([output.view(batch, -1, heads, dim) for output in outputs], 1), last

    return chunk


def _mamba(chunked: Form, step: Form, recorder: StateRecorder):
    def scan(hidden_states, dt, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, **options):
        def prompt(now: slice):
            return chunked(hidden_states[..., now], dt[..., now], A, B[..., now], C[..., now], D=D,
                           z=None if z is None else z[..., now], delta_bias=delta_bias,
                           delta_softplus=delta_softplus, **options)

        def one_step(t: int, state: torch.Tensor):
            state = state.clone()
            output = step(state, hidden_states[..., t], dt[..., t], A, B[..., t], C[..., t], D,
                          z=None if z is None else z[..., t], dt_bias=delta_bias, dt_softplus=delta_softplus)
            return output[..., None], state

        outputs, last = recorder.run(hidden_states.shape[2], prompt, one_step)
        return torch.cat(outputs, -1), last

    return scan


def _linear_unit(chunked: Form, step: Form, recorder: StateRecorder):
    def scan(unit, hidden_states, recurrent_gate, reset, recurrent_states, **options):
        def read(form: Form, now: slice, state: torch.Tensor | None):
            return form(unit, hidden_states[:, now], recurrent_gate[:, now], reset[:, now], state, **options)

        outputs, last = recorder.run(hidden_states.shape[1], lambda now: read(chunked, now, None),
                                     lambda t, state: read(step, slice(t, t + 1), state))
        return torch.cat(outputs, 1), last

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

    @property
    def records(self) -> bool:
        """Whether the states after all tokens are kept until one is chosen."""
        return self.wrap is not _gated_delta_rule


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
