"""Commands of ``python -m dare_job.bench`` on draft models, beams and recommenders."""

import json
import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from dare_job.cli import options
from dare_job.errors import ConfigError
from dare_job.training.checks import require_temperatures

app = typer.Typer()
Target = Annotated[str, typer.Option("--target", help="Model that writes: embedded, a folder or a hub name.")]
Precision = Annotated[options.Dtype, typer.Option("--dtype", help="Data type of both models' weights.")]


@app.command()
def sample(
    temperatures: Annotated[str, typer.Option(
        "--temperatures", help="Sampling temperatures; 0: greedy decoding.")] = "0,0.7,1,1.75",
    rows: Annotated[int, typer.Option("--rows", help="Users whose texts each method samples.")] = 32,
    tokens: Annotated[int, typer.Option("--tokens", help="Maximum number of new tokens per text.")] = 160,
    users: Annotated[int, typer.Option(
        "--users", help="Users of the sample world; the others train the draft model.")] = 400,
    items: Annotated[int, typer.Option("--items", help="Items of the sample world.")] = 300,
    nodes: Annotated[int, typer.Option("--nodes", help="Maximum number of nodes per draft tree.")] = 32,
    depth: Annotated[int, typer.Option("--depth", help="Maximum depth of the draft tree.")] = 16,
    repeats: Annotated[int, typer.Option("--repeats", help="Times each method runs; medians.")] = 3,
    width: Annotated[int, typer.Option("--width", help="Hidden size of the draft model.")] = 256,
    layers: Annotated[int, typer.Option("--layers", help="Layers of the draft model.")] = 2,
    steps: Annotated[int, typer.Option("--steps", help="Training updates of the draft model.")] = 300,
    work: Annotated[Path | None, typer.Option(
        "--work", help="Folder that keeps the models for the next call; without it they are made "
                       "again.")] = None,
    data: Annotated[Path | None, typer.Option(
        "--data", help="Folder with knowledge/ml1m_users_llama3chatqa.jsonl.gz and ml-1m: samples the model "
                       "of bench decode, without noise, in place of the embedded one.")] = None,
    seed: Annotated[int, typer.Option(
        "--seed", help="Random seed of the samples.")] = 0,
    target: Target = "embedded",
    device: options.OnDevice = options.Device.auto,
    dtype: Precision = options.Dtype.float32,
    plot: Annotated[Path | None, typer.Option(
        "--plot", help="SVG file of acceptance over the number of candidates, before and after "
        "distillation.")] = None,
    quick: Annotated[bool, typer.Option(
        "--quick", help="Few rows and a tiny draft model: exercises the command, measures nothing of "
                        "interest.")] = False,
) -> None:
    """Sample by draft trees under each rule of verification, beside plain sampling, in one run.

    The target samples the sample world's texts; a draft model is made of the same tokenizer, before
    and after distillation on them. Acceptance is measured by level and number of candidates, the best tree
    under the node limit is searched, and each way of sampling is timed. The last line of standard output is
    one JSON object. Exit code 1 where temperature 1 is among those asked for, and its best tree misses a
    target (2 times fewer forwards, 1.8 times the speed where memory bounds steps, and on a GPU in
    wall-clock time);
    never with --quick.
    """
    from dare_job.bench.sampling import command, report
    from dare_job.bench.sampling.report import draw
    from dare_job.training.drafter.settings import Settings

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    chosen = _temperatures(temperatures)
    asked = command.Options(
        chosen, rows, tokens, users, items, nodes, depth, repeats,
        drafter=Settings(width=width, layers=layers, steps=steps), work=work, data=data, seed=seed,
        target=target, device=options.torch_device(device), dtype=dtype.value)
    if plot:
        options.writable("--plot", plot)
    result = command.run(command.quick(asked) if quick else asked)
    if plot:
        plot.write_text(draw(result["acceptance"]), encoding="utf-8")
    print(json.dumps(result), flush=True)
    if (missed := report.missed(result["targets"])) and not quick:
        print(f"dare-job: targets missed: {missed}", file=sys.stderr, flush=True)
        raise typer.Exit(1)


