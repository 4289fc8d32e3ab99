"""The commands under ``dare-job recommender``, ``dare-job drafter`` and ``dare-job writer``."""

from dataclasses import replace

from dare_job.cli import options
from dare_job.cli.from_dataclass import takes
from dare_job.cli.result import print_result, show_values
from dare_job.training.align.settings import Options as AlignOptions
from dare_job.training.drafter.settings import Options as DrafterOptions
from dare_job.training.item_ids.settings import Options as ItemIdOptions
from dare_job.training.recommender.settings import EvaluationOptions
from dare_job.training.recommender.settings import Options as TrainOptions
from dare_job.training.writer.settings import Options as WriterOptions


@takes(ItemIdOptions)
def item_ids(args: ItemIdOptions, as_json: bool) -> None:
    """Make item ids: residual-quantised codes of item vectors (RQ-VAE). The same seed makes the same ids."""
    from dare_job.training.item_ids.assign import run

    options.writable("--save", args.to)
    _run(run, args, as_json, args.to.parent)


@takes(TrainOptions)
def train_recommender(args: TrainOptions, as_json: bool) -> None:
    """Train a generative recommender: item tokens of a history in, those of the next item out.

    If it was interrupted, the same command continues from the last checkpoint.
    """
    from dare_job.training.recommender.train import run

    _run(run, args, as_json, args.to)


@takes(AlignOptions)
def align(args: AlignOptions, as_json: bool) -> None:
    """Align a draft recommender to a target, which then accepts more of its beams; can be interrupted."""
    from dare_job.training.align.alignment import run

    _run(run, args, as_json, args.to)


@takes(EvaluationOptions)
def evaluate(args: EvaluationOptions, as_json: bool) -> None:
    """Recall@K and NDCG@K of recommenders and baselines on the same users, with paired intervals."""
    from dare_job.training.recommender.evaluation import run

    _run(run, args, as_json)


@takes(DrafterOptions)
def train_drafter(args: DrafterOptions, as_json: bool) -> None:
    """Train a small draft model on texts that the target generated, with the target's tokenizer.

    Reports how often both models have the same top-1 token, on held-out texts, before and after."""
    from dare_job.training.drafter.from_texts import run

    if args.date:
        options.day(args.date)
    _run(run, args, as_json, args.to)


@takes(WriterOptions)
def train_writer(args: WriterOptions, as_json: bool) -> None:
    """Fine-tune a small instruction-tuned model on texts of a larger one, to write such texts in its place.

    If it was interrupted, the same command continues from the last checkpoint.
    """
    from dare_job.training.writer.train import run

    _run(run, args, as_json, args.to)


def _run(run, args, as_json: bool, folder=None) -> None:
    from contextlib import nullcontext

    from dare_job.cli.output import writing
    from dare_job.observe import log

    log.to_stderr()
    args = replace(args, device=options.torch_device(args.device))
    with writing(folder) if folder else nullcontext():
        print_result(as_json, lambda: run(args), show_values)
