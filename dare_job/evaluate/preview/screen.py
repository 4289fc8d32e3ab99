"""Shows a preview on a terminal (prompt and text side by side, or one above the other) and as a page."""

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from dare_job.data import titles
from dare_job.data.input.preview_rows import Row
from dare_job.decode.request import Result
from dare_job.evaluate.preview import results
from dare_job.observe.progress import counted
from dare_job.observe.redact import printable
from dare_job.publish.gate.findings import CHECKS
from dare_job.publish.gate.scan import MIN_FAILING_ROWS
from dare_job.publish.report.page import render_template

_SIDE_BY_SIDE = 100  # minimum columns of a terminal that shows prompt and text side by side


def _console() -> Console:
    return Console(highlight=False, markup=False)


def show_heading(variant) -> None:
    config = variant.job.config
    _console().print(Rule(Text(f"{config.model.name}, prompts {config.prompts.user} and "
                               f"{config.prompts.item}, mode {config.decode.mode}")))


def _title(row: Row, variant: str | None) -> str:
    return printable(f"{row.entity}:{row.entity_id}{f', {variant}' if variant else ''}")


def show_error(row: Row, error: str, variant: str | None) -> None:
    _console().print(Text(f"{_title(row, variant)}  no text: {printable(error)}", style="red"))


def show_text(row: Row, prompt: str, result: Result, text: str, limit: int, variant: str | None) -> None:
    """A row's prompt and text, and one line of facts."""
    console = _console()
    console.print(Text(_title(row, variant), style="bold"))
    left, right = Text(printable(prompt), style="dim"), Text(printable(result.error or text))
    if console.width >= _SIDE_BY_SIDE:
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(ratio=1)
        table.add_column(ratio=1)
        table.add_row(left, right)
        console.print(table)
    else:
        console.print(left, right, sep="\n")
    named = titles.named(text, row.titles, row.values)
    facts = [f"finish reason: {result.finish_reason}", f"{result.prompt_tokens} prompt tokens",
             f"{len(result.token_ids)} tokens"]
    if results.is_cut_off(result, limit):
        facts.append(f"decode.max_new_tokens = {limit} would cut it off")
    facts.append(f"names {', '.join(named)}" if named else "names no title or attribute of its row")
    console.print(Text(f"{', '.join(facts)}\n", style="italic"))


def show_summary(summary: dict) -> None:
    """Finish reasons, tokens, speed, gates and advice."""
    console = _console()
    for line in [*facts(summary), *results.advice(summary)]:
        console.print(Text(printable(line)), soft_wrap=True)


def facts(summary: dict) -> list[str]:
    """The summary of a variant in lines."""
    reasons = ", ".join(f"{count} {reason}" for reason, count in summary["finish_reasons"].items()) or "none"
    lines = [f"{counted(summary['texts'], 'text')}, {counted(summary['errors'], 'error')}; median "
             f"{number(summary['median_tokens'])} tokens; decode.max_new_tokens = "
             f"{summary['max_new_tokens']} would cut off {counted(summary['cut_off'], 'text')}",
             f"finish reasons (decoded up to {summary['decoded_up_to']} tokens): {reasons}",
             f"model loaded after {summary['loading_s']:.1f} s, first text after "
             f"{summary['first_text_s']:.1f} s",
             _speed_words(summary["speed"])]
    if summary["naming_share"] is not None:
        lines.append(f"{summary['naming_share']:.0%} of the texts name at least {results.FACTS} titles or "
                     f"attributes of their row, median {number(summary['named_median'])}; "
                     f"{counted(summary['distinct'], 'different text')}; {summary['own_share']:.0%} name "
                     "more of their own row than of any other row")
    failed = [gate_words(finding) for finding in summary["gates"]]
    lines += failed or ["no text fails a check of the quality gate"]
    lines += _publish_words(summary)
    return [*lines, "these shares are of few rows; the quality gate of a run checks all of its new texts"]


def _publish_words(summary: dict) -> list[str]:
    if summary["would_publish"] is None:
        return ["too few rows to tell whether a run would publish: a check fails only with at least "
                f"{MIN_FAILING_ROWS} failing rows of an entity type"]
    return [] if summary["would_publish"] else ["a run with these results would publish nothing"]


def _speed_words(speed: dict) -> str:
    plain, drafted = speed["without_drafts"], speed["with_drafts"]
    if plain is None:
        return "speed: not measured, because it needs at least two rows"
    words = f"{plain['tokens_per_s']} tokens/s without drafts"
    if drafted:
        words += (f", {drafted['tokens_per_s']} with drafts ({number(drafted['accepted_per_step'])} draft "
                  f"tokens accepted per step; {speed['equal_texts']} of {drafted['rows']} texts are equal)")
    words += f", for {counted(plain['rows'], 'row')} in this process"
    return f"{words}. Drafts: {speed['drafts']}" if drafted else words


def gate_words(finding: dict) -> str:
    """One failed check in words."""
    limit = "the check is off" if finding["limit"] is None else f"{finding['setting']} = {finding['limit']}"
    return (f"gate: {finding['rows']} of {finding['of']} {finding['entity']} {CHECKS[finding['check']][0]} "
            f"({finding['share']:.0%}), {limit}{': above the limit' if finding['over'] else ''}")


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"


def comparison(summaries: list[dict]) -> tuple[list[str], list[list[str]]]:
    """Names of columns, and one row for each variant."""
    columns = ["variant", "finish reasons", "median tokens", "cut off", "checks failed", "tokens/s",
               "with drafts", f"name at least {results.FACTS} titles or attributes"]
    lines = []
    for each in summaries:
        plain, drafted = each["speed"]["without_drafts"], each["speed"]["with_drafts"]
        share = each["naming_share"]
        lines.append([
            each["name"], ", ".join(f"{count} {reason}" for reason, count in each["finish_reasons"].items()),
            number(each["median_tokens"]), f"{each['cut_off']} of {each['texts']}",
            ", ".join(f"{gate['check']} {gate['rows']} of {gate['of']} {gate['entity']}s"
                      for gate in each["gates"]) or "none",
            number(plain and plain["tokens_per_s"]), number(drafted and drafted["tokens_per_s"]),
            "–" if share is None else f"{share:.0%}"])
    return columns, lines


def show_comparison(summaries: list[dict]) -> None:
    """A table with one row for each variant."""
    columns, lines = comparison(summaries)
    table = Table(*columns, box=None, pad_edge=False)
    for line in lines:
        table.add_row(*[Text(printable(cell)) for cell in line])
    _console().print(table)


def page(result: dict) -> str:
    """The preview as one self-contained HTML page, in the style of the report.

    The template engine escapes all prompts, texts and ids.
    """
    columns, lines = comparison([preview["summary"] for preview in result["variants"]])
    variants = [preview | {"facts": facts(preview["summary"])} for preview in result["variants"]]
    rows = list(zip(*[preview["rows"] for preview in result["variants"]], strict=True))
    return render_template("preview.html", date=result["date"], variants=variants, rows=rows,
                           columns=columns, lines=lines)
