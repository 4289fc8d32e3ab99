"""The preview as one self-contained HTML page, in the style of the report."""

from dare_job.evaluate.preview import screen
from dare_job.publish.report.page import render_template


def render(result: dict) -> str:
    """The page of a preview's result. The template engine escapes all prompts, texts and ids."""
    columns, lines = screen.comparison([preview["summary"] for preview in result["variants"]])
    variants = [preview | {"facts": screen.facts(preview["summary"])} for preview in result["variants"]]
    return render_template("preview.html", date=result["date"], variants=variants, columns=columns,
                           lines=lines)
