"""A hundred typical mistakes: each is answered in at most two lines that name the mend, without a traceback."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import fill

from tests_cli import run
from toolscout.errors import ConfigError
from toolscout.scout import Scout
from toolscout.settings import load_settings
from toolscout.sources.sandbox.servers import SANDBOX_FILE, read_sandboxes

MAX_LINES = 2
MAX_LINE_CHARS = 240

FILES = {
    "tools.json": json.dumps([{"name": "copy_file", "description": "Copy a file"}]),
    "empty.json": "",
    "object.json": "{}",
    "broken.json": '{\n  "name": "x",\n  "description": oops\n}\n',
    "comments.json": '{\n  /* two\n     lines */\n  "name": x\n}\n',
    "cut.json": '{"tools": [\n  {',
    "names.json": '[{"nam": "a"}]',
    "parameters.json": '[{"name": "a", "parameters": []}]',
    "number.json": "42",
    "text.txt": "this is no source",
    "queries.csv": "id,text\n1,hello\n",
    "program.py": "print('hello')\n",
    "broken.jsonl": '{"name": "a", "description": "b"}\n{"name": "b",}\n',
    "empty.jsonl": "",
    "broken.yaml": "openapi: 3.0.0\npaths:\n  /a: [1\n",
    "tabs.yaml": "openapi: 3.0.0\n\tx: 1\n",
    "paths.yaml": "openapi: 3.0.0\ninfo: {title: t, version: '1'}\n",
    "no-servers.json": '{"mcpServers": {}}',
    "journal.jsonl": '{"schema": 1, "event": "nonesuch"}\n',
    "baseline.json": "{}",
    "package.json": '{"name": "shop", "version": "1.0.0", "scripts": {"start": "node ."}}',
    "bare-command.json": '{"mcpServers": {"clock": {"command": "npx", "args": ["-y"]}}}',
    "policy-key.toml": '[[caller]]\nname = "ann"\nkey = "secret"\nallow = ["**"]\n',
    "policy-field.toml": '[[caller]]\nname = "ann"\nalow = ["**"]\n',
    "policy-pattern.toml": '[[caller]]\nname = "ann"\nallow = ["mail/send**"]\n',
    "policy-default.toml": 'default = "nobody"\n[[caller]]\nname = "ann"\nallow = ["**"]\n',
    "misspelt.json": '{"mcpServers": {"clock": {"comand": "x"}}}',
    "blocked.json": '{"mcpServers": {"locked": {"command": "./text.txt"}}}',
    "bundle.mcpb": "no zip",
    "profile-field.toml": '[[profile]]\nname = "office"\nalow = ["**"]\n',
}

#: Command line → what the answer names. `NAME=VALUE` before the command sets a variable.
MISTAKES = {
    # commands
    "serach mail": "Did you mean 'search'?",
    "lst": "Did you mean 'list'?",
    "ad tools.json": "Did you mean 'add'?",
    "lab bnech": "Did you mean 'bench'?",
    "bnech x": "Did you mean 'lab bench'?",
    "journal imprt x": "Did you mean 'import'?",
    "lab synth toolbnk": "'toolbank'",
    "nonesuch": "See  toolscout --help",
    "--hom x list": "Did you mean '--home'?",
    # options and arguments
    "search": "usage: toolscout search [OPTIONS] QUERY",
    "search send mail": "Put a query of several words into quotes",
    "search mail -k 0": "0 is not in the range x>=1",
    "search mail -k five": "'five' is not a whole number",
    "search mail -k": "Option '-k' requires an argument",
    "search mail --recpie bm25": "Did you mean '--recipe'?",
    "search mail --kk 3": "Did you mean '--kind'?",
    "why mail": "usage: toolscout why [OPTIONS] QUERY TOOL",
    "why mail send_email -k 0": "x>=1",
    "list --tool": "Did you mean '--tools'?",
    "remove": "Missing argument 'ID...'",
    "hide": "Name the tools by their ids, or use --list.",
    "doctor --fix": "toolscout doctor --help",
    "trust": "expected a folder DIR",
    "key": "Missing argument 'NAME'",
    "key ''": "Run  toolscout key NAME",
    "identity lst": "Did you mean 'list'?",
    "tenant add": "Missing argument 'NAME'",
    "migrate home": "Missing argument 'TO'",
    "export-encoder minilm": "Missing option '--out'",
    "search mail --kind tols": "is not one of 'tool', 'skill', 'agent'",
    "search mail --deadline soon": "'soon' is not a valid float",
    "approve --all mail": "expected names or --all, found both",
    "models push": "Missing argument 'MODEL'",
    "gateway --http --host 0.0.0.0": "give --policy FILE, or --host 127.0.0.1",
    "serve --host 0.0.0.0": "give --policy FILE, or --host 127.0.0.1",
    "train": "Missing argument 'RECIPE'",
    "train dpr": "Missing option '--data'",
    "bench": "Missing option '--recipe'",
    "lab compare a": "usage: toolscout lab compare",
    "lab transfer x": "Missing argument 'TARGET...'",
    "lab sweep x": "Missing option '--recipe'",
    "lab judge x": "is not one of 'queries', 'polish', 'answers'",
    "selftest --min-recall 80": "0<=x<=1",
    "lint --most 0": "x>=1",
    "gateway --print-config zed": "is not one of 'claude', 'claude-desktop', 'codex'",
    "gateway --print-config claude --policy nowhere.toml": "expected a policy file",
    "gateway --port 99999": "1<=x<=65535",
    "gateway --budget 10": "x>=200",
    "serve --port 99999": "0<=x<=65535",
    "journal prune": "Missing option '--older-than'",
    "journal prune --older-than yesterday": "such as 12h, 30d or 2w",
    "journal prune --older-than 5": "such as 12h, 30d or 2w",
    # names
    "search mail --recipe bm52": "did you mean 'bm25'?",
    "search mail --recipe nonesuch": "there are scout, scout-light",
    "search mail --recipe dpr": "Run  toolscout train dpr",
    "search mail --model nowhere": "expected the folder of a fitted model",
    "why mail send_emial": "Did you mean 'mail/send_email'?",
    "why mail/send_email 'write to ann'": "The query comes first:  toolscout why 'write to ann' mail/send_email",
    "enable mail/send_email": "That is a tool of mail. Single tools are taken out with",
    "why mail mail/send_emial": "Did you mean 'mail/send_email'?",
    "show send_emial": "Did you mean 'mail/send_email'?",
    "show hidden/tool": "hidden/tool is hidden. Show it again with  toolscout hide --undo hidden/tool",
    "why tool hidden/tool": "hidden/tool is hidden. Show it again with  toolscout hide --undo hidden/tool",
    "remove hidden/tool": "hidden/tool is hidden",
    "show Mail/Send_Email": "Did you mean 'mail/send_email'?",
    "show mail/": "Did you mean 'mail'?",
    "help": "See  toolscout --help",
    "show mial": "Did you mean 'mail'?",
    "show nonesuch": "see  toolscout list",
    "remove mial": "Did you mean 'mail'?",
    "remove mail/send_emial": "Did you mean 'mail/send_email'?",
    "hide send_emial": "Did you mean 'mail/send_email'?",
    "hide mail/send_email --undo": "See  toolscout hide --list",
    "enable mial": "Did you mean 'mail'?",
    "disable mial": "Did you mean 'mail'?",
    "sync mial": "Did you mean 'mail'?",
    "list mial": "Did you mean 'mail'?",
    "approve nonesuch": "run  toolscout approve",
    "promote nonesuch": "toolscout learn",
    "rollback": "Nothing to roll back: no model has been promoted.",
    "tenant add 'Bad Name!'": "Choose another name",
    "tenant remove nonesuch": "See  toolscout tenant list",
    "--home shared --tenant acm list": "Did you mean 'acme'?",
    "--home shared serve --host 0.0.0.0": "give --policy FILE, or --host 127.0.0.1",
    "--home shared gateway --http --host 0.0.0.0": "give --policy FILE, or --host 127.0.0.1",
    "--tenant nonesuch list": "Add it with  toolscout tenant add nonesuch",
    "identity forget ann mail": "See  toolscout identity list",
    "models push nonesuch hf://a/b": "Fit one with  toolscout learn",
    "models pull hf://": "expected hf://owner/name",
    "models pull http://127.0.0.1:1/m.zip": "a file that ends with .zip",
    "gateway --profile nonesuch": "See docs/use/profiles.md",
    "settings recip": "Did you mean 'recipe'?",
    "why mail weather": "That is a source. See its tools with  toolscout list weather",
    "selftest --recipe bm52": "did you mean 'bm25'?",
    "learn --recipe bm52": "did you mean 'bm25'?",
    # files
    "add": "expected a SOURCE or --discover",
    "add tools.jsn": "Did you mean 'tools.json'?",
    "add nowhere/tools.json": "there is no such file",
    "add ftp://example.com/tools.json": "Download it first",
    "add 'nonesuch-program --flag'": "See  toolscout add --help",
    "add registry:nonesuch": "registry:NAMESPACE/NAME",
    "policy nowhere.toml": "Begin with  toolscout key NAME",
    "profiles nowhere.toml": "Check the path",
    "add json": "add py:json",
    "add py:jsn": "Did you mean 'json'?",
    "add py:nonesuch_module": "PYTHONPATH",
    "add py:json:dmups": "did you mean 'dumps'?",
    "add py:": "expected py:module",
    "add empty.json": "it is empty",
    "add object.json": "found an empty object",
    "add broken.json": "line 3, column 18: invalid character",
    "add comments.json": "line 4, column 11: invalid character",
    "add cut.json": "it ends too early",
    "add names.json": "entry 1: expected a function schema with a name",
    "add parameters.json": "entry 1: expected a JSON Schema object",
    "add number.json": "it holds only a number",
    "add text.txt": "it holds only text",
    "add queries.csv": "it holds only text",
    "add program.py": "py:program",
    "add picture.png": "this is a binary file",
    "add latin.json": "save it as UTF-8",
    "add broken.jsonl": "line 2: expected JSON, found an error in column 14: trailing comma",
    "add empty.jsonl": "found an empty file",
    "add broken.yaml": "line 4, column 1",
    "add tabs.yaml": "line 2, column 1",
    "add paths.yaml": "operation under 'paths'",
    "add no-servers.json": "expected at least one server",
    "add folder": "expected a folder with corpus.jsonl or SKILL.md",
    "add tools.json --kind opanapi": "Did you mean 'openapi'?",
    "add tools.json --kind openapi": "expected an OpenAPI document",
    "add tools.json --kind mcp": 'expected servers under "mcpServers"',
    "add tools.json number.json --name both": "--name goes with one SOURCE",
    "models nowhere": "expected a folder of models",
    "journal import nowhere.jsonl": "Check its path",
    "journal import journal.jsonl": 'line 1: expected "event" of search, call, feedback',
    "journal export nowhere/x.jsonl": "Choose another file",
    "selftest --check nowhere.json": "toolscout selftest --write",
    "selftest --check baseline.json": "toolscout selftest --write",
    "train neighbours --data folder --out m": "expected a dataset folder with queries.jsonl",
    "train neighbours --data folder --out .": "Name a new folder",
    "gateway --config nowhere.json": "expected an mcpServers JSON file",
    "serve --results nowhere": "expected a folder",
    "serve --policy nowhere.toml": "expected a policy file",
    "trust nowhere": "expected a settings file",
    "lab bench nowhere -r bm25": "Set --data or TOOLSCOUT_DATA",
    "lab bench tolbench -r bm25 --data sets": "Did you mean 'toolbench'?",
    "lab bench nowhere -r bm25 --data sets": "The datasets there are: toolbench",
    "train neighbours --data tolbench --out m": "expected a dataset folder with queries.jsonl",
    "lab synth toolbank --out made -n 0 --dry-run": "x>=1",
    "lab synth tooldet --prompts p --queries q --out made -n 0": "x>=1",
    "lab compare a b --dataset toolbench --data sets": "Name the folder of the results with --out",
    "lab report folder": "toolscout lab bench DATASET",
    "--home localhost:5432/tools list": "localhost:5432 looks like a host with a port",
    "--home mysql://u@h/x list": "an address such as postgresql://",
    "--home tools.json list": "Choose another folder with --home",
    "add npx": "no package or script is named after npx: toolscout add 'npx …'",
    "add 'npx -y'": "no package or script is named after npx: toolscout add 'npx …'",
    "add 'sh -i'": "no package or script is named after sh: toolscout add 'sh …'",
    "add 'ls /nowhere'": "it wrote to stderr: ",
    "add package.json": "the manifest of a package describes no tools",
    "add bare-command.json --name bare": 'no package or script is named after npx: add it to "args"',
    f"add 'ls {'x' * 300}'": "it wrote to stderr: ",
    "add project": "project/.mcp.json'?",
    "add github.com/ann/shop": "Add the command that starts its server, such as 'npx -y PACKAGE'",
    "add https://github.com/ann/shop": "this is the address of a repository",
    "add git@github.com:ann/shop.git": "this is the address of a repository",
    "add 'sh -c \"echo Error: no key >&2; echo v20 >&2\"'": "it wrote to stderr: 'Error: no key'",
    "add ~nobody/tools.json": "there is no such file",
    "add hf://owner/name": "Download it first",
    "add registry:": "registry:NAMESPACE/NAME",
    "journal import picture.png": "line 1: expected a JSON object",
    "policy folder": "folder cannot be read: Is a directory",
    "policy policy-key.toml": "make one with  toolscout key NAME",
    "policy policy-field.toml": "Did you mean 'allow'?",
    "policy policy-pattern.toml": "expected ** to stand alone between slashes",
    "profiles profile-field.toml": "Did you mean 'allow'?",
    "gateway --config tools.json --print-config claude": 'expected servers under "mcpServers"',
    "gateway --result-budget -5": "x>=1000",
    "serve --rate -1": "x>=0",
    "migrate here there": "Name the folder of a home",
    "disable mail/send_email": "toolscout hide mail/send_email",
    "search mail --set nonsense": "expected KEY=VALUE",
    "search mail --set dpth=3": "There are: ",
    "search mail --encoder minlm --recipe hybrid": "Did you mean 'minilm'?",
    "search mail --llm-budget lots": "limits like calls=500",
    "settings k=5": "set TOOLSCOUT_K=5",
    "tenant add UPPER": "Choose another name",
    "add ''": "found an empty text",
    "search ' '": "found an empty text",
    "why '' mail/send_email": "found an empty text",
    "why mail/send_emial 'write to ann'": "The query comes first:  toolscout why 'write to ann' mail/send_email",
    "add https:///mcp": "Write it like https://HOST/mcp",
    "add cvs:queries.csv": "Install its package, then see  toolscout doctor",
    "add text.txt --kind mcp --server https://a.example": "Leave out --server",
    "add bundle.mcpb": "Pack or download it again",
    "add misspelt.json --name misspelt": "Did you mean 'command'?",
    "add blocked.json": "make it executable, or name the program that runs it",
    "list mail/send_email": "See it with  toolscout show mail/send_email",
    "--home nothing lint": "Add a source with  toolscout add SOURCE",
    "policy policy-default.toml": "The callers are: ann",
    "policy latin.json": "save it as UTF-8",
    "trust text.txt": "Name the folder of one",
    "gateway --config cut.json": "it ends too early",
    "search mail --show": "Did you mean one of '--home'",
    # settings
    "TOOLSCOUT_INDEX=nonesuch search mail --recipe hybrid": "auto, exact, ann",
    "TOOLSCOUT_GATEWAY_BUDGET=-5 list": "at least 200",
    "TOOLSCOUT_MCP_TIMEOUT=-1 list": "expected a number above 0",
    "TOOLSCOUT_TELEMETRY=foo list": "like http://127.0.0.1:4318",
    "TOOLSCOUT_DEPENDENCIES=a list": "expected TOOL=PREREQUISITE",
    "TOOLSCOUT_K=five search mail": "expected a whole number, found 'five'",
    "TOOLSCOUT_K=0 search mail": "expected a number above 0",
    "TOOLSCOUT_RECIPE=bm52 search mail": "did you mean 'bm25'?",
    "TOOLSCOUT_TRUST=maybe search mail": "expected pin or off",
    "TOOLSCOUT_JOURNAL=perhaps search mail": "expected true or false",
    "TOOLSCOUT_HOME=/proc/nowhere list": "Choose another folder with --home",
    "TOOLSCOUT_HOME=postgresql://127.0.0.1:1/x list": "Check that it runs",
    "TOOLSCOUT_FALSE_REJECTS=2 search mail": "expected a number from 0",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files of all kinds, and a home with the toy tools."""
    made = tmp_path_factory.mktemp("mistakes")
    for name, text in FILES.items():
        (made / name).write_text(text)
    (made / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (made / "latin.json").write_bytes(b'{"name": "\xff"}')
    (made / "folder").mkdir()
    (made / "project").mkdir()
    (made / "project" / ".mcp.json").write_text('{"mcpServers": {}}')
    dataset = made / "sets" / "toolbench"
    dataset.mkdir(parents=True)
    (dataset / "qrels").mkdir()
    (dataset / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n")
    (dataset / "queries.jsonl").write_text("")
    (dataset / "corpus.jsonl").write_text("")
    with Scout(made / "home", recipe="bm25") as scout:
        fill(scout)
        scout.add([{"name": "tool", "description": "A tool"}], name="hidden")
        scout.hide(["hidden/tool"])
    assert run("--home", str(made / "shared"), "tenant", "add", "acme").exit_code == 0
    return made


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TOOLSCOUT_HOME", str(folder / "home"))
    monkeypatch.setenv("TOOLSCOUT_RECIPE", "bm25")
    monkeypatch.delenv("TOOLSCOUT_DATA", raising=False)
    yield folder


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_answered_in_two_lines_that_name_the_mend(
    here: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = shlex.split(line)
    while "=" in words[0]:
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    result = run(*words)
    assert result.exit_code in (1, 2, 3), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    said = [text for text in result.stderr.splitlines() if text and not text.endswith(" …")]  # without progress
    said = [text for text in said if not text.startswith("toolscout: ")]  # nor the log of a service that starts
    assert 1 <= len(said) <= MAX_LINES, said
    assert max(map(len, said)) <= MAX_LINE_CHARS, said
    assert said[0].startswith(("error: ", "warning: ")), said
    assert all(text.startswith(("hint: ", "warning: ")) for text in said[1:]), "one failure, one message"
    assert MISTAKES[line] in " ".join(text.split(": ", 1)[1] for text in said), said
    assert "Traceback" not in result.output


@pytest.mark.parametrize("place", ["results", "results/a/set", "results/a/set/bm25.json"])
def test_report_takes_what_bench_wrote(tmp_path: Path, place: str) -> None:
    for dataset in ("a/set", "elsewhere"):
        metrics = {"recall@5": 0.5, "ndcg@5": 0.4, "comp@5": 0.3}
        result = {"dataset": dataset, "recipe": "bm25", "label": "bm25", "encoder": None, "split": "test", "seed": 0,
                  "n_queries": 3, "n_tools": 4, "metrics": metrics}  # fmt: skip
        file = tmp_path / "results" / dataset / "bm25.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(result))
    told = run("lab", "report", str(tmp_path / place), "--out", str(tmp_path / "out"))
    page = (tmp_path / "out" / "report.html").read_text()
    assert told.exit_code == 0 and "a/set" in page and ("elsewhere" in page) is (place == "results")


@pytest.mark.parametrize(
    ("content", "mend"),
    [
        (b"[search]\nk = 3\n", "Settings are in no table: leave out the line [search]"),
        (b"zzz = 3\n", "See  toolscout settings"),
        (b"# caf\xe9\nk = 3\n", "save it as UTF-8"),
    ],
)
def test_a_mistake_in_the_settings_file_names_the_mend(
    here: Path, tmp_path: Path, content: bytes, mend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toolscout.toml").write_bytes(content)
    monkeypatch.chdir(tmp_path)
    result = run("search", "mail")
    assert result.exit_code == 1 and mend in result.stderr
    assert max(map(len, result.stderr.splitlines())) <= MAX_LINE_CHARS


def test_a_variable_that_is_like_a_setting_is_warned_of_once(here: Path, caplog: pytest.LogCaptureFixture) -> None:
    environ = {"TOOLSCOUT_ENCODR": "static", "TOOLSCOUT_LLM_KEY": "x", "TOOLSCOUT_CREDENTIAL_PAY_KEY": "x"}
    load_settings(environ=environ)
    load_settings(environ=environ)
    expected = "toolscout: the variable TOOLSCOUT_ENCODR is no setting. Did you mean TOOLSCOUT_ENCODER?"
    assert [record.message for record in caplog.records] == [expected]


def test_a_taken_port_is_said_before_an_address(here: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        result = run("gateway", "--http", "--port", str(listener.getsockname()[1]))
    assert result.exit_code == 1 and "give another --port" in result.stderr
    assert "serving at" not in result.stderr


def test_the_list_is_long_enough() -> None:
    assert len(MISTAKES) >= 200


def test_a_recipe_that_lacks_its_model_is_refused_before_an_encoder_is_loaded(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, settings: object) -> None:
        raise AssertionError(f"{name} was loaded")

    monkeypatch.setattr("toolscout.encoders.load", refuse)
    result = run("search", "mail", "--recipe", "dpr")
    assert result.exit_code == 1 and "Run  toolscout train dpr" in result.stderr


def test_an_empty_list_of_tools_is_no_error_and_said(here: Path) -> None:
    (here / "list.json").write_text("[]")
    result = run("add", "list.json")
    assert result.exit_code == 0 and "the file holds an empty list, so it adds no tool" in result.stdout
    assert run("remove", "list").exit_code == 0


def test_a_source_that_failed_is_named_once_with_the_reason(here: Path, tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"clock": {"command": "no-such-program"}}}))
    result = run("--home", str(tmp_path / "home"), "add", str(tmp_path / "mcp.json"))
    assert result.stdout.splitlines() == [
        "note: clock: the catalogue has no tools of it yet; correct what is wrong, then run  toolscout sync clock  "
        "(or  toolscout remove)",
    ]
    [reason] = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert reason.startswith("error: clock: ") and reason.count("clock") == 1 and "no-such-program" in reason
    checked = run("--home", str(tmp_path / "home"), "doctor").stdout
    assert "  source clock: error: expected a command" in checked


@pytest.mark.parametrize("locator", [pytest.param("https://127.0.0.1:9/x", marks=pytest.mark.net), "npx", "false"])
def test_a_source_that_was_never_read_leaves_nothing_behind(here: Path, tmp_path: Path, locator: str) -> None:
    home = ("--home", str(tmp_path / "home"))
    failed = run(*home, "add", locator)
    assert failed.exit_code == 1 and max(map(len, failed.stderr.splitlines())) <= MAX_LINE_CHARS
    assert json.loads(run(*home, "list", "--json").stdout) == []


def test_a_settings_file_that_cannot_be_read_is_named_once(tmp_path: Path) -> None:
    for name in ("toolscout.toml", SANDBOX_FILE):
        (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match=r"toolscout\.toml: the settings file cannot be read: Is a directory$"):
        load_settings(file=tmp_path / "toolscout.toml")
    with pytest.raises(ConfigError, match=r"\.toml: the sandboxes of servers cannot be read: Is a directory$"):
        read_sandboxes(tmp_path)


def test_a_source_that_was_read_before_stays_when_it_fails(here: Path, tmp_path: Path) -> None:
    server = tmp_path / "server.py"
    server.write_text((Path(__file__).parent / "servers" / "busy.py").read_text())
    line, home = f"{shlex.quote(sys.executable)} {shlex.quote(str(server))}", ("--home", str(tmp_path / "home"))
    assert run(*home, "add", line, "--name", "busy").exit_code == 0
    server.write_text("raise SystemExit(1)")
    assert run(*home, "add", line, "--name", "busy").exit_code == 1
    [source] = json.loads(run(*home, "list", "--json").stdout)
    assert source["state"] == "error" and source["tools"] > 0


def test_a_server_that_fails_says_its_last_words_within_the_line(here: Path, tmp_path: Path) -> None:
    words = f"import sys, time; sys.stderr.write('{'a long reason ' * 40}\\n'); time.sleep(60)"
    home = ("--home", str(tmp_path / "home"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLSCOUT_MCP_TIMEOUT", "2")
        failed = run(*home, "add", f'{shlex.quote(sys.executable)} -c "{words}"', "--name", "slow")
    [reason] = [text for text in failed.stderr.splitlines() if text.startswith("error:")]
    assert len(reason) <= MAX_LINE_CHARS and "a long reason a long" in reason and "set mcp_timeout" in reason


def test_a_document_keeps_the_name_that_its_source_got_first(here: Path, tmp_path: Path) -> None:
    file = tmp_path / "api.json"
    content = {"openapi": "3.0.0", "info": {"title": "Shop API"}, "paths": {"/a": {"get": {"operationId": "buy"}}}}
    file.write_text(json.dumps(content))
    home = ("--home", str(tmp_path / "home"))
    assert "shop: 1 new" in run(*home, "add", str(file)).stdout
    file.write_text(json.dumps({**content, "info": {"title": "Market API"}}))
    assert run(*home, "sync").exit_code == 0
    assert [tool["id"] for tool in json.loads(run(*home, "list", "--tools", "--json").stdout)] == ["shop/buy"]


def test_one_thing_is_written_in_the_singular(here: Path, tmp_path: Path) -> None:
    home = ("--home", str(tmp_path / "one"))
    added = run(*home, "add", "tools.json")
    assert "1 tool in the catalogue\n" in added.stdout
    assert "1 tool in 1 source\n" in run(*home, "list").stdout
    assert "1 tool in " in run(*home, "search", "copy a file").stdout
    assert "no change (1 tool)" in run(*home, "sync").stdout
    assert "1 tool in 1 source, generation" in run(*home, "doctor").stdout
    assert "removed the source tools with 1 tool\n" in run(*home, "remove", "tools").stdout


def test_an_id_is_never_cut(here: Path, tmp_path: Path) -> None:
    name = "a_tool_with_a_name_" + "that_is_long_" * 12
    (tmp_path / "long.json").write_text(json.dumps([{"name": name, "description": "Sends a letter. " * 30}]))
    home = ("--home", str(tmp_path / "long"))
    assert run(*home, "add", str(tmp_path / "long.json")).exit_code == 0
    for command in (("list", "--tools"), ("search", "send a letter"), ("search", "send a letter", "--explain")):
        assert f"long/{name} " in run(*home, *command).stdout


def test_a_few_queries_recommend_no_recipe(here: Path, tmp_path: Path) -> None:
    home = ("--home", str(tmp_path / "one"))
    assert run(*home, "add", "tools.json").exit_code == 0
    told = run(*home, "selftest", "--recipe", "bm25")
    assert told.exit_code == 0 and "cannot tell which recipe is better, so none is recommended" in told.stdout
    assert json.loads(run(*home, "selftest", "--json").stdout)["recommended"] is None


def test_a_dry_run_counts_no_queries_that_it_does_not_write(here: Path) -> None:
    told = run("lab", "synth", "toolbank", "--out", "made", "-n", "3", "--dry-run")
    assert told.exit_code == 0 and "would send about" in told.output
    assert "estimating queries" in told.stderr and "dropped" not in told.output


def test_a_command_that_is_stopped_says_what_to_do(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Scout, "search", interrupt)
    stopped = run("search", "mail")
    assert stopped.exit_code == 130
    assert stopped.stderr.strip() == "toolscout: stopped. What was finished is kept; run the command again to go on."


def test_settings_say_what_they_mean_and_where_they_come_from(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from toolscout.settings import list_settings

    monkeypatch.chdir(here / "folder")
    (here / "folder" / "toolscout.toml").write_text("k = 3\n")
    rows = {row["name"]: row for row in json.loads(run("settings", "--json").stdout)}
    assert list(rows) == list(list_settings())
    assert (rows["k"]["value"], rows["k"]["origin"]) == ("3", "toolscout.toml")
    assert (rows["recipe"]["value"], rows["recipe"]["origin"]) == ("bm25", "TOOLSCOUT_RECIPE")
    assert (rows["model"]["value"], rows["model"]["origin"]) == ("none", "default")
    assert all(row["meaning"] and row["untrusted_file"] for row in rows.values())
    shown = run("settings", "k").stdout
    assert "tools in an answer" in shown and "false_rejects" not in shown
    assert os.environ["TOOLSCOUT_RECIPE"] == "bm25"
