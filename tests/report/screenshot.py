"""Takes the README's picture: `python tests/report/screenshot.py OUT/reports/dt=D/index.html FILE.png`."""

import sys
from pathlib import Path

from browser import running


def take(page: Path, picture: Path) -> None:
    """The first screen of a report on a laptop."""
    with running() as browser:
        tab = browser.new_page(viewport={"width": 1280, "height": 800})
        tab.goto(page.resolve().as_uri())
        picture.parent.mkdir(parents=True, exist_ok=True)
        tab.screenshot(path=picture)


if __name__ == "__main__":
    take(Path(sys.argv[1]), Path(sys.argv[2]))
