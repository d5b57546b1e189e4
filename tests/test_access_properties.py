"""Whatever the policy, the catalogue and the query: nobody finds, or hears of, what the policy hides."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from homes_in_postgres import name_home
from toolscout.home.catalogue.store import Origin
from toolscout.home.database import open_home
from toolscout.location import Home
from toolscout.scout import Scout
from toolscout.trust.policy import Rules
from toolscout.types import Hints, Tool

SOURCES = ["mail", "ﬁles", "Ｃrm", "pay-é", "ops"]
NAMES = [
    "send",
    "Send",
    "ｓend",
    "delete_file",
    "delete_ﬁle",
    "getBalance",
    "get balance",
    "re\u0301sume\u0301",
    "a/b",
    "copy",
]
Crowd = tuple[Scout, list[Tool]]
FORMS = ("NFC", "NFD", "NFKC", "NFKD")


OURS = "money, letters, folders"
THEIRS = "their-secret"  # in every text of the other tenant


@pytest.fixture(scope="module", params=["folder", "postgres"])
def crowded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    """Sources that are served, disabled and partly in quarantine, with names that resemble each other.

    They belong to one tenant of a home. Another one has tools of the same ids, and more.
    """
    root: Home = tmp_path_factory.mktemp("crowded")
    if request.param == "postgres":
        root = request.getfixturevalue("postgres_server").new_home()
    for tenant in ("ours", "theirs"):
        open_home(root).add_tenant(tenant)
    where = name_home(root)
    with (
        pytest.MonkeyPatch.context() as patch,
        Scout(where, tenant="theirs", recipe="bm25", journal=False) as other,
        Scout(where, tenant="ours", recipe="bm25", journal=False) as scout,
    ):
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        _fill(other, [*SOURCES, THEIRS], THEIRS)
        yield scout, _fill(scout, SOURCES, OURS)


def _fill(scout: Scout, sources: list[str], text: str) -> list[Tool]:
    everything: list[Tool] = []
    for number, source in enumerate(sources):
        tools = [
            Tool(
                id=f"{source}/{name}",
                name=name,
                path=("team", f"t{place % 3}"),
                description=f"{name} for {source}: {text}",
                hints=Hints(read_only=(None, True, False)[place % 3]),
            )
            for place, name in enumerate(NAMES)
        ]
        everything += tools
        origin = Origin(source, "mcp")
        scout.store.put_source(origin, source, kind="mcp", tools=tools)
        if number == 1:
            scout.store.set_enabled(source, False)
        if number == 2:
            scout.store.put_source(
                origin, source, kind="mcp", state="disabled", message=f"{source} is off in /etc/x.json"
            )
        if number == 3:
            changed = [Tool(id=each.id, name=each.name, path=each.path, description="new") for each in tools]
            scout.store.put_source(origin, source, kind="mcp", tools=changed)
    return everything


segments = st.sampled_from(["*", "**", "team", "t0", "t1", "send", "delete_*", "get*", "a", "b", *NAMES[:3]])
patterns = st.one_of(
    st.just("**"),
    st.tuples(st.sampled_from([*SOURCES, "*"]), st.lists(segments, min_size=1, max_size=3)).map(
        lambda parts: "/".join([parts[0], *parts[1]])
    ),
    st.tuples(st.sampled_from(SOURCES), st.sampled_from(NAMES)).map("/".join),
)
policies = st.builds(
    Rules,
    st.frozensets(patterns, max_size=4),
    st.frozensets(patterns, max_size=3),
    st.booleans(),
)


@st.composite
def queries(draw: st.DrawFn, *more: str) -> str:
    """A query that tries to reach some tool by name, in some spelling and some form."""
    asked = []
    for _ in range(draw(st.integers(1, 3))):
        source, name = draw(st.sampled_from([*more] or SOURCES)), draw(st.sampled_from(NAMES))
        text = draw(st.sampled_from([name, f"{source}/{name}", source, f"{source} {name}", f"{source}/team/t0/{name}"]))
        text = unicodedata.normalize(draw(st.sampled_from(FORMS)), text)
        asked.append(draw(st.sampled_from([str.upper, str.lower, str.casefold, str.swapcase, str]))(text))
    frame = draw(st.sampled_from(["{}", "`{}`", '"{}"', "please run {} now", "select:{}", "SELECT : '{}'", "money {}"]))
    return frame.format(draw(st.sampled_from([",", " ", " and "])).join(asked))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rules=policies, query=queries(), k=st.integers(1, 50))
def test_nobody_finds_or_hears_of_what_the_policy_hides(crowded: Crowd, rules: Rules, query: str, k: int) -> None:
    scout, everything = crowded
    found = scout.search(query, k, visible=rules)
    hidden = [tool for tool in everything if not rules(tool)]
    assert all(rules(tool) for tool in scout.store.tools(found.ids))
    assert {hit.tool.id for hit in found.hits if hit.tool} == set(found.ids)
    said = f"{found.reason} {[step.note for step in found.trace]}".replace(query, "")
    echoed = query.casefold()
    for tool in hidden:
        assert tool.id not in said or (tool.id.casefold() in echoed and "is called" in said)
    for source in SOURCES:
        if all(tool in hidden for tool in everything if tool.source == source):
            assert source not in said or (source.casefold() in echoed and "is called" in said)
    assert "/etc/x.json" not in said
    assert all(THEIRS not in hit.tool.description for hit in found.hits if hit.tool)
    assert THEIRS not in said


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scout]:
    """A home that holds the same sources, and has no other tenant."""
    with Scout(tmp_path_factory.mktemp("alone"), recipe="bm25", journal=False) as scout:
        _fill(scout, SOURCES, OURS)
        yield scout


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rules=st.none() | policies, query=queries(THEIRS, *SOURCES), k=st.integers(1, 50))
def test_what_another_tenant_has_changes_nothing_that_one_gets(
    crowded: Crowd, alone: Scout, rules: Rules | None, query: str, k: int
) -> None:
    answers = [scout.search(query, k, visible=rules) for scout in (crowded[0], alone)]
    contents = [
        ([(hit.tool, hit.score) for hit in found.hits], found.reason, [step.note for step in found.trace])
        for found in answers
    ]
    assert contents[0] == contents[1]


@pytest.fixture(scope="module", params=["pgvector", "milvus"])
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Scout, Scout]]:
    """A tenant whose vectors share an engine with those of another one, and the same tools without an engine."""
    root: Home = tmp_path_factory.mktemp("engines") / "home"
    index = "pgvector"
    if request.param == "pgvector":
        root = request.getfixturevalue("postgres_server").new_home()
    else:
        pytest.importorskip("milvus_lite")
        index = f"milvus:{tmp_path_factory.mktemp('milvus') / 'vectors.db'}"
    for tenant in ("ours", "theirs"):
        open_home(root).add_tenant(tenant)
    where = name_home(root)
    with (
        pytest.MonkeyPatch.context() as patch,
        Scout(where, tenant="theirs", index=index, recipe="dense", journal=False) as other,
        Scout(where, tenant="ours", index=index, recipe="dense", journal=False) as scout,
        Scout(tmp_path_factory.mktemp("exact"), index="exact", recipe="dense", journal=False) as reference,
    ):
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        _fill(other, [*SOURCES, THEIRS], THEIRS)
        for opened in (scout, reference):
            _fill(opened, SOURCES, OURS)
        other.search("money")  # it has written its vectors
        yield scout, reference


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rules=st.none() | policies, query=queries(THEIRS, *SOURCES), k=st.integers(1, 50))
def test_what_another_tenant_has_in_the_engine_changes_nothing_that_one_gets(
    engines: tuple[Scout, Scout], rules: Rules | None, query: str, k: int
) -> None:
    found, right = [scout.search(query, k, visible=rules) for scout in engines]
    assert found.ids == right.ids and found.reason == right.reason
    assert [hit.score for hit in found.hits] == pytest.approx([hit.score for hit in right.hits], abs=1e-5)
    assert all(rules is None or rules(hit.tool) for hit in found.hits if hit.tool)
    assert all(THEIRS not in hit.tool.description for hit in found.hits if hit.tool)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rules=policies, query=queries())
def test_what_one_may_not_see_changes_nothing_that_is_said(crowded: Crowd, rules: Rules, query: str) -> None:
    """Asking for a hidden tool and for one that does not exist gives the same answer, but for the echoed name."""
    scout, everything = crowded
    target = next((tool for tool in everything if not rules(tool)), None)
    if target is None or any(rules(tool) for tool in everything if tool.name.casefold() == target.name.casefold()):
        return
    there = scout.search(f"select:{target.id}", visible=rules)
    absent = scout.search("select:nobody/nothing", visible=rules)
    assert there.ids == absent.ids == ()
    assert (there.reason or "").replace(target.id, "X") == (absent.reason or "").replace("nobody/nothing", "X")


def test_a_policy_that_lets_something_through_lets_the_search_find_it(crowded: Crowd) -> None:
    scout, _ = crowded
    rules = Rules(frozenset({"mail/*"}), frozenset({"mail/delete_file"}))
    found = scout.search("money", 50, visible=rules)
    assert "mail/send" in found.ids and {"mail/delete_file", "mail/delete_ﬁle"}.isdisjoint(found.ids)
    assert scout.search("ops/send", visible=Rules(frozenset({"ops/**"}))).ids[:2] == ("ops/Send", "ops/send")
    waits = scout.search("pay-é/copy", visible=Rules(frozenset({"pay-é/copy"})))
    assert waits.reason == "pay-é/copy waits for approval: its definition changed"
    off = scout.search("Ｃrm/copy", visible=Rules(frozenset({"Ｃrm/copy"})))
    assert off.reason == "Ｃrm/copy is not searched: source 'Ｃrm' is disabled"
