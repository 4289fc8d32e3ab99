"""MovieLens titles in their natural order: "Matrix, The (1999)" becomes "The Matrix (1999)".

MovieLens moves a leading article to the end, in the title and in the titles in parentheses after it: "City of
Lost Children, The (Cité des enfants perdus, La) (1995)". A prompt needs the name that a model knows.
"""

import re

_ARTICLES = ("The|A|An|La|Le|Les|Un|Une|Il|Lo|I|Gli|Una|Uno|El|Los|Las|O|Os|Der|Die|Das|Ein|Eine|Het|De|Den|"
             "Det|En|Ett|Da")
# Each title begins at the start or after a parenthesis and ends at a parenthesis, a colon or the end.
_INVERTED = r"(^|\()(a\.k\.a\. +|)([^()]+?), +({articles})(?= *([():]|$))"
REWRITES = ((_INVERTED.format(articles=_ARTICLES), r"\1\2\4 \3"),  # patterns of both Python and Java
            (_INVERTED.format(articles="L'"), r"\1\2\4\3"))


def natural_order(title: str) -> str:
    """The title with each article before its noun. Titles without an inverted article stay as they are."""
    for pattern, replacement in REWRITES:
        title = re.sub(pattern, replacement, title)
    return title
