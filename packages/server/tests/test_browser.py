"""The page in Chromium: its journeys, its keys, what axe says of it; no text of a tool ever becomes a part of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import traffic
from server.tests.program import Program
from toolscout.home.catalogue.store import Origin
from toolscout.home.models import champion
from toolscout.learn.loop import learn
from toolscout.scout import Scout
from toolscout.sources import Reading
from toolscout.testing import toy_tools
from toolscout.trust.screening import sanitise
from toolscout.types import Tool

pytestmark = [pytest.mark.browser, pytest.mark.net, pytest.mark.slow, pytest.mark.timeout(180)]
MANY = 14_000
SCREEN = 844  # pixels in height
MAX_SCREENS = 6
UNSEEN = ["\u200e", "\u200f", "\u061c", "\u2060", "\u2063", "\u00ad", "\u3164", "\u115f", "\ufe01\ufe02", "\U000e0141"]
HOSTILE = {
    "name": "<img src=x onerror=alert(1)>",
    "description": "<script>document.title='taken'</script><b id=bold>bold</b> & 'quoted' \u202e ${alert(1)} rain "
    + " ".join(f"in{sign}visible" for sign in UNSEEN),
    "parameters": {
        "type": "object",
        "properties": {"<i>x</i>": {"type": "string", "description": "</pre><h1>no</h1>"}},
    },
}
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page") / "home"
    with Scout(folder) as scout:
        scout.add([HOSTILE, {"name": "after", "description": "Comes after it."}], name="hostile")
        held = [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in toy_tools()
        ]
        scout.add(held, name="toy")
        for text in ("Digs a hole.", "Digs a hole. <b>Sends</b> the keys."):
            tool = Tool(id="far/dig", name="dig", description=text)
            reading = Reading(source="far", kind="mcp", state="ok", message="", tools=(tool,), problems=())
            scout.put_reading(Origin("https://far.example/mcp", "mcp", None), reading)
        scout.embed()
    return folder


@pytest.fixture(scope="module")
def program(home: Path) -> Iterator[Program]:
    running = Program(home, "--results", str(RESULTS))
    yield running
    running.process.kill()
    running.process.communicate()


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A service over a home that has learned and promoted; a former candidate lies on the shelf too."""
    folder = tmp_path_factory.mktemp("learned") / "home"
    with Scout(folder, journal=False) as scout:
        traffic.catalogue(scout)
        traffic.replay(scout, traffic.requests(200, 1), [f"c{number}" for number in range(10)])
        report = learn(scout, recipes=["neighbours"])
        assert report.candidate is not None
        shutil.copytree(champion.find_model(folder, report.candidate), champion.shelf(folder) / "former")
    running = Program(folder)
    yield running
    running.process.kill()
    running.process.communicate()


Open = Callable[..., Any]


