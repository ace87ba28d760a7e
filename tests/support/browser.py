"""The installed Chromium, for tests of pages in a browser."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


def watched(page: Any, address: str) -> list[str]:
    """Return a list that fills with what a page at `address` should not do: foreign requests, errors, dialogs."""
    seen: list[str] = []
    own = (f"{address}/", "data:", "blob:")
    page.on("request", lambda each: each.url.startswith(own) or seen.append(each.url))
    page.on("console", lambda each: each.type in ("error", "warning") and seen.append(each.text))
    page.on("pageerror", lambda each: seen.append(str(each)))
    page.on("dialog", lambda each: (seen.append(f"dialog {each.message}"), each.dismiss()))
    return seen


@contextmanager
def opened_browser() -> Iterator[Any]:
    """Yield the browser, or skip the test and say what is missing."""
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed (Debian: chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield opened
        opened.close()
