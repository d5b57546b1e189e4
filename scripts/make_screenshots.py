"""Makes docs/images: the page over 13,685 real tools, light and dark. Needs Chromium, playwright and TOOLSCOUT_DATA."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "docs" / "images"
QUERY = "will it rain in Oslo tomorrow"
ADDRESSES = {
    "search": (f"#/search?q={QUERY.replace(' ', '+')}&k=4", "ol.hits li"),
    "catalogue": ("#/catalogue?text=send+email", "#tools button"),
    "journal": ("#/journal", "#events tbody tr"),
    "evaluation": ("#/evaluation?dataset=toollens", "svg .bar"),
}


def main() -> None:
    from playwright.sync_api import sync_playwright

    data = Path(os.environ.get("TOOLSCOUT_DATA") or sys.exit("expected TOOLSCOUT_DATA to name the data folder"))
    chromium = shutil.which("chromium") or sys.exit("expected the program chromium, found none")
    TARGET.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home, sync_playwright() as playwright:
        program = [sys.executable, "-m", "toolscout", "--home", home]
        subprocess.run([*program, "add", str(data / "tool_corpora/toucan"), "--name", "mcp"], check=True)
        line = [*program, "serve", "--port", "0", "--results", str(ROOT / "benchmarks" / "results")]
        service = subprocess.Popen(line, stderr=subprocess.PIPE, text=True)
        assert service.stderr is not None
        port = next(found[1] for text in service.stderr if (found := re.search(r"http://[\d.]+:(\d+)/", text)))
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for scheme in ("light", "dark"):
            page = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 800}).new_page()
            page.set_default_timeout(120_000)
            for name, (address, ready) in ADDRESSES.items():
                page.goto(f"http://127.0.0.1:{port}/{address}")
                page.wait_for_selector(ready)
                if name == "search":
                    page.fill("#why-tool", "air quality")
                    page.locator("#why-options [role=option]").first.wait_for()
                    page.keyboard.press("Enter")
                    page.wait_for_selector("#why-where")
                    page.evaluate("() => scrollTo(0, 0)")
                if name == "catalogue":
                    page.locator("#tools button").first.click()
                    page.wait_for_selector("#tool-name")
                    page.locator("[role=treeitem][aria-level='2']").first.wait_for()
                page.screenshot(path=TARGET / f"{name}-{scheme}.png")
        browser.close()
        service.terminate()
        service.communicate()


if __name__ == "__main__":
    main()
