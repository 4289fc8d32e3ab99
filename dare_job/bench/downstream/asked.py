"""A published date's prompts in place of its texts: ``python -m dare_job.bench.downstream.asked``.

    --out OUT --into DIR [--date D]

What ``dare-job ctr --knowledge prompt=DIR`` reads: the same ids, each with what the model was asked. The
encoder reads titles and genres in it too, so the AUC of this set is what a text has to be held against to
know whether the model's words, and not the prompt's, are worth something.
"""

from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from dare_job.bench.downstream import published
from dare_job.bench.downstream.published import Text
from dare_job.errors import DataError
from dare_job.schemas import ENTITIES
from dare_job.workspace import Workspace, committing, digest, is_done


def main(
    out: Annotated[Path, typer.Option(help="Output of the run whose prompts are taken.")],
    into: Annotated[Path, typer.Option(help="Folder for the set.")],
    date_: Annotated[str | None, typer.Option("--date", help="The newest where not given.")] = None,
) -> None:
    """Write the set; prints its folder. One that is there already is not written again."""
    dt = date_ or Workspace(out, date.min).newest()
    if dt is None:
        raise DataError(f"--out {out}: no published date in it")
    found = [published.read(Workspace(out, date.fromisoformat(dt)), entity) for entity in ENTITIES]
    fingerprint = digest(["prompts", [table.manifest["fingerprint"] for table in found]])
    if not is_done(into, fingerprint):
        with committing(into, fingerprint, {}) as staging:
            for table in found:
                texts = {name: Text(prompt, [], "eos") for name, prompt in table.prompts.items()}
                published.write(table, texts, {"prompts": True}, staging)
    print(into, flush=True)


if __name__ == "__main__":
    typer.run(main)