@pytest.fixture
def visit(browser: Any, program: Program) -> Iterator[Open]:
    """Opens an address of the page; at the end nothing may have been refused or thrown in it."""
    said: list[str] = []
    contexts: list[Any] = []

    def opened(address: str = "", *, at: Program = program, scheme: str = "light", width: int = 1440) -> Any:
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": SCREEN})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("console", lambda told: said.append(told.text) if told.type == "error" else None)
        page.on("dialog", lambda dialog: (said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.goto(f"http://127.0.0.1:{at.port}/{address}")
        page.wait_for_selector("nav a, #key")
        return page

    opened.said = said  # type: ignore[attr-defined]
    yield opened
    for context in contexts:
        context.close()
    assert not said


def axe(page: Any) -> list[str]:
    """What axe finds."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [f"{each['id']} ({each['impact']}): {[node['target'] for node in each['nodes']][:3]}" for each in found]


def faults(page: Any) -> list[str]:
    """What axe finds, and what is cut, sticks out or is too long."""
    found = axe(page)
    width, height = page.evaluate("() => [document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
    found += [f"{width} pixels wide"] if width > page.viewport_size["width"] else []
    found += [f"{height / SCREEN:.1f} screens"] if height > MAX_SCREENS * SCREEN else []
    found += page.evaluate(
        """() => [...document.querySelectorAll(".scroll, table, pre, select, button, .card, dialog")]
            .filter((each) => each.scrollWidth > each.clientWidth + 1 && each.checkVisibility()
                && getComputedStyle(each).textOverflow !== "ellipsis" && !each.closest(".virtual"))
            .map((each) => `${each.tagName}.${each.className} is cut, ${each.clientWidth} of ${each.scrollWidth}: `
                + each.textContent.slice(0, 40))"""
    )
    words = set(page.inner_text("body").split())
    return found + sorted({"false", "undefined", "null", "NaN", "[object Object]"} & words)


def test_a_search_shows_tools_scores_and_stages(visit: Open, program: Program) -> None:
    page = visit()
    page.keyboard.type("send a message to a friend")  # the field has the focus from the start
    page.keyboard.press("Enter")
    page.wait_for_selector("ol.hits li")
    assert page.locator("ol.hits .name").first.inner_text() == "send_email"
    page.get_by_text("Stages of this search").click()
    assert page.get_by_role("region", name="Stages").get_by_text("bm25", exact=True).count() == 1
    assert "q=send" in page.url
    assert page.locator("ol.hits li").first.locator(".about mark").all_inner_texts() == ["Send", "message"]
    page.get_by_role("button", name="Right").first.click()
    page.get_by_text("Saved to the journal.").wait_for()
    status, told = program.ask("GET", "/v1/journal?event=feedback&limit=1")
    assert status == 200 and told["events"][0]["good"] == ["toy/send_email"]


def test_why_not_this_tool_is_asked_and_what_would_lift_it_tried_out(visit: Open) -> None:
    page = visit("#/search?q=please+warm+my+soup&k=1")
    page.wait_for_selector("ol.hits li, #why-tool")
    page.fill("#why-tool", "hotel")
    page.locator("#why-options [role=option]").first.wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector("#why-where")
    assert page.inner_text("#why-answer .id") == "toy/find_hotel"
    assert "not in the answer" in page.inner_text("#why-where")
    assert page.get_by_role("heading", name="Missing words").count() == 1
    page.click("#cure")
    page.get_by_text("tried out").first.wait_for()
    page.click("#try")
    page.locator("#trial", has_text="would have rank 1").wait_for()
    page.get_by_role("button", name="Search for its name").click()
    page.locator("ol.hits .name", has_text="find_hotel").wait_for()


def test_the_catalogue_is_walked_with_the_keyboard_alone(visit: Open) -> None:
    page = visit()
    page.locator("nav a").first.focus()
    page.keyboard.press("3")
    page.wait_for_selector("#tools button")
    page.locator("#facet-source").focus()
    page.keyboard.type("toy")
    page.get_by_text("10 tools in toy").wait_for()
    page.locator("#clear").focus()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector("#tool-name")
    page.keyboard.press("/")
    page.keyboard.type("flight")
    page.get_by_text("1 tool in toy").wait_for()
    assert page.locator("#tools button").count() == 1
    assert page.locator("#tools mark").first.inner_text() == "flight"


def test_texts_of_tools_are_shown_and_never_obeyed(visit: Open) -> None:
    page = visit("#/search?q=rain&k=20")
    page.wait_for_selector("ol.hits li")
    page.get_by_text("<img src=x onerror=alert(1)>", exact=True).first.click()
    page.wait_for_selector("#tool-name")
    assert page.inner_text("#tool-name") == HOSTILE["name"]
    assert "<script>document.title='taken'</script>" in page.inner_text("#detail")
    shown = page.text_content("#detail")
    assert "\u202e" not in shown and shown.count("in\ufffdvisible") == len(UNSEEN)
    assert page.locator("#main img, #main script, #main b, #main i").count() == 0
    assert page.title() == "Catalogue – toolscout"
    sink = "() => { try { document.body.innerHTML = '<b>x</b>'; return 'taken' } catch (error) { return error.name } }"
    assert page.evaluate(sink) == "TypeError", "even a slip of the page could parse nothing"
    page.wait_for_timeout(100)
    assert all("TrustedHTML" in text for text in visit.said)  # type: ignore[attr-defined]
    visit.said.clear()  # type: ignore[attr-defined]


def test_every_character_that_trust_would_not_show_is_shown_as_a_mark(visit: Open) -> None:
    """Between two letters, where no script and no emoji needs one."""
    codes = [*range(0x20, 0xD800), *range(0xE000, 0x10000), *range(0xE0000, 0xE1000)]
    marked = visit().evaluate(
        """async (codes) => {
            const { h } = await import("/web/dom.js");
            const shown = h("p", {}, codes.map((code) => `a${String.fromCodePoint(code)}b`).join("\\n")).textContent;
            return shown.split("\\n").flatMap((line, at) => (line === "a\\ufffdb" ? [codes[at]] : []));
        }""",
        codes,
    )
    unseen = {code for code in codes if sanitise(f"a{chr(code)}b") == "ab"}
    assert set(marked) - {0xFFFD} == unseen | {0x200F, 0x61C} and len(unseen) > 4_000


def test_what_scripts_and_emoji_need_is_shown_as_it_is(visit: Open) -> None:
    texts = ["❤\ufe0f", "1\ufe0f\u20e3", "👩\u200d🚀", "❤\ufe0f\u200d🔥", "می\u200cخواهم", "葛\U000e0100", "a\tb\nc"]
    shown = "async (texts) => (await import('/web/dom.js')).h('p', {}, texts.join('|')).textContent.split('|')"
    assert visit().evaluate(shown, texts) == texts


@pytest.mark.parametrize(
    ("left", "path", "ready"), [("8", "**/v1/results", "#dataset"), ("6", "**/v1/models", "#serving")]
)
def test_an_answer_that_comes_after_its_view_was_left_changes_nothing(
    visit: Open, left: str, path: str, ready: str
) -> None:
    page, held = visit(), []
    page.route(path, lambda route: held.append(route))
    page.locator("nav a").first.focus()
    page.keyboard.press(left)
    for _ in range(500):
        if held:
            break
        page.wait_for_timeout(10)
    page.keyboard.press("3")
    page.wait_for_selector("#tools button")
    address = page.url
    assert address.partition("#")[2].startswith("/catalogue")
    with page.expect_response(path):
        held[0].continue_()
    page.wait_for_timeout(300)
    assert page.url == address and page.locator(ready).count() == 0 and page.locator("h1").inner_text() == "Catalogue"
    page.unroute(path)
    page.keyboard.press(left)
    page.wait_for_selector(ready)


def test_an_older_why_does_not_draw_over_a_newer_one(visit: Open) -> None:
    page, held = visit("#/search?q=send+a+message"), []
    page.wait_for_selector("ol.hits li")
    names = page.locator("ol.hits .copyable > .id").all_inner_texts()
    page.route("**/v1/why", lambda route: held.append(route))
    for at in (0, 1):
        page.get_by_role("button", name="Why is it here?").nth(at).click()
    while len(held) < 2:
        page.wait_for_timeout(10)
    for each in (1, 0):
        with page.expect_response("**/v1/why"):
            held[each].continue_()
        page.wait_for_timeout(200)
    assert page.inner_text("#why-answer .id") == names[1]


def test_the_journal_is_filtered_and_taken_out(visit: Open, program: Program, tmp_path: Path) -> None:
    for query in ("the first question", "the second question"):
        program.ask("POST", "/v1/search", {"query": query})
    page = visit("#/journal?event=search&text=second")
    page.wait_for_selector("#events tbody tr")
    assert page.locator("#events tbody tr").count() == 1
    assert "the second question" in page.inner_text("#events")
    page.fill("#journal-text", "no such words")
    page.keyboard.press("Enter")
    page.get_by_text("No event matches these filters.").wait_for()
    with page.expect_download() as started:
        page.get_by_role("button", name="Export").click()
    lines = Path(started.value.path()).read_bytes()
    assert b"the first question" in lines
    page.set_input_files("#import", {"name": "j.jsonl", "mimeType": "text/plain", "buffer": lines})
    page.get_by_text("0 new events").wait_for()


def test_models_and_figures_are_shown(visit: Open) -> None:
    page = visit("#/models")
    page.wait_for_selector("#serving")
    assert "scout" in page.inner_text("#serving")
    page.keyboard.press("8")
    page.wait_for_selector("svg .bar")
    page.select_option("#dataset", "toollens")
    assert page.locator("svg .bar").count() >= 5 and page.locator("svg .whisker").count() >= 5


def test_home_asks_to_learn_only_from_what_is_new_since_the_last_learning(visit: Open, learned: Program) -> None:
    assert learned.ask("GET", "/v1/journal/stats")[1]["searches_followed_by_a_successful_call"] >= 200
    page = visit("#/home", at=learned)
    page.wait_for_selector("#next h2")
    assert "enough to learn" not in page.inner_text("#next")


def test_a_promotion_is_rolled_back_and_another_made_with_the_keyboard_alone(visit: Open, learned: Program) -> None:
    page = visit("#/search?q=send+a+message", at=learned)
    page.wait_for_selector("ol.hits li")
    widths = page.eval_on_selector_all(".gauge span", "bars => bars.map((bar) => bar.getBoundingClientRect().width)")
    assert widths and min(widths) > 0, "no bar is empty, whatever a model's scores are"
    page.goto(f"http://127.0.0.1:{learned.port}/#/models")
    page.wait_for_selector("#rollback")
    assert "neighbours" in page.inner_text("#serving")
    assert "is better than scout" in page.inner_text("#reason")
    assert page.get_by_role("region", name="Candidate against champion").locator("tbody tr").count() == 4
    assert page.locator("#comparison circle.champion").count() == page.locator("#comparison circle.bar").count() == 4
    page.locator("#rollback").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    assert "neighbours" in page.inner_text("#serving"), "nothing is done that was not said twice"
    page.locator("#rollback").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.locator("#serving", has_text="scout").wait_for()
    assert page.locator("#rollback").count() == 0
    assert page.evaluate("() => document.activeElement.id") == "serving"
    page.keyboard.press("j")
    assert page.evaluate("() => document.activeElement.dataset.promote") == "former"
    page.keyboard.press("Enter")
    page.click("#confirm")
    page.locator("#serving", has_text="neighbours").wait_for()
    assert "former (serves)" in page.get_by_role("region", name="Models", exact=True).inner_text()
    assert "by hand, by local" in page.get_by_role("region", name="Promotions").inner_text()
    status, told = learned.ask("GET", "/v1/learning")
    assert status == 200 and [each["model"] for each in told["history"]] == ["former"]


def test_a_promotion_that_somebody_else_made_meanwhile_stays(visit: Open, learned: Program) -> None:
    learned.ask("POST", "/v1/promote", {"model": "former"})
    page = visit("#/models", at=learned)
    page.wait_for_selector("#rollback")
    _, shelf = learned.ask("GET", "/v1/models")
    other = next(each["name"] for each in shelf["models"] if each["name"] != "former")
    learned.ask("POST", "/v1/promote", {"model": other})
    page.click("#rollback")
    page.click("#confirm")
    page.get_by_text(f"The champion is now {other}").wait_for()
    assert learned.ask("GET", "/v1/learning")[1]["history"][-1]["model"] == other
    assert all("409" in text for text in visit.said)  # type: ignore[attr-defined]
    visit.said.clear()  # type: ignore[attr-defined]


def test_tools_that_cannot_be_found_are_named_and_why_is_one_step_away(visit: Open, tmp_path: Path) -> None:
    twins = [{"name": f"list_{n}", "description": "Lists all open invoices of a customer."} for n in range(12)]
    with Scout(tmp_path / "shop", recipe="bm25") as scout:
        scout.add(
            [*twins, {"name": "rain", "description": "Will it rain tomorrow in a city?"}, {"name": "mute"}], name="s"
        )
    shop = Program(tmp_path / "shop", "--recipe", "bm25")
    try:
        page = visit(at=shop)
        page.locator("nav a").first.focus()
        page.keyboard.press("7")
        page.get_by_role("button", name="Check").click()
        page.wait_for_selector("#lint-summary")
        assert "13 tools checked" in page.inner_text("#lint-summary")
        hidden = page.get_by_role("region", name="Hard to find", exact=True)
        assert "almost the same description" in hidden.inner_text() and "remove one of them" in hidden.inner_text()
        assert page.get_by_role("region", name="Confused pairs", exact=True).locator("tbody tr").count() > 1
        assert "s/mute" in page.get_by_role("region", name="No description", exact=True).inner_text()
        assert axe(page) == []
        tool = hidden.locator("tbody tr a").first.inner_text()
        hidden.get_by_role("link", name="Why not?").first.click()
        page.wait_for_selector("#why-where")
        assert page.inner_text("#why-answer .id") == tool and "not in the answer" in page.inner_text("#why-where")
    finally:
        shop.process.kill()
        shop.process.communicate()


FULL = pytest.mark.full
SIZES = [
    (390, "light"),
    pytest.param(390, "dark", marks=FULL),
    pytest.param(1440, "light", marks=FULL),
    pytest.param(1440, "dark", marks=FULL),
]
VIEWS = {
    "home": "#next li",
    "catalogue?tool=toy/book_flight": "#tool-name",
    "sources?add=1": "#waiting .added",
    "journal": "#events tbody tr",
    "quality?most=20": "#lint-summary",
    "models": "#serving",
    "evaluation": "svg .bar",
}


@pytest.mark.parametrize(("width", "scheme"), SIZES)
def test_no_view_has_a_fault_at_any_size(
    visit: Open, program: Program, learned: Program, width: int, scheme: str
) -> None:
    program.ask("POST", "/v1/search", {"query": "rain"})
    page = visit("#/search?q=send+a+message+and+then+book+a+flight+to+Oslo", scheme=scheme, width=width)
    page.wait_for_selector("ol.hits li")
    page.get_by_role("button", name="Why is it here?").first.click()
    page.wait_for_selector("#why-where")
    brightness = page.evaluate("() => Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])")
    assert (brightness > 200) is (scheme == "light")
    found = [f"search: {each}" for each in faults(page)]
    for address, ready in VIEWS.items():
        page.goto(f"http://127.0.0.1:{program.port}/#/{address}")
        page.wait_for_selector(ready)
        found += [f"{address}: {each}" for each in faults(page)]
    page.goto(f"http://127.0.0.1:{learned.port}/#/models")
    page.wait_for_selector("#comparison circle.bar")
    found += [f"learned: {each}" for each in faults(page)]
    page.locator("[data-promote], #rollback").first.click()
    for name, key in {"question": None, "keys": "?", "palette": "Control+k"}.items():
        if key:
            page.keyboard.press(key)
        page.wait_for_selector("dialog[open]")
        found += [f"{name}: {each}" for each in faults(page)]
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog[open]", state="detached")
    assert not found, "\n".join(found)


def test_a_source_is_added_searched_disabled_and_brought_back(visit: Open, program: Program) -> None:
    page = visit("#/sources?add=1")
    page.fill("#add-tools", '{"name": "ring_bell", "description": "Rings the bell of the tower."}')
    page.fill("#add-name", "tower")
    page.locator("#add").get_by_role("button", name="Add").click()
    page.get_by_text("tower: 1 new").wait_for()
    page.get_by_role("button", name="Disable tower").click()
    page.get_by_role("button", name="Enable tower").wait_for()
    assert program.ask("GET", "/v1/tools?source=tower")[1]["total"] == 0
    page.click("#undo")
    page.get_by_role("button", name="Disable tower").wait_for()
    page.fill("#add-tools", "[{]")
    page.locator("#add").get_by_role("button", name="Add").click()
    page.get_by_text("This is not JSON").wait_for()
    page.keyboard.press("Escape")
    page.locator("nav a").first.focus()
    page.keyboard.press("Control+k")
    page.keyboard.type("ring_bell")
    page.locator("#palette-options li", has_text="tower/ring_bell").wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.locator("#tool-name", has_text="ring_bell").wait_for()
    assert page.inner_text("#detail .id") == "tower/ring_bell"


def test_a_definition_is_read_before_it_is_approved(visit: Open, program: Program) -> None:
    page = visit()
    page.locator("#next a", has_text="Review").click()
    waiting = page.locator("#waiting")
    waiting.locator(".added").wait_for()
    assert waiting.locator(".added").all_inner_texts() == ["+ <b>Sends</b> the keys.\n"]
    assert waiting.locator("b").count() == 0, "what it says is shown, not obeyed"
    waiting.get_by_role("button", name="Approve far/dig").click()
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    assert program.ask("GET", "/v1/approvals")[1]["total"] == 1, "nothing is done that was not said twice"
    waiting.get_by_role("button", name="Approve far/dig").click()
    page.click("#confirm")
    page.get_by_text("Approved 1 definition.").wait_for()
    assert program.ask("GET", "/v1/tool?id=far%2Fdig")[0] == 200


def test_a_source_that_was_never_read_is_not_said_to_be_searched(visit: Open, tmp_path: Path) -> None:
    with Scout(tmp_path / "home", recipe="bm25") as scout:
        for number in range(40):
            scout.search("a long request " * 12, caller=f"agent-{number}")
        for name, tools in (("lost", ()), ("tired", (Tool(id="tired/nap", name="nap", description="Naps."),))):
            origin = Origin(f"https://{name}.example/mcp", "mcp", None)
            if tools:
                scout.put_reading(
                    origin, Reading(source=name, kind="mcp", state="ok", message="", tools=tools, problems=())
                )
            message = f"{name}: expected the environment variable KEY, found it unset: set it"
            scout.put_reading(
                origin, Reading(source=name, kind="mcp", state="error", message=message, tools=(), problems=())
            )
    troubled = Program(tmp_path / "home", "--recipe", "bm25")
    try:
        page = visit(at=troubled)
        page.locator("#next li", has_text="lost").wait_for()
        steps = page.locator("#next li").all_inner_texts()
        assert steps[0].startswith("lost could not be read. It has no tools yet.")
        assert steps[1].startswith("tired could not be read. Its former tools are still searched.")
        page.goto(f"http://127.0.0.1:{troubled.port}/#/sources")
        row = page.locator("tr", has_text="lost").last
        row.wait_for()
        assert "lost: " not in row.inner_text() and "expected the environment variable KEY" in row.inner_text()
        page.goto(f"http://127.0.0.1:{troubled.port}/#/journal")
        page.wait_for_selector("#events tbody tr")
        lines = page.evaluate(
            "() => [...document.querySelectorAll('#events td.caller div')].map(cell => cell.getClientRects()[0].height)"
        )
        assert max(lines) < 30, "a short name of a caller stands on one line beside a long request"
    finally:
        troubled.process.kill()
        troubled.process.communicate()


def test_typing_searches_without_the_journal_and_a_rating_is_taken_back(visit: Open, program: Program) -> None:
    def count() -> dict[str, int]:
        events: dict[str, int] = program.ask("GET", "/v1/journal/stats")[1]["events"]
        return events

    page, before = visit("#/search"), count()
    page.wait_for_selector(".examples a")
    page.keyboard.type("reserve a seat on a plane")
    page.locator("ol.hits .name", has_text="book_flight").wait_for()
    assert count() == before
    page.get_by_role("button", name="Right").first.click()
    page.get_by_text("Saved to the journal.").wait_for()
    now = count()
    assert (now["search"], now["feedback"]) == (before["search"] + 1, before["feedback"] + 1)
    page.click("#undo")
    page.get_by_text("Withdrawn.").wait_for()
    event = program.ask("GET", "/v1/journal?event=feedback&limit=1")[1]["events"][0]
    assert event["withdrawn"] and not event["good"]
    assert page.get_by_role("button", name="Right").first.get_attribute("aria-pressed") == "false"


def test_a_request_of_several_steps_says_which_tool_serves_which(visit: Open) -> None:
    page = visit("#/search?q=send+a+message+to+Ann+and+then+book+a+flight+to+Oslo")
    page.locator(".steps li").nth(1).wait_for()
    assert (
        page.locator(".hit .badge", has_text="step 1").count()
        and page.locator(".hit .badge", has_text="step 2").count()
    )


def test_queries_without_a_tool_are_listed_and_asked_again(visit: Open, program: Program) -> None:
    query = "zzqx vvkw"
    program.ask("POST", "/v1/search", {"query": query, "recipe": "bm25"})
    page = visit("#/journal?without=1")
    page.get_by_role("region", name="Nothing found").get_by_role("link", name=query).or_(
        page.get_by_role("region", name="Abstained").get_by_role("link", name=query)
    ).click()
    page.wait_for_selector("#summary")
    assert page.input_value("#query") == query


def test_checks_are_run_and_leave_a_trend(visit: Open) -> None:
    page = visit("#/quality")
    page.fill("#selftest-most", "10")
    page.get_by_role("region", name="Selftest").get_by_role("button", name="Run").click()
    page.wait_for_selector("#selftest-summary")
    page.get_by_role("region", name="Selftest").locator("svg circle").nth(3).wait_for()
    assert page.locator("#drift-state").inner_text()


def test_a_service_with_callers_asks_for_a_key_and_shows_what_that_caller_may_see(
    visit: Open, browser: Any, home: Path, tmp_path: Path
) -> None:
    from toolscout.trust.policy import hashed_key

    policy = tmp_path / "policy.toml"
    policy.write_text(f'[[caller]]\nname = "bob"\nkey = "{hashed_key("tsk_of_bob")}"\nallow = ["toy/s*"]\n')
    guarded = Program(home, "--policy", str(policy))
    context = browser.new_context()
    try:
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{guarded.port}/")
        page.wait_for_selector("#key")
        assert axe(page) == []
        page.fill("#key", "wrong")
        page.keyboard.press("Enter")
        page.get_by_text("This key is not valid").wait_for()
        page.fill("#key", "tsk_of_bob")
        page.keyboard.press("Enter")
        page.wait_for_selector("nav a")
        assert page.locator("nav a").all_inner_texts() == ["Home", "Search", "Catalogue"]
        assert page.inner_text("#who") == "bob · 3 tools"
    finally:
        context.close()
        guarded.process.kill()
        guarded.process.communicate()


class Work:
    """What a page's main thread does: processor time of all its tasks, since wall time also counts other programs."""

    def __init__(self, page: Any) -> None:
        self.session = page.context.new_cdp_session(page)
        self.session.send("Performance.enable", {"timeDomain": "threadTicks"})
        self.steps: dict[str, float] = {}
        self._before = self._now()

    def _now(self) -> float:
        found = {each["name"]: each["value"] for each in self.session.send("Performance.getMetrics")["metrics"]}
        return float(found["TaskDuration"])

    def note(self, step: str) -> None:
        """Ends a step, in milliseconds."""
        now = self._now()
        self.steps[step], self._before = 1000 * (now - self._before), now


def test_of_many_tools_only_those_in_sight_are_in_the_page(visit: Open, tmp_path: Path) -> None:
    walk(visit, tmp_path, 2_000)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_a_page_over_many_tools_works_little_more_than_over_few(visit: Open, tmp_path: Path) -> None:
    """Processor time of the page's main thread; of each step the least of three walks."""
    steps: dict[int, dict[str, float]] = {}
    for turn in range(3):
        for count in (2_000, MANY):
            for step, spent in walk(visit, tmp_path / f"{turn}-{count}", count).items():
                held = steps.setdefault(count, {})
                held[step] = min(spent, held.get(step, spent))
    few, many = (max(steps[count].values()) for count in (2_000, MANY))
    assert many <= 4 * few, steps


def walk(visit: Open, tmp_path: Path, count: int) -> dict[str, float]:
    """Scroll, filter, search and lint a catalogue of so many tools. Returns milliseconds of work by step."""
    tools = [
        {"name": f"tool_{number}", "description": f"Does task {number} of {number % 97}.", "x": ""}
        for number in range(count)
    ]
    with Scout(tmp_path / "many", recipe="bm25") as scout:
        scout.add(tools, name="many")
    many = Program(tmp_path / "many", "--recipe", "bm25")
    try:
        page = visit("#/catalogue", at=many)
        page.wait_for_selector("#tools button")
        work = Work(page)
        for share in (0.2, 0.9, 0.5, 1.0):
            page.evaluate(
                f"() => {{ const l = document.querySelector('#tools'); l.scrollTop = {share} * l.scrollHeight }}"
            )
            page.wait_for_timeout(150)
            work.note(f"scroll to {share}")
        page.locator("#tools button").last.wait_for()
        assert page.locator("#tools button").count() < 60, "only rows in sight are in the page"
        for word in ("task 7", "task 1999", "of 31"):
            page.fill("#filter", "")
            page.locator("#count", has_text=f"{count:,} tools").wait_for()
            page.fill("#filter", word)
            page.locator("#count", has_not_text=f"{count:,} tools").wait_for()
            work.note(f"filter {word}")
        page.goto(f"http://127.0.0.1:{many.port}/#/search?q=task+1234")
        page.wait_for_selector("ol.hits li")
        work.note("search")
        assert page.locator("ol.hits .name").first.inner_text() == "tool_1234"
        page.goto(f"http://127.0.0.1:{many.port}/#/quality?most=50")
        page.locator("#lint-summary", has_text="50 tools checked").wait_for()
        work.note("findability")
        return work.steps
    finally:
        many.process.kill()
        many.process.communicate()
