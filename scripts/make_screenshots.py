"""Makes the screenshots in docs/images, light and dark.

The page shows 13,685 real tools; the learning view shows requests of ToolLens as traffic. Needs Chromium, playwright
and TOOLSCOUT_DATA.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "docs" / "images"
QUERY = "will it rain in Oslo tomorrow"
TRAFFIC = 2_000
TOOLS = {
    "search": (f"#/search?q={QUERY.replace(' ', '+')}&k=4", "ol.hits li"),
    "catalogue": ("#/catalogue?text=send+email", "#tools button"),
    "quality": ("#/quality?most=200", "#lint-summary"),
    "evaluation": ("#/evaluation?dataset=toollens", "svg .bar"),
}
LEARNED = {
    "home": ("#/home", "#examples a"),
    "journal": ("#/journal", "#events tbody tr"),
    "models": ("#/models", "#comparison circle.bar"),
}
PHONE_LEARNED = {"phone-home": ("#/home", "#examples a")}
PHONE_TOOLS = {
    "phone-search": (f"#/search?q={QUERY.replace(' ', '+')}&k=4", "ol.hits li"),
}
PROGRAM = [sys.executable, "-m", "toolscout"]


def fill_home(home: str, data: Path) -> None:
    """Fill a home with training queries of ToolLens and successful calls of their gold tools, then learn."""
    from toolscout.dataset import Dataset
    from toolscout.learn.loop import learn
    from toolscout.scout import Scout

    dataset = Dataset.load(data / "toollens")
    with Scout(home) as scout:
        scout.add(data / "toollens", name="toollens")
        gold = dict(sorted(dataset.split("train").items())[:TRAFFIC])
        for number, (query, tools) in enumerate(gold.items()):
            caller = f"agent-{number % 20}"
            search = scout.search(dataset.queries[query], caller=caller)
            for tool in tools:
                scout.called(f"toollens/{tool}", ok=True, search_id=search.search_id, caller=caller)
        learn(scout)


@contextmanager
def service(home: str, *options: str) -> Iterator[str]:
    """The service over a home, at its address."""
    running = subprocess.Popen(
        [*PROGRAM, "--home", home, "serve", "--port", "0", *options], stderr=subprocess.PIPE, text=True
    )
    try:
        assert running.stderr is not None
        yield next(found[0] for text in running.stderr if (found := re.search(r"http://[\d.]+:\d+/", text)))
    finally:
        running.terminate()
        running.communicate()


def shoot(browser: Any, place: str, addresses: dict[str, tuple[str, str]], width: int = 1280) -> None:
    """The views at these addresses, in light and dark."""
    for scheme in ("light", "dark"):
        page = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800}).new_page()
        page.set_default_timeout(300_000)
        for name, (address, ready) in addresses.items():
            page.goto(place + address)
            page.wait_for_selector(ready)
            page.wait_for_load_state("networkidle")
            if name == "search":
                page.fill("#why-tool", "air quality")
                page.locator("#why-options [role=option]").first.wait_for()
                page.keyboard.press("Enter")
                page.wait_for_selector("#why-where")
                page.evaluate("() => scrollTo(0, 0)")
            if name == "catalogue":
                page.locator("#tools button").first.click()
                page.wait_for_selector("#tool-name")
            file = TARGET / f"{name}-{scheme}.png"
            page.screenshot(path=file)
            shrink(file)


def shrink(file: Path) -> None:
    """Write a screenshot with 128 colours, which shows the same in a third of the bytes."""
    from PIL import Image

    Image.open(file).convert("RGB").quantize(128).save(file, optimize=True)


def main() -> None:
    from playwright.sync_api import sync_playwright

    data = Path(os.environ.get("TOOLSCOUT_DATA") or sys.exit("Set TOOLSCOUT_DATA to the folder of the datasets."))
    chromium = shutil.which("chromium") or sys.exit("The program chromium is missing. Install it.")
    TARGET.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home, sync_playwright() as playwright:
        many, taught = f"{home}/many", f"{home}/taught"
        subprocess.run(
            [*PROGRAM, "--home", many, "add", str(data / "tool_corpora/toucan"), "--name", "mcp"], check=True
        )
        fill_home(taught, data)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        with service(many, "--results", str(ROOT / "benchmarks" / "results")) as place:
            shoot(browser, place, TOOLS)
            shoot(browser, place, PHONE_TOOLS, 390)
        with service(taught) as place:
            shoot(browser, place, LEARNED)
            shoot(browser, place, PHONE_LEARNED, 390)
        browser.close()


if __name__ == "__main__":
    main()
