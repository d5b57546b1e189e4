"""The site of the documentation: built strictly, complete without a network, and ten questions find their answer."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest
import yaml

from scripts_loader import load_script

ROOT = Path(__file__).parents[1]
MAX_RANK = 3
MAX_WORDS = 250  # from the place that a search leads to until the answer: a minute of reading
WAIT_MS, MAX_WAITS = 250, 40
# The search lives in a shadow root, which is the only one with links.
FIND_RESULTS = """() => [...document.querySelectorAll("*")].filter(one => one.shadowRoot)
    .flatMap(one => [...one.shadowRoot.querySelectorAll("a[href]")]).map(link => link.href)"""
READ_FROM = """(anchor) => {
    const article = document.querySelector("article"), range = document.createRange();
    range.selectNodeContents(article);
    if (anchor) range.setStartBefore(document.getElementById(anchor));
    return range.toString();
}"""
#: Page → how two people ask for it, and words of the answer.
QUESTIONS = {
    "use/clients.html": ("Claude Code?", "use it with Claude Code", "claude mcp list"),
    "use/frameworks.html": ("Agents SDK?", "OpenAI Agents SDK", "MCPServerStdio"),
    "use/team.html": ("team?", "serve a team", "toolscout gateway --http"),
    "use/backup.html": ("backup?", "back up the home", ".backup(sqlite3.connect("),
    "use/sources.html": ("delete a tool?", "delete tool", "toolscout hide"),
    "use/logging.html": ("what is logged?", "What is logged", "ids of the tools shown"),
    "use/embedding-models.html": ("own embedding model?", "use my own embedding model", "--encoder minilm"),
    "use/how-big.html": ("how big?", "how big can it get", "tens of thousands on one machine"),
    "use/compare.html": ("compare?", "how does it compare", "toolscout selftest"),
    "reference/settings.html": ("settings?", "list of settings", "toolscout settings"),
}
#: How people ask, in whole sentences and other words than the pages' → the page that answers.
SENTENCES = {
    "can my team share it": "use/team.html",
    "how do I back up my data": "use/backup.html",
    "how do I remove a tool": "use/sources.html",
    "stop logging my queries": "use/logging.html",
    "how many tools can it handle": "use/how-big.html",
    "is it better than bm25": "use/compare.html",
    "where do I change a setting": "reference/settings.html",
    "why is my tool not found": "use/why.html",
    "does it send my data anywhere?": "use/logging.html",
    "How do I upgrade": "use/upgrade.html",
    "does it work offline": "use/quickstart.html",
    "how do I hide a tool from some users": "use/security.html",
    "does it need a GPU?": "use/quickstart.html",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    line = [sys.executable, str(ROOT / "scripts" / "docs"), str(folder)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def search_site(page: Any, question: str, wanted: str) -> str | None:
    """Ask a question. Returns the first link to the wanted page, if this is among the first pages."""
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(question)
    for _ in range(MAX_WAITS):
        page.wait_for_timeout(WAIT_MS)
        links = [link for link in page.evaluate(FIND_RESULTS) if f"h={quote_plus(question)}" in link]
        first = list(dict.fromkeys(link.partition("?")[0] for link in links))[:MAX_RANK]
        if any(link.endswith(wanted) for link in first):
            return next(link for link in links if link.partition("?")[0].endswith(wanted))
    return None


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.timeout(240)
def test_ten_questions_are_answered_by_one_search_and_a_minute_of_reading(site: Path) -> None:
    from playwright.sync_api import sync_playwright

    missed = {}
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page, reader = chromium.new_page(), chromium.new_page()
        page.goto((site / "index.html").as_uri())
        page.click(".md-search__button")
        for wanted, (*questions, answer) in QUESTIONS.items():
            for question in questions:
                link = search_site(page, question, wanted)
                if link is None:
                    missed[question] = "another page"
                    continue
                reader.goto((site / wanted).as_uri())
                text = reader.evaluate(READ_FROM, link.partition("#")[2])
                if answer not in text or len(text.partition(answer)[0].split()) > MAX_WORDS:
                    missed[question] = f"{answer!r} is not among the first words of {link}"
        missed |= {text: "not found" for text, wanted in SENTENCES.items() if search_site(page, text, wanted) is None}
        chromium.close()
    assert len(QUESTIONS) == 10 and missed == {}


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
    plugins = yaml.safe_load(text)["plugins"]
    assert "search" in plugins[0] and plugins[1] == "offline"
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


def test_a_build_without_zensical_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_script("scripts/docs")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"Run  pip install '\.\[docs\]'"):
        script.find_python(tmp_path)
    local = tmp_path / ".venv" / "bin" / "python"
    local.parent.mkdir(parents=True)
    local.symlink_to(shutil.which("true") or "/bin/true")
    assert script.find_python(tmp_path) == str(local)
