"""A lock that is held shows it every minute: one that was silent for ten is dead, wherever its holder was.

Who was silent for so long and lives has lost the lock, and learns it from ``require_held``, which comes
before all that makes work final.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from dare_job import store_errors
from dare_job.errors import InfrastructureError
from dare_job.files import AnyPath

RENEW_S = 60.0
STALE_S = 600.0
_LOG = logging.getLogger("dare_job")


class Lease(Protocol):
    """What is held. ``renew`` shows it, and raises InfrastructureError where the lock is another's by now."""

    path: AnyPath

    def renew(self) -> None: ...
    def release(self) -> None: ...


@contextmanager
def holding(lease: Lease) -> Iterator[None]:
    """Renew a lock that was taken while the block runs, then release it."""
    stop = threading.Event()
    thread = threading.Thread(target=_keep, args=(lease, stop), daemon=True)
    thread.start()
    outer = _HELD.set((*_HELD.get(), lease))
    try:
        yield
    finally:
        _HELD.reset(outer)
        stop.set()
        thread.join()
        lease.release()


def require_held() -> None:
    """Renew each lock that blocks around the caller hold.

    Raises InfrastructureError where one is another's by now. What disk and store answer is passed on.
    """
    for lease in _HELD.get():
        lease.renew()


def lost(path: AnyPath) -> InfrastructureError:
    return InfrastructureError(
        f"{path} is no longer this command's: somebody removed it, or another command took it over after "
        f"{STALE_S / 60:.0f} minutes without a sign of life of this one, which changes nothing more; run it "
        "again once the other one has ended")


def _keep(lease: Lease, stop: threading.Event) -> None:
    """Renew until told to stop, or until the lock is lost; a store that is away is asked again sooner."""
    wait_s = RENEW_S
    while not stop.wait(wait_s):
        try:
            lease.renew()
            wait_s = RENEW_S
        except InfrastructureError as error:
            _LOG.error("%s", error)
            return
        except Exception as error:
            if wait_s == RENEW_S:
                _LOG.warning("%s could not be renewed and is tried again: %s", lease.path,
                             store_errors.reason(error) or error)
            wait_s = RENEW_S / 6


_HELD: ContextVar[tuple[Lease, ...]] = ContextVar("held", default=())
