"""The options of the commands that make item ids and recommenders, and measure them."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dare_job.cli import options
from dare_job.cli.options import Device, OnDevice, torch_device
from dare_job.cli.result import AsJson, print_result, show_values
from dare_job.errors import ConfigError


class Split(StrEnum):
    given = "given"
    leave_one_out = "leave-one-out"


Data = Annotated[Path, typer.Option(
    "--data", help="Sequences: Parquet interactions (user_id, item_id, timestamp), or a folder with "
    "sequential_train, _valid and _test.txt (.gz).")]
Ids = Annotated[Path, typer.Option("--ids", help="Item ids, JSON.")]
FirstItem = Annotated[int, typer.Option(
    "--first-item", help="Number that text sequences give the item with the name 0.")]
SplitBy = Annotated[Split, typer.Option(
    "--split", help="given: by the files, of Parquet 8:1:1 by time; leave-one-out: a user's last item is for "
    "the test.")]
MinRating = Annotated[float | None, typer.Option(
    "--min-rating", help="Parquet: interactions rated below do not count as taken; the job's "
    "history.min_rating.")]
Seed = Annotated[int, typer.Option("--seed", help="Of weights and order.")]


class Collisions(StrEnum):
    reassign = "reassign"
    level = "level"
    share = "share"


def item_ids(
    to: Annotated[Path, typer.Option("--save", help="File of item ids, JSON.")],
    vectors: Annotated[Path | None, typer.Option(
        "--vectors", help="Item vectors: Parquet (entity_id, vector), as the stage encode writes it, or "
        ".npy, whose items are named by their row from 0.")] = None,
    texts: Annotated[Path | None, typer.Option(
        "--text", help="Instead, item texts: jsonl, csv or Parquet, gzipped or not.")] = None,
    column: Annotated[str, typer.Option("--column", help="Column of the text.")] = "title",
    id_column: Annotated[str, typer.Option("--id-column", help="Column of the item's id.")] = "item_id",
    encoder: Annotated[str, typer.Option(
        "--encoder", help="Sentence encoder of the texts: 'embedded', a folder or a hub name.")] = "embedded",
    levels: Annotated[int, typer.Option("--levels", help="Codes of an id.")] = 4,
    codes: Annotated[int, typer.Option("--codes", help="Codes that a level has.")] = 256,
    collisions: Annotated[Collisions, typer.Option(
        "--collisions", help="Items with the same codes: reassign the last code, add a level that numbers "
        "them, or let them share an id.")] = Collisions.reassign,
    epochs: Annotated[int, typer.Option("--epochs", help="Of the quantiser.")] = 100,
    batch: Annotated[int, typer.Option("--batch", help="Items of an update.")] = 1024,
    rate: Annotated[float, typer.Option("--rate", help="Learning rate.")] = 1e-3,
    seed: Seed = 0, device: OnDevice = Device.auto, as_json: AsJson = False,
) -> None:
    """Make item ids: residual-quantised codes of item vectors (RQ-VAE), the same for the same seed.

    """
    from dare_job.cli.output import writing
    from dare_job.observe import log
    from dare_job.training.item_ids.command import Options, run
    from dare_job.training.item_ids.quantiser import Settings

    log.to_stderr()
    settings = Settings(levels, codes, epochs=epochs, batch=batch, rate=rate, seed=seed)
    with writing(options.writable("--save", to).parent):
        print_result(as_json, lambda: run(Options(
            vectors, texts, column, id_column, encoder, to, collisions.value, torch_device(device),
            settings)), show_values)


def train_recommender(
    data: Data, ids: Ids,
    to: Annotated[Path, typer.Option("--save", help="Folder for the recommender.")],
    model: Annotated[str | None, typer.Option(
        "--base", help="Start from 'embedded', a folder or a hub name; else a new small Llama.")] = None,
    revision: Annotated[str | None, typer.Option(
        "--revision", help="Branch, tag or commit of a hub model.")] = None,
    lora: Annotated[int, typer.Option(
        "--lora", help="Rank of low-rank updates of --base, merged in the end; 0: train all weights.")] = 0,
    width: Annotated[int, typer.Option("--width", help="Of a new model's hidden states.")] = 256,
    layers: Annotated[int, typer.Option("--layers", help="Of a new model.")] = 4,
    heads: Annotated[int, typer.Option("--heads", help="Of its attention.")] = 4,
    history: Annotated[int, typer.Option("--history", help="Newest items that a prompt holds.")] = 20,
    epochs: Annotated[int, typer.Option("--epochs", help="At most.")] = 40,
    patience: Annotated[int, typer.Option(
        "--patience", help="Epochs without a better validation that end it.")] = 3,
    batch_tokens: Annotated[int, typer.Option("--batch-tokens", help="Tokens of an update, about.")] = 2048,
    rate: Annotated[float, typer.Option("--rate", help="Peak learning rate.")] = 1e-3,
    weight_decay: Annotated[float, typer.Option("--weight-decay", help="Of AdamW.")] = 0.1,
    warmup: Annotated[int, typer.Option("--warmup", help="Updates up to the peak rate.")] = 200,
    dropout: Annotated[float, typer.Option("--dropout", help="Of each layer's outputs.")] = 0.2,
    item_dropout: Annotated[float, typer.Option(
        "--item-dropout", help="Share of a history's items that an epoch leaves out.")] = 0.1,
    valid_users: Annotated[int, typer.Option(
        "--valid-users", help="Users, at most, whose next items decide when to stop.")] = 2000,
    split: SplitBy = Split.given, first_item: FirstItem = 1, min_rating: MinRating = None, seed: Seed = 0,
    device: OnDevice = Device.auto, as_json: AsJson = False,
) -> None:
    """Train a generative recommender: histories of item tokens in, the next item's tokens out.

    Started again after a kill it goes on.
    """
    from dare_job.cli.output import writing
    from dare_job.observe import log
    from dare_job.training.recommender.command import Options, run
    from dare_job.training.recommender.network import Settings
    from dare_job.training.recommender.sequences import Source

    settings = Settings(width, layers, heads, lora, history, epochs, patience, batch_tokens, rate,
                        weight_decay, warmup, dropout, item_dropout, valid_users, seed)
    asked = Options(Source(data, split.value, first_item, min_rating), ids, to, model, revision,
                    torch_device(device), settings)
    log.to_stderr()
    with writing(to):
        print_result(as_json, lambda: run(asked), show_values)


class Loss(StrEnum):
    s = "s"
    r = "r"
    sft = "sft"
    wordkd = "wordkd"
    tvdkd = "tvdkd"
    seqkd = "seqkd"


def align(
    data: Data,
    target: Annotated[Path, typer.Option("--recommender", help="Folder of the recommender that is sped up.")],
    draft: Annotated[Path, typer.Option(
        "--draft", help="Folder of a small recommender with the same ids, which the training starts from.")],
    to: Annotated[Path, typer.Option("--save", help="Folder for the aligned draft.")],
    loss: Annotated[Loss, typer.Option(
        "--loss", help="s: AtSpeed-S, for strict verification; r: AtSpeed-R, for relaxed sampling; the "
        "others are for comparison.")] = Loss.r,
    alpha: Annotated[float, typer.Option(
        "--alpha", help="Share of the alignment loss; the paper takes 0.5, 0.9 served better here.")] = 0.9,
    search_alpha: Annotated[bool, typer.Option(
        "--search-alpha", help="Try 0.1, 0.3, 0.5, 0.7 and 0.9, and keep the most accepted steps.")] = False,
    k: Annotated[int, typer.Option("--k", help="Sequences that are aligned of each history.")] = 10,
    mix: Annotated[float, typer.Option(
        "--mix", help="Share of the target in the law whose beams s learns on; else the draft's.")] = 0.5,
    no_density: Annotated[bool, typer.Option(
        "--no-density", help="Ablation: s without its density term.")] = False,
    top_one: Annotated[bool, typer.Option(
        "--top-one", help="Ablation: align on the best sequence alone.")] = False,
    all_steps: Annotated[bool, typer.Option(
        "--all-steps", help="Align on the prefixes of every beam step too.")] = False,
    unconstrained: Annotated[bool, typer.Option(
        "--unconstrained", help="Ablation: s and r over all codes of a level.")] = False,
    keep_last: Annotated[bool, typer.Option(
        "--keep-last", help="Keep the last epoch's weights, even where the draft was better before: to see "
        "what a loss does.")] = False,
    examples: Annotated[int, typer.Option("--examples", help="Histories to learn from, at most.")] = 8000,
    held_out: Annotated[int, typer.Option("--held-out", help="Histories to measure on.")] = 256,
    beams: Annotated[int, typer.Option(
        "--beams", help="Of the draft, in which the target's top K are looked for.")] = 40,
    epochs: Annotated[int, typer.Option("--epochs", help="At most.")] = 6,
    patience: Annotated[int, typer.Option(
        "--patience", help="Epochs without more accepted steps that end it.")] = 3,
    batch: Annotated[int, typer.Option("--batch", help="Histories of an update.")] = 32,
    rate: Annotated[float, typer.Option("--rate", help="Peak learning rate.")] = 2e-4,
    weight_decay: Annotated[float, typer.Option("--weight-decay", help="Of AdamW.")] = 0.01,
    warmup: Annotated[int, typer.Option("--warmup", help="Updates up to the peak rate.")] = 100,
    dropout: Annotated[float, typer.Option("--dropout", help="Of each layer's outputs.")] = 0.1,
    lessons: Annotated[Path | None, typer.Option(
        "--teacher-paths", help="File that keeps what the target said, for further alignments; refused where "
        "it holds anything else.")] = None,
    split: SplitBy = Split.given, first_item: FirstItem = 1, min_rating: MinRating = None, seed: Seed = 0,
    device: OnDevice = Device.auto, as_json: AsJson = False,
) -> None:
    """Align a draft recommender to a target, so that more of its beams are accepted.

    Started again after a kill it goes on.
    """
    from dare_job.cli.output import writing
    from dare_job.observe import log
    from dare_job.training.align.command import Options, run
    from dare_job.training.align.settings import Settings
    from dare_job.training.recommender.sequences import Source

    settings = Settings(loss.value, None if search_alpha else alpha, k, mix, not no_density, top_one,
                        all_steps, not unconstrained, keep_last, examples, held_out, beams, epochs, patience,
                        batch, rate, weight_decay, warmup, dropout, seed)
    asked = Options(Source(data, split.value, first_item, min_rating), target, draft, to, lessons,
                    torch_device(device), settings)
    log.to_stderr()
    with writing(to):
        print_result(as_json, lambda: run(asked), show_values)


def evaluate_recommender(
    data: Data, ids: Ids,
    recommender: Annotated[list[str] | None, typer.Option(
        "--recommender", metavar="NAME=FOLDER", help="To be measured; repeatable.")] = None,
    baselines: Annotated[str, typer.Option(
        "--baselines", help="popularity, sasrec (extra recommend); empty: none.")] = "popularity",
    k: Annotated[str, typer.Option("--k", help="Lengths of the lists.")] = "5,10",
    users: Annotated[int, typer.Option("--users", min=0, help="Users drawn by --seed; 0: all.")] = 0,
    beams: Annotated[int, typer.Option(
        "--beams", min=0, help="Width of the search; 0: the longest list, as the job searches.")] = 0,
    seen: Annotated[bool, typer.Option("--seen", help="Leave items of the history in the lists.")] = False,
    split: SplitBy = Split.given, first_item: FirstItem = 1, min_rating: MinRating = None, seed: Seed = 0,
    device: OnDevice = Device.auto, as_json: AsJson = False,
) -> None:
    """Recall@K and NDCG@K of recommenders and baselines on the same users, with paired bootstrap intervals.

    """
    from dare_job.observe import log
    from dare_job.training.recommender.evaluation import Options, run
    from dare_job.training.recommender.sequences import Source

    log.to_stderr()
    print_result(as_json, lambda: run(Options(
        Source(data, split.value, first_item, min_rating), ids, _named(recommender or []),
        options.words(baselines), options.numbers("--k", k), users, beams, seen, torch_device(device),
        seed)), show_values)


def _named(given: list[str]) -> dict[str, Path]:
    found = {name: Path(folder) for name, _, folder in (text.partition("=") for text in given) if folder}
    if len(found) < len(given):
        raise ConfigError(f"--recommender {', '.join(given)}: write NAME=FOLDER, each name once")
    return found
