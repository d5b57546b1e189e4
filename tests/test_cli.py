from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tests_cli import run
from toolscout.cli.main import COMMAND_GROUPS, COMMANDS, EXAMPLES, LAB_COMMANDS, main, program
from toolscout.cli.search import print_search
from toolscout.home.catalogue.store import Store
from toolscout.types import Answer, Hit


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "garden.jsonl"
    tools = [
        {"name": "water_plants", "description": "Water the plants.", "parameters": {
            "type": "object", "properties": {"minutes": {"type": "integer", "description": "How long."}},
            "required": ["minutes"]}},
        {"name": "mow", "description": "Mow the lawn. \x1b[31mred"},
    ]  # fmt: skip
    path.write_text("".join(json.dumps(tool) + "\n" for tool in tools))
    return path


def test_help_lists_every_command_and_each_has_its_own() -> None:
    result = run("--help")
    assert result.exit_code == 0
    for name, (_, text) in COMMANDS.items():
        assert name in result.output
        assert text.split()[0] in result.output
        assert run(name, "--help").exit_code == 0


def test_everyday_commands_stand_in_groups_and_research_under_lab() -> None:
    everyday, research = run("--help").output, run("lab", "--help").output
    for heading in COMMAND_GROUPS:
        assert f"\n{heading}:\n" in everyday
    assert "  lab " in everyday
    for name, (_, text) in LAB_COMMANDS.items():
        assert f"\n  {name} " not in everyday and f"  {name} " in research
        assert text.split()[0] in research
        assert run("lab", name, "--help").exit_code == 0


@pytest.mark.parametrize("name", LAB_COMMANDS)
def test_the_former_spelling_of_a_research_command_still_works(name: str) -> None:
    former, today = (run(*words, name, "--help").output.split() for words in ((), ("lab",)))
    assert former[0] == "Usage:" and name in former[:4]
    assert former[former.index(name) :] == today[today.index(name) :], "both spellings are one command"