@app.command()
def beam(
    rows: Annotated[int, typer.Option("--rows", help="Users whose texts each way writes.")] = 32,
    tokens: Annotated[int, typer.Option("--tokens", help="Maximum number of new tokens per text.")] = 160,
    users: Annotated[int, typer.Option(
        "--users", help="Users of the sample world; the others train the draft model.")] = 400,
    items: Annotated[int, typer.Option("--items", help="Items of the sample world.")] = 300,
    temperature: Annotated[float, typer.Option(
        "--temperature", help="Of what is sampled; at 1 the embedded model leaves little to chance.")] = 1.75,
    layers: Annotated[int, typer.Option("--layers", help="Drafted layers of a step.")] = 4,
    draft_widths: Annotated[str, typer.Option("--draft-widths", help="W_S of DSBD.")] = "2,3,4,5,6",
    thresholds: Annotated[str, typer.Option("--thresholds", help="t of DSBD.")] = "0.7,0.9",
    min_widths: Annotated[str, typer.Option("--min-widths", help="W_min of DSBD, up to W_S.")] = "1,2,3",
    widths: Annotated[str, typer.Option("--widths", help="Of plain beams; the last is the target's.")]
    = "1,2,3,4",
    fixed: Annotated[bool, typer.Option(
        "--fixed", help="DSBD of the plain beams' widths, and so of their laws, in place of --thresholds and "
                        "--min-widths.")] = False,
    law: Annotated[str, typer.Option("--law", help="Of beams: iid or without_replacement.")] = "iid",
    draft_law: Annotated[str, typer.Option("--draft-law", help="Of drafts, the same.")] = "iid",
    bounds: Annotated[bool, typer.Option(
        "--bounds", help="Measure how many drafted layers any exact rule could pass, at most.")] = False,
    steps: Annotated[int, typer.Option("--steps", help="Updates of the draft model's training.")] = 300,
    taught_temperature: Annotated[float, typer.Option(
        "--taught-temperature", help="train-drafter's --temperature.")] = 1.0,
    taught_kept: Annotated[int, typer.Option("--taught-kept", help="train-drafter's --kept.")] = 16,
    work: Annotated[Path | None, typer.Option(
        "--work", help="Folder that keeps the models for the next call, such as bench sample's.")] = None,
    svg: Annotated[Path | None, typer.Option("--svg", help="File for quality over speed, as SVG.")] = None,
    target: Target = "embedded",
    device: options.OnDevice = options.Device.auto,
    dtype: Precision = options.Dtype.float32,
    seed: Annotated[int, typer.Option("--seed", help="Random seed of the samples.")] = 0,
    quick: Annotated[bool, typer.Option(
        "--quick", help="Few rows and a tiny draft model: tests the command; its measurements mean "
                        "nothing and no target is checked.")] = False,
) -> None:
    """Write by beams, by DSBD and by speculative sampling, in one run: quality against speed.

    The target writes texts of the sample world's users, drafted by a model distilled on its texts.
    Quality is the texts' log-likelihood and their share of true statements. The last line of standard output
    is one JSON object; the exit code is 1 where a target at equal quality is missed.
    """
    from dare_job.bench.beam import command as beam_command
    from dare_job.bench.beam.methods import Grid
    from dare_job.decode.settings import Beams, Warp
    from dare_job.training.drafter.settings import Settings

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    require_temperatures("--temperature", [temperature])
    base = Beams(layers=layers, warp=Warp(temperature), law=law, draft_law=draft_law, seed=seed)
    drafts, least, plain = (tuple(options.numbers(*given)) for given in (
        ("--draft-widths", draft_widths), ("--min-widths", min_widths), ("--widths", widths)))
    settings = Settings(steps=steps, temperature=taught_temperature, kept=taught_kept)
    grid = Grid(drafts, _floats("--thresholds", thresholds), least, plain, fixed)
    asked = beam_command.Options(base, grid, rows, tokens, users, items, settings, work, svg, bounds, target,
                            options.torch_device(device), dtype.value)
    if svg:
        options.writable("--svg", svg)
    result = beam_command.run(beam_command.quick(asked) if quick else asked)
    print(json.dumps(result), flush=True)
    if not quick and not all(one["met"] for one in result["targets"]):
        raise typer.Exit(1)


