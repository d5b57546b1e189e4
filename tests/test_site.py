"""The site of the documentation: built strictly, complete without a network, and ten questions find their page."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from scripts_loader import load_script

ROOT = Path(__file__).parents[1]
MAX_RANK = 3
WAIT_MS, MAX_WAITS = 250, 40
# The search lives in a shadow root, which is the only one with links.
FIND_RESULTS = """() => [...document.querySelectorAll("*")].filter(one => one.shadowRoot)
    .flatMap(one => [...one.shadowRoot.querySelectorAll("a[href]")]).map(link => link.href)"""
QUESTIONS = {
    "use it with Claude Code": "use/clients.html",
    "OpenAI Agents SDK": "use/frameworks.html",
    "serve a team": "use/team.html",
    "back up the home": "use/deployment.html",
    "delete a tool": "use/sources.html",
    "what is logged": "use/logging.html",
    "use my own embedding model": "use/embedding-models.html",
    "how big can it get": "use/how-big.html",
    "how does it compare": "use/compare.html",
    "list of settings": "reference/settings.html",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    line = [sys.executable, str(ROOT / "scripts" / "docs"), str(folder)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.timeout(240)
def test_ten_questions_find_their_page_in_one_search(site: Path) -> None:
    from playwright.sync_api import sync_playwright

    missed = {}
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = chromium.new_page()
        page.goto((site / "index.html").as_uri())
        page.click(".md-search__button")
        for question, wanted in QUESTIONS.items():
            page.keyboard.press("Control+A")
            page.keyboard.insert_text(question)
            first: list[str] = []
            for _ in range(MAX_WAITS):
                page.wait_for_timeout(WAIT_MS)
                first = list(dict.fromkeys(link.partition("#")[0] for link in page.evaluate(FIND_RESULTS)))[:MAX_RANK]
                if any(link.partition("?")[0].endswith(wanted) for link in first):
                    break
            else:
                missed[question] = first
        chromium.close()
    assert missed == {}


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_site_needs_no_other_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        outside = re.findall(r'<(?:script|img|link)[^>]+(?:src|href)="(https?://[^"]+)"', page.read_text())
        assert outside == [], page
    api = (site / "reference" / "python.html").read_text()
    assert 'id="toolscout.Scout.search"' in api and "Find" in api


def test_every_page_stands_in_the_menu_once() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    named = re.findall(r"([\w/.-]+\.md)$", text, re.M)
    assert yaml.safe_load(text)["plugins"][:2] == ["search", "offline"]
    docs = ROOT / "docs"
    assert sorted(named) == sorted(page.relative_to(docs).as_posix() for page in docs.rglob("*.md"))


def test_links_that_leave_the_documentation_become_names(tmp_path: Path) -> None:
    script = load_script("scripts/docs")
    docs = tmp_path / "docs"
    (docs / "methods").mkdir(parents=True)
    page = docs / "README.md"
    for text, expected in {
        "[diary](../benchmarks/LAB.md)": "diary (`benchmarks/LAB.md`)",
        "[methods](methods)": "[methods](methods/README.md)",
        "[deploy/nginx.conf](../deploy/nginx.conf)": "deploy/nginx.conf",
        "[a](use/a.md#b)": "[a](use/a.md#b)",
        "[web](https://example.org/a)": "[web](https://example.org/a)",
    }.items():
        assert script.rewrite_links(text, page, docs) == expected
