"""``dare-job preview``: generates the texts of a few rows in this process, without a run.

    variants.py  previews each variant (model or prompt set), one after the other
    decode.py    generates the texts, with and without drafts
    drafts.py    makes the pools that drafts come from
    results.py   failed checks of the quality gate, titles named, proposed decode.max_new_tokens
    screen.py    the preview on a terminal, and as an HTML page
"""

from dataclasses import dataclass
from pathlib import Path

from dare_job.config.options import option, words


@dataclass(frozen=True)
class PreviewOptions:
    """Options of ``dare-job preview``, except for those that choose the settings and the input."""

    limit: int = option("Number of users, and of items, in random order by a hash of their ids.", 10, min=1,
                        metavar="N")
    ids: tuple[str, ...] = option("Preview these rows instead, as in user:12,item:7.", (), parse=words,
                                  metavar="NAMES")
    models: tuple[str, ...] = option("Compare these models on the same rows, one after the other.", (),
                                     parse=words, metavar="A,B")
    prompts: tuple[str, ...] = option("Compare these prompt sets on the same rows.", (), parse=words,
                                      metavar="A,B")
    page: Path | None = option("Also write the preview to this HTML file.", None, metavar="FILE")
