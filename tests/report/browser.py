"""A headless Chromium for the tests, whichever the machine has; `conf/browser.sh` puts one into .venv."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str:
    """Path of a browser; a test without one fails."""
    named = os.environ.get("DARE_BROWSER")
    pinned = Path(sys.prefix) / "browser" / "chromium"
    found = named or (str(pinned) if pinned.exists() else next(filter(None, map(shutil.which, NAMES)), None))
    if not found or not shutil.which(found):
        pytest.fail(f"no browser ({found or 'none of ' + ', '.join(NAMES)}): the report is tested in one. "
                    f"Run `sh conf/browser.sh {pinned.parent}`, install Chromium or Chrome, or set "
                    "DARE_BROWSER", pytrace=False)
    return found


@contextmanager
def running() -> Iterator:
    """A playwright browser."""
    from playwright.sync_api import sync_playwright

    path = find()
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=sandbox)
        try:
            yield browser
        finally:
            browser.close()
