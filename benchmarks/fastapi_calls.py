"""Makes twenty calls to an application of FastAPI, from the document that FastAPI itself writes about it.

    python benchmarks/fastapi_calls.py --python VENV/bin/python

VENV has `fastapi`, `python-multipart` and `uvicorn`; toolscout needs none of them. The application
(`suites/fastapi_shop.py`) declares its arguments in twenty ways, and the calls have the arguments that a model would
send. Exits with 1 if one of them fails, or if an answer isn't what the application makes of the arguments.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import httpx

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from ports import find_free_port
from toolscout.settings import Settings
from toolscout.sources import openapi
from toolscout.types import Tool
from toolscout_gateway.calls.openapi import call

SUITES: Final = Path(__file__).with_name("suites")
START_S: Final = 60.0
ITEM: Final = {"name": "cup", "price": 2.5, "tags": ["a", "b"]}
FULL_ITEM: Final = {**ITEM, "size": "small", "maker": None}
UUID: Final = "17d91250-fcac-45a5-982a-24bd2e909b24"
#: (how the name of the tool begins, arguments, what the answer must contain).
CALLS: Final[tuple[tuple[str, dict[str, Any], dict[str, Any]], ...]] = (
    ("get_item", {"item_id": 5, "q": "a b&c"}, {"item_id": 5, "q": "a b&c"}),
    ("search", {"words": ["red", "big cup"], "size": "large"}, {"words": ["red", "big cup"], "size": "large"}),
    ("page", {"limit": 5, "offset": 2, "tags": ["x", "y"]}, {"limit": 5, "offset": 2, "tags": ["x", "y"]}),
    ("head", {"x-trace": "t1", "x-many": ["a", "b"]}, {"trace": "t1"}),
    ("cook", {"theme": "dark"}, {"theme": "dark"}),
    ("create", ITEM, FULL_ITEM),
    ("order", {"items": [ITEM], "due": "2026-11-28", "dry": True}, {"dry": True}),
    ("both", {"item_id": UUID, "item": ITEM, "user": "bob"}, {"id": UUID, "user": "bob", "item": FULL_ITEM}),
    ("embed", {"item": ITEM}, FULL_ITEM),
    ("many", {"body": [ITEM, ITEM]}, {"n": 2, "first": FULL_ITEM}),
    ("number", {"body": 7}, {"n": 7}),
    ("login", {"user": "bob", "tags": ["a", "b"], "remember": True}, {"tags": ["a", "b"], "remember": True}),
    ("model_form", {"user": "bob", "remember": True}, {"user": "bob", "remember": True}),
    ("file", {"file": "aGVsbG8=", "note": "n"}, {"text": "hello", "note": "n"}),
    ("files", {"files": ["YQ==", "Yg=="]}, {"texts": ["a", "b"]}),
    ("raw", {"data": "aGVsbG8="}, {"n": 5}),
    ("delete", {"item_id": 3, "force": True}, {"gone": 3, "force": True}),
    ("patch", {"item_id": 3, "body": {"name": "x", "size": 2}}, {"id": 3, "change": {"name": "x", "size": 2}}),
    ("paths", {"rest": "a/b.txt"}, {"rest": "a/b.txt"}),
    ("day", {"day": "2026-11-28", "time-zone": "Europe/Oslo"}, {"day": "2026-11-28", "zone": "Europe/Oslo"}),
)


def read_tools(address: str) -> list[Tool]:
    """Read the document of the application, as soon as it answers."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            httpx.get(f"{address}/openapi.json")
            [reading] = openapi.read(f"{address}/openapi.json", name=None, settings=Settings())
            assert not reading.problems, reading.problems
            return reading.tools
        time.sleep(0.1)
    raise SystemExit("The application does not start.")


async def make_calls(tools: list[Tool]) -> list[str]:
    """Make the calls one by one. Returns a line for each that fails."""
    failures = []
    async with httpx.AsyncClient() as client:
        for name, arguments, expected in CALLS:
            # FastAPI adds path and method to the name of a function
            tool = min((tool for tool in tools if tool.name.startswith(f"{name}_")), key=lambda tool: len(tool.name))
            answer: Any = (await call(client, tool, arguments)).structured_content
            is_right = answer["status"] == 200 and expected.items() <= answer["body"].items()
            if not is_right:
                failures.append(f"{name}: {answer}")
    return failures


def main() -> int:
    """Start the application, make the calls, and print how many succeeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, required=True, help="of an environment with fastapi")
    options = parser.parse_args()
    port = find_free_port()
    command = [options.python, "-m", "uvicorn", "fastapi_shop:app", "--port", str(port), "--log-level", "warning"]
    with subprocess.Popen(command, cwd=SUITES) as application:
        try:
            failures = asyncio.run(make_calls(read_tools(f"http://127.0.0.1:{port}")))
        finally:
            application.terminate()
    sys.stderr.writelines(f"{failure}\n" for failure in failures)
    sys.stdout.write(f"{len(CALLS) - len(failures)} of {len(CALLS)} calls succeed\n")
    return int(bool(failures))


if __name__ == "__main__":
    raise SystemExit(main())