@pytest.mark.parametrize(
    ("scores", "shown", "closing"),
    [
        ([2.0, 0.5, 0.001, -0.001], ["a/0", "a/1"], "2 tools in 0.0 ms; 2 more with the score 0.00"),
        ([2.0, 0.0, 0.5], ["a/0", "a/1", "a/2"], "3 tools in 0.0 ms"),
        ([0.003, 0.002], ["a/0", "a/1"], "2 tools in 0.0 ms"),
    ],
)
def test_the_last_hits_with_the_score_zero_are_counted_and_not_shown(
    scores: list[float], shown: list[str], closing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = Answer(query="q", hits=tuple(Hit(f"a/{number}", score) for number, score in enumerate(scores)))
    print_search(answer)
    output = capsys.readouterr().out
    assert re.findall(r"a/\d", output) == shown and output.splitlines()[-1] == closing
    print_search(answer, explain=True)
    assert f"{len(scores)} tools in" in capsys.readouterr().out


def test_add_search_show_list_remove(file: Path) -> None:
    added = run("add", str(file))
    assert added.exit_code == 0, added.output
    assert "garden: 2 new" in added.output and "2 tools in the catalogue" in added.output
    found = run("search", "water the garden plants", "--explain")
    assert "garden/water_plants" in found.output and "bm25" in found.output and " ms" in found.output
    shown = run("show", "garden/water_plants")
    assert "minutes" in shown.output and "integer" in shown.output and "fingerprint" in shown.output
    listed = run("list")
    assert "garden" in listed.output and "2 tools in 1 source\n" in listed.output
    assert "garden/mow" in run("list", "garden").output
    assert "garden/mow" in run("list", "--tools").output
    assert "removed 1 tool\n" in run("remove", "garden/mow").output
    assert "garden: 1 new" in run("sync").output
    assert "removed the source garden with 2 tools\n" in run("remove", "garden").output
    assert "The catalogue is empty" in run("list").output


def test_a_tool_with_malformed_types_is_shown(tmp_path: Path) -> None:
    properties = {"number": {"type": 5}, "nothing": {"type": None}, "several": {"type": ["string", "null"]}}
    path = tmp_path / "odd.json"
    path.write_text(json.dumps([{"name": "odd", "description": "Odd.", "parameters": {"properties": properties}}]))
    run("add", str(path))
    shown = run("show", "odd/odd")
    assert shown.exit_code == 0 and "string|null" in shown.output
    assert all(name in shown.output for name in properties)


def test_an_address_given_with_a_document_stays_with_it(tmp_path: Path) -> None:
    document = {"openapi": "3.1.0", "info": {"title": "Pet Shop"}, "paths": {"/pets": {"get": {"operationId": "list"}}}}
    path = tmp_path / "api.json"
    path.write_text(json.dumps(document))
    assert "1 of 1 tools can be found but not called" in run("add", str(path)).stdout
    added = run("add", str(path), "--server", "https://pets.example/v1")
    assert added.exit_code == 0 and "pet-shop: 1 changed" in added.stdout
    assert "no change" in run("sync").stdout
    shown = json.loads(run("show", "pet-shop/list", "--json").stdout)
    assert (shown["callable"], shown["meta"]["server"]) == (True, "https://pets.example/v1")
    [listed] = json.loads(run("list", "--json").stdout)
    assert listed["origin"] == f"{path}#server=https://pets.example/v1"
    assert "goes with an OpenAPI document" in run("add", "py:json", "--server", "https://x.example").stderr


def test_every_reading_command_speaks_json(file: Path) -> None:
    added = json.loads(run("add", str(file), "--json").stdout)
    assert added["sources"][0]["new"] == 2
    found = json.loads(run("search", "mow", "-k", "1", "--json").stdout)
    fields = {
        "query",
        "search_id",
        "need",
        "answer",
        "reason",
        "low_confidence",
        "coverage",
        "degraded",
        "steps",
        "uncovered",
        "hits",
    }
    assert set(found) == fields | {"ms"}
    assert found["hits"][0]["id"] == "garden/mow" and found["answer"] == "tools"
    described = {"id", "name", "path", "score", "description", "parameters", "callable", "why"}
    assert set(found["hits"][0]) == described | {"step", "role", "similar", "kind"}
    assert found["ms"]["total"] >= found["ms"]["bm25"] > 0
    assert json.loads(run("list", "--json").stdout)[0]["name"] == "garden"
    assert len(json.loads(run("list", "garden", "--json").stdout)) == 2
    assert json.loads(run("show", "garden/mow", "--json").stdout)["name"] == "mow"
    assert json.loads(run("show", "garden", "--json").stdout)["problems"] == []
    assert json.loads(run("doctor", "--json").stdout)["healthy"] is True
    assert json.loads(run("journal", "stats", "--json").stdout)["events"]["search"] == 1
    assert json.loads(run("sync", "--json").stdout)["sources"][0]["same"] == 2


def test_escape_sequences_in_descriptions_do_not_reach_the_terminal(file: Path) -> None:
    run("add", str(file))
    assert "\x1b" not in run("search", "mow the lawn").output


def test_a_mistake_gives_one_sentence_and_exit_code_one(tmp_path: Path, file: Path) -> None:
    result = run("add", str(tmp_path / "absent.json"))
    assert result.exit_code == 1
    assert "no such file" in result.stderr and "Traceback" not in result.output
    assert run("show", "nobody/nothing").exit_code == 1
    assert run("search", "x", "--recipe", "bm52").exit_code == 1
    assert run("remove", "nobody").exit_code == 1
    assert run("list", "nobody").exit_code == 1


def test_wrong_usage_gives_exit_code_two(file: Path) -> None:
    assert run("add").exit_code == 2
    assert run("search").exit_code == 2
    assert run("dance").exit_code == 2
    assert run("search", "x", "-k", "0").exit_code == 2
    assert run("add", str(file), str(file), "--name", "x").exit_code == 2


def test_partly_done_gives_exit_code_three_and_names_every_failure(file: Path, tmp_path: Path) -> None:
    with file.open("a") as stream:
        stream.write('{"description": "no name"}\n')
    result = run("add", str(file), str(tmp_path / "absent.json"))
    assert result.exit_code == 3
    assert "line 3" in result.stderr and "absent.json" in result.stderr
    shown = run("show", "garden")
    assert "line 3" in shown.output
    assert run("sync").exit_code == 3


def test_a_source_is_disabled_and_enabled(file: Path) -> None:
    run("add", str(file))
    run("disable", "garden")
    result = run("search", "garden/mow")
    assert "is disabled" in result.output and "garden/mow  " not in result.output
    assert "disabled" in run("list").output
    assert "disabled" in run("doctor").output
    run("enable", "garden")
    assert "Mow the lawn" in run("search", "mow").output


def test_the_journal_goes_out_and_comes_in(file: Path, tmp_path: Path) -> None:
    run("add", str(file))
    run("search", "mow")
    out = tmp_path / "journal.jsonl"
    assert "wrote 1 event " in run("journal", "export", str(out)).output
    assert run("journal", "export").stdout_bytes == out.read_bytes()
    other = ["--home", str(tmp_path / "other")]
    assert "1 new event\n" in run(*other, "journal", "import", str(out)).output
    assert "0 new events" in run(*other, "journal", "import", "-", input=out.read_bytes()).output
    bad = run(*other, "journal", "import", "-", input="nonsense\n")
    assert bad.exit_code == 3 and "line 1" in bad.stderr
    assert run("journal", "import", str(tmp_path / "absent")).exit_code == 1
    assert run("journal", "export", str(tmp_path / "no" / "folder")).exit_code == 1
    assert "1 search" in run("journal", "stats").output
    told = run("journal", "import", "-", "--json", input="nonsense\n" * 102)
    found = json.loads(told.stdout)
    assert (found["new"], found["bad_lines"], len(found["problems"])) == (0, 102, 100) and told.exit_code == 3
    assert "and 101 more bad lines" in told.stderr  # of a file without any event one line is shown


def test_the_home_option_works_before_and_after_the_command(file: Path, tmp_path: Path) -> None:
    run("--home", str(tmp_path / "h"), "add", str(file))
    assert "garden" in run("list", "--home", str(tmp_path / "h")).output
    assert "empty" in run("list").output


def test_doctor_reports_and_repairs(file: Path, tmp_path: Path) -> None:
    run("add", str(file))
    healthy = run("doctor")
    assert healthy.exit_code == 0 and "the store is healthy" in healthy.output and "(environment)" in healthy.output
    assert re.search(r"^  \d+ settings have their defaults: see  toolscout settings$", healthy.output, re.MULTILINE)
    with contextlib.closing(Store(tmp_path / "home")) as store, store.writing() as connection:
        connection.execute("UPDATE tools SET body = ? WHERE id = 'garden/mow'", (b"x",))
    sick = run("doctor")
    assert sick.exit_code == 1 and "garden/mow" in sick.stderr
    repaired = run("doctor", "--repair")
    assert repaired.exit_code == 0 and "dropped the damaged tool garden/mow" in repaired.output
    assert "garden: no change (2 tools)" in run("sync").output, "it was read again from its source"


def test_doctor_shows_the_encoder_and_says_why_it_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    row = json.loads(run("doctor", "--json").stdout)["encoder"]
    assert (row["name"], row["dimension"], row["max_tokens"]) == ("static", 256, 256) and "en" in row["languages"]
    assert row["problem"] is None
    shown = run("doctor").output
    languages = f"languages  {', '.join(row['languages'])}"
    for line in ("dimension  256", languages, "query prompt  none", "maximum    256 tokens of a text"):
        assert f"  {line}\n" in shown
    monkeypatch.setenv("TOOLSCOUT_ENCODER", "onnx:nowhere")
    absent = run("doctor", "--json")
    assert absent.exit_code == 0 and "manifest.json cannot be read" in json.loads(absent.stdout)["encoder"]["problem"]
    assert "manifest.json cannot be read" in run("doctor").output


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=[pytest.mark.full, pytest.mark.slow])])
def test_the_demo_indexes_and_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, whole: bool) -> None:
    import toolscout.cli.demo as demo

    if not whole:  # four modules of the standard library instead of all
        others = sys.stdlib_module_names - {"shutil", "zipfile", "json", "statistics", "urllib"}
        monkeypatch.setattr("toolscout.sources.python.SKIPPED_STDLIB", " ".join(others))
    monkeypatch.setattr(demo, "DEMO_LIBRARIES", ("numpy" if whole else "msgspec",))
    found = demo.importlib.util.find_spec
    monkeypatch.setattr(
        demo.importlib.util, "find_spec", lambda name, *more: None if name.startswith("mcp") else found(name, *more)
    )
    result = run("demo", "--home", str(tmp_path / "demo"))
    assert result.exit_code == 0, result.output
    assert "tools indexed" in result.output and "pip install 'toolscout[demo]'" in result.stderr
    answers = dict(re.findall(r"^(\S[^\n]+)\n\s*\n? +score .*?\n 1 +\S+ +(\S+)", result.stdout, re.M | re.S))
    for question, first in {
        "Will it rain in Oslo tomorrow, and do I have meetings outside?": "everyday/get_weather_forecast",
        "¿Lloverá mañana en Oslo?": "everyday/get_weather_forecast",
        "compress a folder into a zip archive": "stdlib/shutil.make_archive",
        "read a JSON file and turn it into Python objects": "stdlib/json.load",
        "what does `urllib.parse.urlsplit` do?": "stdlib/urllib.parse.urlsplit",
    }.items():
        assert answers[question] == first
    assert "everyday/list_calendar_events" in result.stdout
    assert result.stdout.count("no tool fits: ") == 1 == result.stdout.count("no tool needed: ")


