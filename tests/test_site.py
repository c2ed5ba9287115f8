"""The site, opened as files: it can be searched, and nothing is fetched from elsewhere."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("material", reason="needs the extra docs")

from mkdocs.commands.build import build
from mkdocs.config import load_config
from support.browser import Browser, needs_browser, opened, until

ROOT = Path(__file__).parents[1]
PAGES = ("index.md", "batches.md", "notes/index.md")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Built from ``mkdocs.yml`` with a few pages only."""
    folder = tmp_path_factory.mktemp("site")
    for page in (*PAGES, "site.css", "iframe-worker.js"):
        (folder / "docs" / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "docs" / page, folder / "docs" / page)
    given: Any = {"docs_dir": str(folder / "docs"), "site_dir": str(folder / "site")}
    config = load_config(str(ROOT / "mkdocs.yml"), nav=None, **given)
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    return folder / "site"


def test_a_page_names_no_script_and_no_style_of_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) == len(PAGES) + 1, "one for what is not found"
    for page in pages:
        text = page.read_text()
        loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=\"?([^\"\s>]+)", text)
        assert len(loaded) > 3
        assert [each for each in loaded if "//" in each] == []
    assert (site / "search" / "search_index.js").read_text().startswith("var __index = {")


FOUND = """
return [...document.querySelectorAll('.md-search-result__link')].map((link) => link.href)
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    with opened(tmp_path_factory.mktemp("profile")) as session:
        yield session


@needs_browser
@pytest.mark.parametrize("page", ["index.html", "notes/index.html"])
def test_a_page_that_is_opened_as_a_file_can_be_searched(page, site, browser):
    browser.ask("POST", "/url", {"url": "about:blank"})
    browser.asked()
    browser.ask("POST", "/url", {"url": (site / page).as_uri()})
    browser.click("label.md-header__button[for=__search]")
    browser.type(".md-search__input", "check_padding")
    links = until(lambda: browser.run(FOUND))
    assert all(link.startswith((site / "padding.html").as_uri()) for link in links)
    read = {url for url in browser.asked() if not url.startswith(("data:", "chrome:"))}
    assert (site / "search" / "search_index.js").as_uri() in read
    assert {url for url in read if not url.startswith(site.as_uri())} <= {"about:srcdoc"}
