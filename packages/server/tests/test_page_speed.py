"""Every step of a person on the page over 14,000 tools takes at most 150 ms, from the key or click to what is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from server.tests.program import Program
from toolscout.home.catalogue.store import Origin
from toolscout.scout import Scout
from toolscout.types import Tool

pytestmark = [
    *(pytest.mark.browser, pytest.mark.net, pytest.mark.slow, pytest.mark.full),
    pytest.mark.timeout(900),
]
MANY = 14_000
GROUPS = 97
MAX_STEP_MS = 150
ROUNDS = 3  # of which the median counts, since the machine does other things too

# step → (where it begins, what is there by then, what a person does, what is drawn at the end)
STEPS = {
    "open home": ("models", "$('#serving')", "go('home')", "$('#next li') && $('#state .tile')"),
    "type a query": (
        "search",
        "$('#query')",
        "type('#query', 'does task 1234')",
        "first('ol.hits .name', 'tool_1234')",
    ),
    "press Enter": (
        "search?q=does+task+77",
        "$('.hit')",
        "$('#query').value = 'does task 4321'; $('form').requestSubmit()",
        "first('ol.hits .name', 'tool_4321')",
    ),
    "ask why": (
        "search?q=does+task+77",
        "$('.hit')",
        "$('.hit:nth-child(2) .acts button:last-child').click()",
        "$('#why-where')",
    ),
    "filter": ("catalogue", "$('#tools button')", "type('#filter', 'task 13999')", "first('#count', '1 tool')"),
    "choose a parent": (
        "catalogue",
        "$('#facet-parent option:nth-child(9)')",
        "choose('#facet-parent', 5)",
        "first('#count', '145 tools')",
    ),
    "open a tool": ("catalogue", "$('#tools button')", "$('#tools button').click()", "$('#tool-name')"),
    "scroll": ("catalogue", "$('#tools button')", "$('#tools').scrollTop = 400000", "drawn(400000)"),
    "find in the palette": (
        "models",
        "$('#serving')",
        "$('#palette-open').click(); type('#palette-field', 'tool_4321')",
        "$('#palette-options')?.textContent.includes('many/tool_4321')",
    ),
    "open the journal": ("models", "$('#serving')", "go('journal')", "$('#events tbody tr') && $('#counts')"),
    "open sources": ("models", "$('#serving')", "go('sources')", "$('#sources-title')"),
    "open models": ("search", "$('#query')", "go('models')", "$('#serving')"),
    "open quality": ("models", "$('#serving')", "go('quality')", "$('#drift-state') && $('.trend p')"),
}
HELPERS = """
    const $ = (selector) => document.querySelector(selector);
    const go = (view) => { location.hash = `#/${view}`; };
    const type = (selector, text) => { $(selector).value = text; $(selector).dispatchEvent(new Event("input")); };
    const choose = (selector, at) => {
        $(selector).selectedIndex = at;
        $(selector).dispatchEvent(new Event("change"));
    };
    const first = (selector, text) => $(selector)?.textContent === text;
    const drawn = (top) => [...document.querySelectorAll("#tools .virtual > div")]
        .some((row) => parseInt(row.style.top) >= top);
    const until = async (ready) => {
        const end = performance.now() + 30000;
        while (!ready()) {
            if (performance.now() > end) throw new Error(`never drawn: ${ready}`);
            await new Promise(requestAnimationFrame);
        }
    };
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    home = tmp_path_factory.mktemp("speed") / "home"
    tools = [
        Tool(
            id=f"many/tool_{number}",
            name=f"tool_{number}",
            description=f"Does task {number} of {number % GROUPS}.",
            path=("many", f"group {number % GROUPS}"),
        )
        for number in range(MANY)
    ]
    with Scout(home) as scout:
        scout.store.put_source(Origin("toy:many", "objects"), "many", kind="objects", tools=tools)
        scout.embed()
        for number in range(300):
            scout.search(f"does task {number}")
    running = Program(home)
    yield running
    running.process.kill()
    running.process.communicate()


def measure(page: Any, place: str, step: tuple[str, str, str, str]) -> float:
    """Milliseconds from what a person does until the page has drawn it."""
    start, there, act, ready = step
    page.goto("about:blank")
    page.goto(f"{place}#/{start}")
    return float(
        page.evaluate(f"""async () => {{ {HELPERS}
            await until(() => {there});
            await new Promise((done) => setTimeout(done, 300));
            const started = performance.now();
            {act};
            await until(() => {ready});
            return performance.now() - started;
        }}""")
    )


def test_every_step_over_many_tools_is_drawn_at_once(chromium: str, many: Program) -> None:
    from playwright.sync_api import sync_playwright

    took: dict[str, list[float]] = {name: [] for name in STEPS}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        for _ in range(ROUNDS):
            for name, step in STEPS.items():
                took[name].append(measure(page, f"http://127.0.0.1:{many.port}/", step))
        browser.close()
    middle = {name: sorted(times)[ROUNDS // 2] for name, times in took.items()}
    print(*(f"{name:22} {value:6.0f} ms" for name, value in middle.items()), sep="\n")
    assert max(middle.values()) <= MAX_STEP_MS, middle
