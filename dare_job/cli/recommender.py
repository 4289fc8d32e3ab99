"""The commands under ``dare-job recommender``: item ids, and recommenders that generate them."""

from dataclasses import replace

from dare_job.cli import options
from dare_job.cli.from_dataclass import takes
from dare_job.cli.result import print_result, show_values
from dare_job.training.align.settings import Options as AlignOptions
from dare_job.training.item_ids.settings import Options as ItemIdOptions
from dare_job.training.recommender.settings import EvaluationOptions
from dare_job.training.recommender.settings import Options as TrainOptions


@takes(ItemIdOptions)
def item_ids(asked: ItemIdOptions, as_json: bool) -> None:
    """Make item ids: residual-quantised codes of item vectors (RQ-VAE). The same seed makes the same ids."""
    from dare_job.training.item_ids.command import run

    options.writable("--save", asked.to)
    _run(run, asked, as_json, asked.to.parent)


@takes(TrainOptions)
def train(asked: TrainOptions, as_json: bool) -> None:
    """Train a generative recommender: item tokens of a history in, those of the next item out.

    If it was interrupted, the same command continues from the last checkpoint.
    """
    from dare_job.training.recommender.command import run

    _run(run, asked, as_json, asked.to)


@takes(AlignOptions)
def align(asked: AlignOptions, as_json: bool) -> None:
    """Align a draft recommender to a target, which then accepts more of its beams; can be interrupted."""
    from dare_job.training.align.command import run

    _run(run, asked, as_json, asked.to)


@takes(EvaluationOptions)
def evaluate(asked: EvaluationOptions, as_json: bool) -> None:
    """Recall@K and NDCG@K of recommenders and baselines on the same users, with paired intervals."""
    from dare_job.training.recommender.evaluation import run

    _run(run, asked, as_json)


def _run(run, asked, as_json: bool, folder=None) -> None:
    from contextlib import nullcontext

    from dare_job.cli.output import writing
    from dare_job.observe import log

    log.to_stderr()
    asked = replace(asked, device=options.torch_device(asked.device))
    with writing(folder) if folder else nullcontext():
        print_result(as_json, lambda: run(asked), show_values)
