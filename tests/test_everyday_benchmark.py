"""benchmarks/everyday.py: rules find the faults that their rubrics name, and every request has a rule."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from scripts_loader import load_script
from toolscout.types import Hit, Search

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
JUDGED = {"a": "read", "b": "write", "c": "read write", "d": "", "e": "harm"}


@pytest.fixture(scope="module")
def everyday() -> ModuleType:
    return load_script("benchmarks/everyday.py")


def answer(ids: str, **fields: Any) -> Search:
    return Search(query="q", hits=tuple(Hit(id=one, score=1.0) for one in ids), **fields)


@pytest.mark.parametrize(
    ("rule", "ids", "fields", "faults"),
    [
        ({"needs": {"read": 1}}, "ad", {}, []),
        ({"needs": {"read": 1}}, "da", {}, ["no read in the first 1"]),
        ({"needs": {"read": 2, "write": 2}}, "dc", {}, []),
        ({"needs": {"harm|write": 2}}, "ab", {}, []),
        ({"needs": {"harm|write": 2}}, "adb", {}, ["no harm|write in the first 2"]),
        ({"needs": {"read": 1}, "or_uncovered": ["read"]}, "d", {"uncovered": ("a step",)}, []),
        ({"needs": {"read": 1}, "or_uncovered": ["read"]}, "d", {}, ["no read in the first 1"]),
        ({"fills": {"read": 2}}, "ac", {}, []),
        ({"fills": {"read": 2}}, "abc", {}, ["not only read in the first 2"]),
        ({"fills": {"read": 2}}, "a", {}, ["not only read in the first 2"]),
        ({"outside": {"harm": 2}}, "ade", {}, []),
        ({"outside": {"harm": 2}}, "aed", {}, ["harm in the first 2"]),
        ({"never_above": [["harm", "read"]]}, "ae", {}, []),
        ({"never_above": [["harm", "read"]]}, "ea", {}, ["harm above read"]),
        ({"never_above": [["harm", "read"]]}, "d", {}, []),
        ({"steps_served": 2}, "a", {"steps": ("x", "y")}, []),
        ({"steps_served": 2}, "a", {"steps": ("x", "y"), "uncovered": ("y",)}, [
            "2 steps, 1 uncovered, where 2 are served"]),
        ({"answer": "no_tool_fits"}, "", {"kind": "no_tool_fits"}, []),
        ({"answer": "no_tool_fits"}, "", {"kind": "no_tool_needed"}, ["no_tool_needed instead of no_tool_fits"]),
    ],
)  # fmt: skip
def test_a_rule_finds_the_faults_of_an_answer(
    everyday: ModuleType, rule: dict[str, Any], ids: str, fields: dict[str, Any], faults: list[str]
) -> None:
    assert everyday.find_faults(answer(ids, **fields), rule, JUDGED) == faults


def test_a_tool_without_judgement_leaves_a_request_open_only_where_the_rule_looks(everyday: ModuleType) -> None:
    rule = {"needs": {"read": 1}, "outside": {"harm": 2}}
    assert everyday.list_open_tools(answer("ax"), rule, JUDGED) == ["x"]
    assert everyday.list_open_tools(answer("adx"), rule, JUDGED) == []
    requests = [{"_id": "1", "kind": "single"}, {"_id": "2", "kind": "compound"}]
    judgements = {one: {"rule": rule, "tools": JUDGED} for one in ("1", "2")}
    counted = everyday.count_right(requests, [answer("ax"), answer("ad")], judgements)
    assert (counted["right"], counted["open"], counted["wrong"]) == (1, {"1": ["x"]}, {})


def test_every_request_has_a_rule_whose_roles_some_tool_plays(everyday: ModuleType) -> None:
    lines = (BENCHMARKS / "suites" / "everyday.jsonl").read_text(encoding="utf-8").splitlines()
    judgements = json.loads((BENCHMARKS / "suites" / "everyday_judgements.json").read_text(encoding="utf-8"))
    assert set(judgements) == {json.loads(line)["_id"] for line in lines}
    for name, entry in judgements.items():
        rule = entry["rule"]
        played = {role for roles in entry["tools"].values() for role in roles.split()}
        wanted = {one for need in (*rule.get("needs", ()), *rule.get("fills", ())) for one in need.split("|")}
        assert rule and wanted - set(rule.get("or_uncovered", ())) <= played, name
