"""The site of the documentation: built strictly, complete without a network, and ten questions find their page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import bm25s
import pytest
import yaml

from scripts_loader import load_script

ROOT = Path(__file__).parents[1]
MAX_RANK = 3
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
@pytest.mark.timeout(180)
def test_ten_questions_find_their_page_in_one_search(site: Path) -> None:
    sections = json.loads((site / "search.json").read_text())["items"]
    pages: dict[str, str] = {}
    for section in sections:
        page = section["location"].partition("#")[0]
        words = re.sub(r"<[^>]+>", " ", f"{(section['title'] + ' ') * 3} {section['text']}")
        pages[page] = f"{pages.get(page, '')} {words}"
    names = list(pages)
    index = bm25s.BM25()
    index.index(bm25s.tokenize(list(pages.values()), show_progress=False), show_progress=False)
    missed = {}
    for question, page in QUESTIONS.items():
        tokens = bm25s.tokenize(question, show_progress=False)
        rows, _ = index.retrieve(tokens, k=MAX_RANK, show_progress=False)
        first = [names[row] for row in rows[0]]
        if page not in first:
            missed[question] = first
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
