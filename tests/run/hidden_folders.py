"""Entry script for spark-submit: while executors write, the driver's folders named in HIDE are elsewhere.

So what executors open can only be what was shipped to them.
"""

import os
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dare_job.cli import main
from dare_job.stages import generate


@contextmanager
def hidden(folder: Path):
    away = folder.with_name(f"{folder.name}-away")
    folder.rename(away)
    try:
        yield
    finally:
        away.rename(folder)


def write_wave(*arguments):
    with ExitStack() as stack:
        for folder in os.environ["HIDE"].split(os.pathsep):
            stack.enter_context(hidden(Path(folder)))
        written(*arguments)


written, generate._write_wave = generate._write_wave, write_wave

if __name__ == "__main__":
    main()
