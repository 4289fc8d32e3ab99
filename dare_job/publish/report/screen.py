"""What ``dare-job run`` prints at its end: the result, what to open next, what failed, then how it went."""

import shlex

import pyarrow.compute as pc
from rich.console import Console

from dare_job.observe.progress import counted, duration
from dare_job.publish.gate import findings
from dare_job.publish.loss import limits
from dare_job.publish.report import cost, show_text
from dare_job.publish.report.nights import Night
from dare_job.refresh import words
from dare_job.schemas import ENTITIES
from dare_job.tables import published
from dare_job.workspace import Workspace, report_page

_IMBALANCE, _IDLE_S = 1.2, 60.0  # an imbalance of the workers that is worth a line
_REASONS = {"empty history": "no interactions to put into a prompt", "empty title": "no title"}
_NAMED = 3  # reasons of failures that are named
_NOISE = 1.25  # two measurements of the same speed can differ by this ratio


def show(space: Workspace, manifests: dict, summary: dict, console: Console | None = None) -> None:
    """Print the screen of a published date.

    Parameters
    ----------
    manifests
        Of both entity types.
    summary
        The run's JSON object.
    """
    console = console or Console(highlight=False)
    row = _example(space)
    console.print()
    for line in _result(space, manifests, summary) + _next_steps(space, row):
        console.print(line, markup=False, soft_wrap=True)
    if failed := failures(space, manifests):
        console.print(f"\nNot generated: {failed}", markup=False, soft_wrap=True)
    console.print()
    for line in _details(manifests, summary) + _cost(Night(space.dt, manifests)):
        console.print(line, markup=False, soft_wrap=True)
    if row:
        console.print("\nOne of these texts:")
        show_text.print_row(space.out, "user", row, space.dt, console)


def _result(space: Workspace, manifests: dict, summary: dict) -> list[str]:
    done = f"{summary['written']:,} texts generated for {space.dt}"
    rate, baseline = summary["tokens_per_s"], summary["baseline_tokens_per_s"]
    if rate and baseline:
        done += f", {_speed_up(rate / baseline)} autoregressive decoding"
    lines = [done]
    for entity in ENTITIES:
        counts = manifests[entity]["counts"]
        parts = [f"{counts['rows']:,} rows", f"{counts['written']:,} generated",
                 f"{counts['carried']:,} carried over" if counts["carried"] else "",
                 f"{counts['copied']:,} with the text of an identical prompt" if counts.get("copied") else "",
                 f"{counts['without_text']:,} without text" if counts.get("without_text") else ""]
        lines.append(f"  {entity}s  {', '.join(filter(None, parts))}: {space.knowledge(entity)}")
    records = [manifests[entity].get("refresh") or {} for entity in ENTITIES]
    if waiting := words.carried([record.get("carried", {}) for record in records]):
        lines.append(f"  {waiting}")
    return lines


def _speed_up(ratio: float) -> str:
    if 1 / _NOISE < ratio < _NOISE:
        return "about as fast as"
    return f"{ratio:.1f} times as fast as"


def _next_steps(space: Workspace, row: dict | None) -> list[str]:
    page = report_page(space.out, space.dt)
    lines = [f"  Report      {page}"] if page.exists() else []
    if row:
        words = shlex.join([str(space.out), f"user:{row['entity_id']}"])
        lines.append(f"  One text    dare-job show {words}")
    return ["\nNext:", *lines, f"  All dates   dare-job history --out {shlex.quote(str(space.out))}"]


def failures(space: Workspace, manifests: dict) -> str:
    """Rows without text by reason, such as "2 users have no interactions ..."; empty if there are none."""
    lines = []
    for entity in ENTITIES:
        if not manifests[entity]["counts"]["errors"]:
            continue
        errors = published.dataset(space.knowledge(entity)).to_table(
            columns=["error"], filter=pc.field("error").is_valid())["error"]
        counts = sorted(pc.value_counts(errors).to_pylist(), key=lambda entry: -entry["counts"])
        lines += [_failure(entity, entry["values"], entry["counts"]) for entry in counts[:_NAMED]]
        if rest := sum(entry["counts"] for entry in counts[_NAMED:]):
            lines.append(f"{rest} {entity}s for other reasons (column error)")
    if before := sum(manifests[entity]["counts"].get("errors_before", 0) for entity in ENTITIES):
        lines.append(f"{counted(before, 'row')} not tried again, because the reason is the same as before")
    return "; ".join(lines)


