"""What strangers wrote reaches a terminal as text: it cannot move the cursor, write the clipboard or add a line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolscout.cli.main import main
from toolscout.cli.output import escape_line, escape_text
from toolscout.home.catalogue.store import Origin
from toolscout.scout import Scout
from toolscout.types import Tool

HARM = "\x1b]52;c;aGFybQ==\x07\x1b[2J\x9b31m\x08\r\u202e\u2028"
CONTROLS = set("\u202e\u2028") | {chr(code) for code in (*range(9), *range(11, 32), *range(127, 160))}


def test_controls_are_shown_as_escapes_and_lines_stay_lines() -> None:
    assert escape_text("a\x1b[31m\nb\tc\x07\x9b\u202e\r") == "a\\x1b[31m\nb\tc\\x07\\x9b\\u202e\\r"
    assert escape_line("a\nb\tc") == "a\\nb\\tc"
    assert escape_text("emoji 👩\u200d🚀, ελληνικά, עברית, हिन्दी") == "emoji 👩\u200d🚀, ελληνικά, עברית, हिन्दी"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    bad = f"send{HARM}\nFAKE LINE"
    parameters = {"type": "object", "properties": {f"p{HARM}": {"type": f"t{HARM}", "description": HARM}}}
    with Scout(folder, trust_scan=False) as scout:
        for version in ("One", "Two"):
            held = Tool(id=f"m/{bad}", name=bad, description=f"{version} {HARM} mail", parameters=parameters)
            tools = [held, Tool(id=f"m/{bad}2", name=f"{bad}2", description=f"Sends{HARM} mail", parameters=parameters)]
            scout.store.put_source(
                Origin("m", "mcp"), "m", kind="mcp", message=f"server{HARM}\nFAKE LINE", tools=tools,
                problems=[(f"entry{HARM}\nFAKE LINE", f"problem{HARM}\nFAKE LINE")],
            )  # fmt: skip
    return folder


def printed(capsys: pytest.CaptureFixture[str], home: Path, *words: str) -> str:
    with pytest.raises(SystemExit):
        main(["--home", str(home), *words])
    found = capsys.readouterr()
    return found.out + found.err


BAD = f"m/send{HARM}\nFAKE LINE2"


@pytest.mark.parametrize(
    "words",
    [
        ("show", BAD),
        ("show", "m"),
        ("show", f"m/none{HARM}\nFAKE LINE"),
        ("show", f"m/send{HARM}\nFAKE LINE"),
        ("list",),
        ("list", "m"),
        ("list", "--tools"),
        ("search", "send mail"),
        ("search", "send mail", "--explain"),
        ("why", "send mail", BAD),
        ("approve",),
        ("doctor",),
        ("lint",),
        ("list", "--json"),
        ("show", BAD, "--json"),
        ("search", "mail", "--json"),
    ],
    ids=lambda words: " ".join(words)[:20].encode("unicode_escape").decode(),
)
def test_no_command_lets_a_control_through(
    home: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, home, *words)
    assert text and not CONTROLS & set(text), [letter for letter in text if letter in CONTROLS]
    assert not any(line.startswith("FAKE") for line in text.splitlines())
    if "--json" in words:
        json.loads(text)
