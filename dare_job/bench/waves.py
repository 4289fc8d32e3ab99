"""Forward passes that waves save on a first date and on the date after a new prompt.

The sample world without its previous texts. Each setting of the waves generates all rows after the same
earlier stages. The second date has another prompt set, so that every row is generated again and all previous
texts come from the former prompt. Verification is strict: the texts are the same and the number of forward
passes does not depend on the machine. The last line is JSON.
"""

import shutil
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from dare_job import pipeline
from dare_job.bench import reports
from dare_job.bench.options import command
from dare_job.config.options import option
from dare_job.config.settings import load
from dare_job.data.sample_world.write import write_world
from dare_job.job import Job
from dare_job.workspace import Workspace

FIRST, AFTER = date(2026, 1, 2), date(2026, 1, 3)
BEFORE = pipeline.STAGES[:pipeline.STAGES.index("generate")]
AFTERWARDS = pipeline.STAGES[pipeline.STAGES.index("generate") + 1:]
NEW_PROMPT = """\
name: without-attributes
max_history: 8
user: |
  Describe the film taste of this viewer by mood, theme and recent habits.
  Last {{ history | length }} titles, newest first:
  {% for entry in history | reverse %}{{ loop.index }}. {{ entry.title }}
  {% endfor %}Profile:
item: |
  Describe this film by mood, theme and audience.
  Title: {{ title }}
  Description:
"""


@dataclass(frozen=True)
class Options:
    """Options of ``bench waves``."""

    users: int = option("Users of the sample world.", 400)
    items: int = option("Items of the sample world.", 300)
    sizes: str = option("waves.sizes to compare, a space between them.", "50 50,500 25,100,400")
    first_only: bool = option("Leave out the night after a new prompt.", False)
    work: Path | None = option("Folder to work in; else a temporary one.", None)


@command(Options)
def main(options: Options) -> dict:
    """Count the model's forwards with and without waves."""
    with TemporaryDirectory() as temporary:
        folder = options.work or Path(temporary)
        write_world(folder / "sample", users=options.users, items=options.items, date=FIRST)
        shutil.rmtree(folder / "sample" / "knowledge")
        (folder / "prompt.yaml").write_text(NEW_PROMPT)
        ways = {"never": ["waves.when=never"],
                **{f"[{size}]": [f"waves.sizes=[{size}]"] for size in options.sizes.split()}}
        lines = _night(folder, FIRST, "first night", ways, [])
        if not options.first_only:
            prompt = [f"prompts.{entity}={folder / 'prompt.yaml'}" for entity in ("user", "item")]
            lines += _night(folder, AFTER, "new prompt", ways, prompt)
    console = Console(width=160)
    console.print(reports.table(lines))
    console.print(f"{options.users} users and {options.items} items of the sample world, without its old "
                  "text; tokens_per_s: of one worker; accepted: the model's own token not counted")
    return {"users": options.users, "items": options.items, "rows": lines}


def _night(folder: Path, night: date, name: str, ways: dict[str, list[str]], more: list[str]) -> list[dict]:
    """One night by each way, on the same stages before; published by the last, for the night after."""
    out = folder / "out"
    for stage in BEFORE:
        pipeline.run_stage(_job(folder, out, night, more), stage)
    lines = []
    for way, settings in ways.items():
        copy = shutil.copytree(out, folder / "copies" / f"{night}-{way}")
        job = _job(folder, copy, night, [*more, *settings])
        lines.append({"night": name, "waves": way, **_sums(pipeline.run_stage(job, "generate"))})
        lines[-1]["ratio_to_never"] = round(lines[0]["target_steps"] / lines[-1]["target_steps"], 3)
    for stage in AFTERWARDS:
        pipeline.run_stage(job, stage)
    shutil.copytree(copy / "knowledge", out / "knowledge", dirs_exist_ok=True)
    return lines


def _job(folder: Path, out: Path, night: date, settings: list[str]) -> Job:
    conf = Path(__file__).parents[2] / "conf" / "demo.yaml"
    config = load(conf, [f"input.path={folder / 'sample'}", f"out={out}", "baseline.rows=0", *settings])
    return Job(config, Workspace(out, night), "bench")


def _sums(report: dict) -> dict:
    """Steps of the night, and rows and acceptance of each wave, both entity types together."""
    waves = []
    for parts in zip(*report["waves"].values(), strict=True):
        steps, accepted = (sum(part[name] for part in parts) for name in ("target_steps", "accepted_tokens"))
        waves.append([sum(part["rows"] for part in parts), round(accepted / max(1, steps), 2)])
    return {"rows": report["rows"], "errors": report["errors"], "tokens": report["tokens"],
            "target_steps": report["target_steps"],
            "accepted_per_step": round(report["accepted_per_step"], 3),
            "tokens_per_s": round(report["tokens_per_s"], 1), "rows_and_accepted_of_waves": waves}
