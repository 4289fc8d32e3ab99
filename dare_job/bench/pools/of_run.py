"""``bench run-pools``: the cells of ``bench pools`` on the users of a run, with texts of the date before."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np

from dare_job.bench.cli import command
from dare_job.bench.kept import work_folder
from dare_job.bench.peers import task
from dare_job.bench.pools.compare import Cells, compare
from dare_job.bench.pools.pools import Pools
from dare_job.bench.profiles import texts
from dare_job.bench.profiles.two_dates import TwoDates
from dare_job.cli import options as night_options
from dare_job.config.options import option
from dare_job.data.recorded_texts import by_digest
from dare_job.embed import vectors
from dare_job.job import Job
from dare_job.workspace import Workspace

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options(Cells, night_options.Night):
    """Options of ``bench run-pools``: a date to write, whose output folder has the date before."""

    pool: int = option("Number of other users whose texts of the date before are drafts.", 1000)
    threads: int = option("Number of torch threads while measuring.", 1, min=1)
    work: Path | None = option("Folder that keeps the texts of the date and each block that is measured, for "
                               "the next call. Default: a temporary folder.", None)

    def __post_init__(self):
        self.check_sizes(self.pool)


def run(options: Options) -> dict:
    """Compare pools, sources and rules of verification on the users of a run, at batch 1 on the CPU.

    As bench pools, with the model, prompts and texts of a run: drafts are the texts of the date before, which
    ``dare-job run`` wrote to the output folder, and users who rated alike are near in the vectors of its
    stage embed. Tables 3 and 8 and figures 2 and 5 of DARE (arXiv 2408.05676). The last line of standard
    output is one JSON object.
    """
    logging.getLogger("faiss").setLevel(logging.WARNING)
    job = night_options.job(options, pick=False)
    with work_folder(options.work) as work:
        dates = read(job, work, options.rows, options.pool)
        options.check_sizes(len(dates.pool))
        by_kind = Pools(dates, _vectors(job, [*dates.prompts, *dates.pool]))
        figures = compare(dates, by_kind, options, options.threads, work, job.config.model.dtype,
                          job.config.decode.repetition_penalty)
    copied = float(np.mean([task.copied_share(dates.prompts[user].tolist(), text.tolist())
                            for user, text in dates.texts.items()]))
    print(f"{copied:.0%} of the tokens lie in four tokens in a row of their prompts")
    return figures | {"copied_share": round(copied, 3)}


def read(job: Job, work: Path, rows: int, pool: int) -> TwoDates:
    """Texts of both dates: those of the earlier one as published, those of ``rows`` users generated here.

    Of ``rows + pool`` users, those without an earlier text are left out, which makes the pool smaller.

    Raises
    ------
    DataError
        The output folder has no earlier date, or the input too few users with a prompt.
    """
    found = task.read(job, rows + pool, 1)
    users = [user for user in found.prompts if user in found.previous]
    users = [users[number] for number in by_digest(users)]
    if len(users) < rows + pool:
        _LOG.info("%d of %d users have no earlier text", rows + pool - len(users), rows + pool)
    test, others = users[:rows], users[rows:]
    prompts = {user: found.prompts[user] for user in test}
    known = texts.generate_from_ids(job.model_path, work, prompts, job.config.model.dtype,
                                    job.config.decode.max_new_tokens, job.config.decode.repetition_penalty)
    return TwoDates(job.model_path, prompts, {user: found.previous[user] for user in test},
                    {user: found.previous[user] for user in others}, known)


def _vectors(job: Job, users: list[str]) -> Mapping[str, np.ndarray]:
    """Vector float32 (d,) of each user, of the earlier run's stage embed; zeros where it has none."""
    earlier = date.fromisoformat(job.space.previous("user").name.removeprefix("dt="))
    folder = Workspace(job.space.out, earlier).stage("embed") / "entity=user"
    names, rows = vectors.read_vectors(folder)
    of = dict(zip(names.to_pylist(), rows, strict=True))
    return {user: of.get(user, np.zeros(rows.shape[1], np.float32)) for user in users}


main = command(Options)(run)