@app.command()
def recommend(
    target: Annotated[Path | None, typer.Option(
        "--target", help="A recommender's folder; without it a small shop with random weights is "
                         "served.")] = None,
    draft: Annotated[list[str] | None, typer.Option(
        "--draft", metavar="NAME=DIR", help="A draft model's folder and the name of its rows; "
                                            "repeatable.")] = None,
    data: Annotated[Path | None, typer.Option(
        "--data", help="Folder with sequential_train, _valid and _test.txt (.gz); else amazon-beauty-ids of "
        "DARE_DATA.")] = None,
    users: Annotated[int, typer.Option("--users", help="Test users, sampled by --seed.")] = 200,
    k: Annotated[str, typer.Option("--k", help="Numbers of recommendations per user.")] = "1,3,5,10,20",
    widths: Annotated[str, typer.Option("--widths", help="N beside 40, at K = 10.")] = "20,60",
    depths: Annotated[str, typer.Option("--depths", help="gamma beside all, at K = 10.")] = "1,2",
    temperatures: Annotated[str, typer.Option(
        "--temperatures", help="Of sampled lists, relaxed and exact.")] = "0.5,1",
    batch: Annotated[int, typer.Option("--batch", help="Users per batch.")] = 16,
    repeats: Annotated[int, typer.Option("--repeats", help="Times each runs; medians.")] = 1,
    generated: Annotated[int, typer.Option("--generated", help="Users of the runs of generate.")] = 12,
    threads: Annotated[int, typer.Option("--threads", help="torch threads while measuring.")] = 1,
    seed: Annotated[int, typer.Option("--seed", help="Random seed.")] = 0,
    device: options.OnDevice = options.Device.auto,
    quick: Annotated[bool, typer.Option(
        "--quick", help="Few users and settings: exercises the command.")] = False,
) -> None:
    """Top-K lists by drafted beam search: steps accepted, forwards saved, speed, Recall and NDCG.

    AtSpeed's tables 1 and 2 with given draft models, beside drafters without a model, strict, relaxed and
    exact; ablations, what forced tokens save, and generate as the peer. The last line of standard output is
    one JSON object. Exit code 1 where a target is missed.
    """
    from dare_job.bench.recommend import command as recommend_command
    from dare_job.bench.recommend import world

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    root = os.environ.get("DARE_DATA")
    folder = data or (Path(root) / recommend_command.BEAUTY if root and target else None)
    drafts = {}
    for one in draft or []:
        name, _, place = one.partition("=")
        if not name or not place:
            raise ConfigError(f"--draft {one!r}: write NAME=DIR, as in SFT=out/draft")
        drafts[name] = world.require(Path(place), "--draft")
    asked = recommend_command.Options(
        folder and world.require(folder, "--data"), target and world.require(target, "--target"), drafts,
        users, tuple(options.numbers("--k", k)), tuple(options.numbers("--widths", widths)),
        tuple(options.numbers("--depths", depths)), _temperatures(temperatures), batch, repeats, generated,
        threads, seed, options.torch_device(device))
    result = recommend_command.run(recommend_command.quick(asked) if quick else asked)
    print(json.dumps(result), flush=True)
    if not quick and not all(one["met"] for one in result["targets"]):
        raise typer.Exit(1)


def _temperatures(text: str) -> tuple[float, ...]:
    return _floats("--temperatures", text)


def _floats(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in options.words(text))
    except ValueError:
        raise ConfigError(f"{option} {text!r} is no list of numbers; write for example 0,1") from None
