"""What a dry run says, against a vocabulary's count of what the scripted server was then really sent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests_cli import run as cli
from toolscout_lab.testing import ScriptedServer
from wire_tokens import counted

pytestmark = pytest.mark.net
SAID = re.compile(r"(?:would send about|sent) ([\d,]+) calls: ([\d,]+) tokens in")


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as opened:
        yield opened


def held(server: ScriptedServer, *command: str) -> None:
    """Within a fifth: calls, and tokens in."""
    server.bodies.clear()
    planned = cli(*command, "--llm", server.place, "--dry-run")
    assert planned.exit_code == 0 and not server.bodies, planned.output
    done = cli(*command, "--llm", server.place)
    assert done.exit_code == 0, done.output
    said = SAID.search(planned.stderr)
    assert said is not None, planned.stderr
    calls, tokens = (int(each.replace(",", "")) for each in said.groups())
    sent = counted(server.bodies)
    assert len(server.bodies) >= 12
    assert abs(calls / len(server.bodies) - 1) <= 0.2, (calls, len(server.bodies))
    assert abs(tokens / sent - 1) <= 0.2, (tokens, sent)


def test_the_estimate_of_a_judgement_holds(server: ScriptedServer, tmp_path: Path) -> None:
    for name, text in (("long", "It opens at nine and closes at five; a ticket costs twelve."), ("short", "At nine.")):
        rows = [{"id": f"{n}", "request": f"When does museum {n} open?", "answer": f"{text} ({n})"} for n in range(4)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    held(server, "judge", "answers", *(f"{name}={tmp_path / name}.jsonl" for name in ("long", "short")))


def test_the_estimate_of_a_set_for_detection_holds(server: ScriptedServer, tmp_path: Path) -> None:
    prompts = [f"write a {kind} about {thing}" for kind in ("poem", "story", "song") for thing in TOPICS]
    (tmp_path / "chat.txt").write_text("\n".join(prompts))
    dataset = written(server, tmp_path)
    window = ("--window", "-1", "1", "-n", "15", "--out", str(tmp_path / "det"))
    held(server, "synth", "tooldet", "--prompts", str(tmp_path / "chat.txt"), "--queries", dataset, *window)


@pytest.mark.slow
def test_the_estimate_of_a_measurement_downstream_holds(server: ScriptedServer, tmp_path: Path) -> None:
    dataset = written(server, tmp_path)
    held(server, "downstream", dataset, "--split", "train", "-r", "bm25", "-k", "4", "-n", "15")


TOPICS = ("autumn rain", "an old lighthouse", "two brothers", "a lost key", "bread", "the first snow", "a slow train")


def written(server: ScriptedServer, folder: Path) -> str:
    out = str(folder / "set")
    sources = ("py:statistics", "py:shutil", "py:zipfile", "py:json", "py:datetime")
    made = cli("synth", "toolbank", *sources, "--out", out, "-n", "20", "--llm", server.place)
    assert made.exit_code == 0, made.output
    return out