def test_the_module_runs_as_a_program_and_stops_at_a_closed_pipe(file: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "TOOLSCOUT_HOME": str(tmp_path / "home")}
    run("add", str(file))
    done = subprocess.run(
        f"{sys.executable} -m toolscout list --tools --json | head -c 1",
        shell=True,
        capture_output=True,
        env=environment,
    )
    assert done.stdout == b"[" and b"Traceback" not in done.stderr


def test_an_interrupt_leaves_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "main", interrupted)
    with pytest.raises(SystemExit) as left:
        main([])
    assert left.value.code == 130
    assert capsys.readouterr().err.startswith("\ntoolscout: stopped. What was finished is kept")


def test_doctor_shows_chosen_settings_and_counts_the_others(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("add", str(file))
    monkeypatch.setenv("TOOLSCOUT_K", "7")
    shown = run("doctor").output
    assert "  7  (environment)" in shown and "journal_keep_days" not in shown
    assert "settings have their defaults: see  toolscout settings" in shown


def list_commands(group: click.Group, context: click.Context, words: tuple[str, ...] = ()) -> dict[str, click.Command]:
    """Every command that has no commands below it, by its name behind `toolscout`."""
    found: dict[str, click.Command] = {}
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context, **program.context_settings)
        if isinstance(command, click.Group):
            found |= list_commands(command, inner, (*words, name))
        else:
            found[" ".join((*words, name))] = command
    return found


def test_every_command_shows_examples_that_it_understands() -> None:
    commands = list_commands(program, click.Context(program, **program.context_settings))
    assert set(commands) == set(EXAMPLES)
    for name, command in commands.items():
        shown = command.get_help(click.Context(command, **program.context_settings | {"max_content_width": 200}))
        for line in EXAMPLES[name]:
            assert f"  toolscout {line}\n" in f"{shown}\n"
            words = shlex.split(line)
            assert words[: len(name.split())] == name.split()
            with command.make_context(name, words[len(name.split()) :], **program.context_settings):
                pass
