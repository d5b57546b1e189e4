"""What strangers wrote reaches a terminal as text: it cannot move the cursor, write the clipboard or add a line."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from click.testing import CliRunner

from toolscout.cli.main import main
from toolscout.cli.output import escape_line, escape_text, print_failure
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


SCREEN = (100, 200)  # columns, lines
THINGS = ("letter", "door", "ticket", "map", "order", "invoice", "branch")


def look_at(*words: str, frames: list[str] | None = None) -> list[str]:
    """Run the program in a terminal. Returns the lines that it leaves on the screen.

    `frames` gets what the screen shows in between.
    """
    pyte = pytest.importorskip("pyte")
    screen = pyte.Screen(*SCREEN)
    stream = pyte.ByteStream(screen)
    inner, outer = pty.openpty()
    fcntl.ioctl(outer, termios.TIOCSWINSZ, struct.pack("HHHH", SCREEN[1], SCREEN[0], 0, 0))
    line = [sys.executable, "-m", "toolscout", *words]
    environ = {**os.environ, "TERM": "xterm-256color"}
    with subprocess.Popen(line, stdin=outer, stdout=outer, stderr=outer, env=environ) as process:
        os.close(outer)
        with contextlib.suppress(OSError):  # the program has closed the terminal
            while content := os.read(inner, 65_536):
                stream.feed(content)
                if frames is not None:
                    frames.append("\n".join(screen.display))
        os.close(inner)
    assert process.returncode is not None
    return [text for text in (text.rstrip() for text in screen.display) if text]


@pytest.fixture
def tools(tmp_path: Path) -> str:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([{"name": f"tool_{n}", "description": f"Does task {n}"} for n in range(50)]))
    return str(file)


def test_results_stand_alone_after_the_progress_of_a_terminal(tools: str) -> None:
    assert look_at("add", tools) == ["tools: 50 new", "50 tools in the catalogue"]
    assert look_at("sync") == ["tools: no change (50 tools)", "50 tools in the catalogue"]
    searched = look_at("search", "task 7", "--recipe", "bm25")
    assert searched[0].split() == ["score", "tool", "what", "it", "does"] and searched[2].split()[2] == "tools/tool_7"
    assert look_at("selftest", "--most", "20")[0].startswith("50 tools; kinds of requests")
    assert "checked: " in look_at("lint", "--most", "5")[-1]


def count_while(*words: str) -> set[str]:
    """Run the program in a terminal. Returns the counts of things done, such as `256 of 3,000`, that it showed."""
    frames: list[str] = []
    look_at(*words, frames=frames)
    return {count for frame in frames for count in re.findall(r"[\d,]+ of [\d,]+", frame)}


def test_long_work_shows_n_of_n_in_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLSCOUT_HOME", str(tmp_path / "home"))
    texts = [f"{verb} the {thing}" for verb in ("open", "close", "send", "count", "draw") for thing in THINGS]
    tools = [{"name": f"tool_{n}", "description": f"{text} {n}"} for n, text in enumerate(texts * 24)]
    (tmp_path / "many.json").write_text(json.dumps(tools))
    assert look_at("add", str(tmp_path / "many.json"))[0] == "many: 840 new"
    counts = count_while("lint")
    assert any(count.startswith("256 of ") for count in counts), counts  # phrases, in batches of 256


def test_a_failure_is_one_error_and_one_hint_in_a_terminal(tools: str) -> None:
    assert look_at("serach") == ["error: There is no command 'serach'.", "hint: Did you mean 'search'?"]
    failed = look_at("add", "nowhere/tools.json")
    assert [text.split(":")[0] for text in failed if text[0] != " "] == ["error", "hint"]


def test_labels_are_coloured_on_a_terminal_only(capfd: pytest.CaptureFixture[str]) -> None:
    print_failure("It broke. Mend it")
    assert capfd.readouterr().err == "error: It broke.\nhint: Mend it\n"
    with CliRunner().isolation(color=True) as (_, error, _):
        print_failure("It broke. Mend it")
        shown = error.getvalue().decode()
    assert shown == "\x1b[31m\x1b[1merror:\x1b[0m It broke.\n\x1b[36m\x1b[1mhint:\x1b[0m Mend it\n"