def _failure(entity: str, error: str, count: int) -> str:
    subject = counted(count, entity)
    known = next((words for start, words in _REASONS.items() if error.startswith(start)), None)
    return f"{subject} {'has' if count == 1 else 'have'} {known}" if known else f"{subject}: {error}"


def _details(manifests: dict, summary: dict) -> list[str]:
    lines = []
    rate, baseline = summary["tokens_per_s"], summary["baseline_tokens_per_s"]
    if rate:
        lines.append(f"Speed: {rate:.0f} tokens/s per worker" + (
            f"; autoregressive decoding {baseline:.0f} tokens/s, measured in this run with "
            f"{cost.baseline_method(manifests['user']['baseline'])}" if baseline else ""))
    steps = []
    if summary["accepted_per_step"] is not None:
        steps.append(f"{summary['accepted_per_step']:.2f} draft tokens accepted per decoding step")
    if summary["busy_slots"] is not None:
        steps.append(f"{summary['busy_slots']:.0%} batch utilization")
    tokens = sum(manifests[entity]["totals"]["tokens"] for entity in ENTITIES)
    if summary["scored_tokens"]:
        steps.append(f"{summary['scored_tokens'] / tokens:.0%} of the tokens reused from previous texts")
    lines += [f"Drafts: {', '.join(steps)}"] if steps else []
    if summary["relaxed_tokens"] or summary["guarded_rows"]:
        lines.append(f"Relaxed verification: {summary['relaxed_tokens'] / tokens:.2%} of the tokens are not "
                     f"the model's top-1 token; {summary['guarded_rows']} rows reached their length limit")
    if loss := summary.get("loss"):
        lines.append(f"Loss against strict verification: {limits.summary(loss)}")
    if summary["choice"]:
        lines.append(f"Verification for {summary['choice']['target']}: {summary['choice']['why']}")
    lines.append(f"Quality gate passed: {gate_words(summary['gates'])}")
    return lines + [line for line in [uneven(manifests["user"].get("workers"))] if line]


def _cost(night: Night) -> list[str]:
    money = cost.of(night)
    return [cost.words(money)] if money else []


_NO_FAULT = ("shared",)  # has no limit by default: texts of fixed phrases share long spans


def gate_words(worst: dict[str, float | None]) -> str:
    """The checks that found something, and the length ratio if lengths were compared."""
    shares = [f"{check.replace('_', ' ')} {value:.2%}" for check, value in worst.items()
              if value and check not in (*findings.OF_LENGTHS, *_NO_FAULT)]
    ratio = worst["length_ratio"]
    lengths = [f"texts {ratio:.2f} times as long as the previous ones"] if ratio else []
    return ", ".join(shares + lengths) or "no check found a bad text"


def uneven(workers: dict | None) -> str | None:
    """A line about workers that waited for the slowest one, if that took long; None for old manifests."""
    if not workers or (workers.get("imbalance") or 1) <= _IMBALANCE or workers["waited_s"] < _IDLE_S:
        return None
    return (f"Uneven work: the busiest of {workers['workers']} workers decoded {workers['imbalance']:.2f} "
            f"times as long as the average, and the others waited {duration(workers['waited_s'])} in total; "
            "raise spark.shards for smaller shards")


def _example(space: Workspace) -> dict | None:
    """The user text of median acceptance, among the first thousand that were generated on this date."""
    decoded_now = (pc.field("generated_dt") == space.dt) & (pc.field("target_steps") > 0)
    rows = published.dataset(space.knowledge("user")).head(
        1000, filter=decoded_now, batch_size=10_000, batch_readahead=1, fragment_readahead=1).to_pylist()
    rows.sort(key=lambda row: row["accepted_tokens"] / row["target_steps"])
    return rows[len(rows) // 2] if rows else None
