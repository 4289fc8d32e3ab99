"""Timers around the parts of a decoding step."""

import cProfile
import pstats
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from dare_job.decode.engine import engine
from dare_job.decode.engine.engine import Engine
from dare_job.decode.engine.rows import Rows
from dare_job.decode.model.target import Target
from dare_job.decode.request import Request, Result

_PROFILED = 30  # functions


class _Timed:
    """A callable that adds up its calls' time."""

    def __init__(self, inner, clock):
        self.inner, self.clock = inner, clock
        self.seconds, self.calls = 0.0, 0

    def __call__(self, *args, **kwargs):
        started = self.clock()
        try:
            return self.inner(*args, **kwargs)
        finally:
            self.seconds += self.clock() - started
            self.calls += 1


def clock_of(target: Target, threads: int) -> Callable[[], float]:
    """Return the thread's clock on a CPU with one thread, else the wall clock."""
    return time.thread_time if target.device.type == "cpu" and threads == 1 else time.perf_counter


@contextmanager
def _timers(target: Target, decoder: Engine, clock, parts: tuple[str, ...]) -> Iterator[dict[str, _Timed]]:
    """Timers around a step and these parts of it."""
    places = {"draft": (decoder, "_draft"), "tree": (engine, "build"), "mask": (target, "forward"),
              "forward": (target, "_forward"), "verify": (decoder, "_verify_logits"),
              "write": (Rows, "append"), "cache": (target, "commit"), "step": (decoder, "_step"),
              "script": (decoder, "script"), "constrain": (engine, "constrain"),
              "follow": (Rows, "_append_forced_ends")}
    timers = {part: _Timed(getattr(*places[part]), clock) for part in (*parts, "step")}
    with ExitStack() as stack:
        for part, timer in timers.items():
            of_rows = places[part][0] is Rows
            patched = (lambda rows, *args, timer=timer: timer(rows, *args)) if of_rows else timer
            stack.enter_context(patch.object(*places[part], patched))
        yield timers


def time_steps(target: Target, decoder: Engine, requests: list[Request], clock,
               parts: tuple[str, ...]) -> tuple[dict[str, float], list[Result], float]:
    """Microseconds per step of these parts and of "step" while no slot is empty, without the prompts' forward
    passes; results and seconds of the whole run.
    """
    started, results = clock(), []
    running = decoder.run(requests)
    with _timers(target, decoder, clock, parts) as timers:
        prefill = decoder._prefill

        def untimed(*args):  # its forward pass belongs to no step
            before = [(timer, timer.seconds) for timer in timers.values()]
            result = prefill(*args)
            for timer, seconds in before:
                timer.seconds = seconds
            return result

        decoder._prefill = untimed
        for result in running:
            results.append(result)
            if len(results) > len(requests) - decoder.settings.batch_size:
                break
        del decoder._prefill
    results += running
    seconds, steps = clock() - started, timers["step"].calls
    return {part: 1e6 * timer.seconds / steps for part, timer in timers.items()}, results, seconds


def profile_steps(decoder: Engine, requests: list[Request], file: str, title: str) -> None:
    """Append the time of each function of a run; a profiled call takes about a microsecond more."""
    profile = cProfile.Profile()
    profile.runcall(list, decoder.run(requests))
    with open(file, "a", encoding="utf-8") as out:
        print(title, file=out)
        pstats.Stats(profile, stream=out).strip_dirs().sort_stats("tottime").print_stats(_PROFILED)
