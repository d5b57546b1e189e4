"""Propagation and COLT's second stage against loops written out from the papers' equations."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from toolscout_lab.rankers.shared.tuning import Graphs  # noqa: E402
from toolscout_lab.training import Plan, train  # noqa: E402
from toolscout_lab.training.collaboration import Bipartite, Collaboration, mean_of  # noqa: E402

LEFT, RIGHT = np.array([0, 0, 1, 2, 2, 2]), np.array([0, 1, 1, 0, 1, 2])
SHAPE = Graphs(
    layers=1,
    scaled=False,
    dropped=0.0,
    queries="free",
    loss="colt",
    length=0,
    sharpness=1.0,
    contrast=0.04,
    temperature=0.1,
)
GOLD = [np.array([0, 1]), np.array([2]), np.array([0, 1]), np.array([1, 3])]
SCENES = np.array([0, 1, 0, 2])


def by_hand(left: Any, right: Any, layers: int, scaled: bool) -> tuple[Any, Any]:
    """LightGCN node by node."""
    edges = list(zip(LEFT, RIGHT, strict=True))
    sums, last = [left.copy(), right.copy()], (left, right)
    for layer in range(1, layers + 1):
        fresh = np.zeros_like(left), np.zeros_like(right)
        for one, other in edges:
            n_left = sum(each == one for each, _ in edges)
            n_right = sum(each == other for _, each in edges)
            weight = 1 / (np.sqrt(n_left) * np.sqrt(n_right))
            fresh[0][one] += weight * last[1][other]
            fresh[1][other] += weight * last[0][one]
        if scaled:
            fresh = fresh[0] / (layer + 1), fresh[1] / (layer + 1)
        last = fresh
        for side in (0, 1):
            norms = np.linalg.norm(last[side], axis=1, keepdims=True)
            sums[side] += last[side] / np.maximum(norms, 1e-12) if scaled else last[side]
    return sums[0], sums[1]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("layers", [0, 1, 3])
def test_propagation_is_what_the_equations_say(layers: int, scaled: bool) -> None:
    random = np.random.default_rng(0)
    left, right = random.normal(size=(4, 5)).astype(np.float32), random.normal(size=(4, 5)).astype(np.float32)
    found = Bipartite(LEFT, RIGHT, (4, 4)).propagate(
        torch.from_numpy(left), torch.from_numpy(right), layers, scaled=scaled
    )
    for one, other in zip(found, by_hand(left, right, layers, scaled), strict=True):
        np.testing.assert_allclose(one.numpy(), other, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found[0][3].numpy(), left[3])  # no edge: layer 0 alone


def test_a_thinned_graph_has_the_degrees_of_what_is_left() -> None:
    graph = Bipartite(np.repeat(np.arange(100), 10), np.tile(np.arange(10), 100), (100, 10))
    thin = graph.drop_edges(0.2, np.random.default_rng(0))
    assert 740 < len(thin.left) < 860
    again = Bipartite(thin.left, thin.right, graph.shape)
    rows = torch.ones(100, 1), torch.ones(10, 1)
    assert torch.equal(thin.propagate(*rows, 1)[0], again.propagate(*rows, 1)[0])
    assert graph.drop_edges(0.0, np.random.default_rng(0)) is graph


def test_a_group_is_the_mean_of_its_members() -> None:
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [4.0, 4.0]])
    found = mean_of(np.array([0, 0, 2]), np.array([0, 1, 2]), 3, rows)
    np.testing.assert_allclose(found.numpy(), [[0.5, 0.5], [0, 0], [4, 4]])


def task(**changes: Any) -> Collaboration:
    random = np.random.default_rng(0)
    rows = [random.normal(size=(n, 6)).astype(np.float32) for n in (4, 5)]
    queries, tools = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in rows)
    dev = queries[0]
    made = Collaboration(
        queries=queries,
        tools=tools,
        gold=GOLD,
        scene_of=SCENES,
        evaluate=lambda found: {"ndcg@5": float(found[0] @ dev)},
        shape=msgspec.structs.replace(SHAPE, **changes),
        identity="test",
    )
    made.begin(0, random)
    return made


def cosine(one: Any, other: Any) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def test_the_loss_of_a_step_is_that_of_the_papers_equations() -> None:
    made = task()
    q, t = made.queries.detach().numpy(), made.tools.detach().numpy()
    scenes = [GOLD[0], GOLD[1], GOLD[3]]
    s = np.stack([t[each].mean(axis=0) for each in scenes])  # eq. 2
    in_scene, by_scene = q.copy(), s.copy()
    for query, scene in enumerate(SCENES):  # eqs. 1, 3; a query has one scene
        in_scene[query] += s[scene] / np.sqrt((scene == SCENES).sum())
        by_scene[scene] += q[query] / np.sqrt((scene == SCENES).sum())
    in_tool, tools = q.copy(), t.copy()
    uses = np.bincount(np.concatenate(GOLD), minlength=5)
    for query, gold in enumerate(GOLD):  # eqs. 4, 5
        for tool in gold:
            in_tool[query] += t[tool] / np.sqrt(len(gold) * uses[tool])
            tools[tool] += q[query] / np.sqrt(len(gold) * uses[tool])
    pooled = np.stack([tools[each].mean(axis=0) for each in scenes])  # eq. 6
    rows, used = np.array([0, 3]), [0, 1, 2, 3]  # nobody uses the fifth tool
    total = 0.0
    for row in rows:
        scores = np.array([cosine(in_scene[row], tools[k]) + cosine(in_tool[row], tools[k]) for k in used])  # eq. 7
        shares = np.exp(scores) / np.exp(scores).sum()
        wanted = np.isin(used, GOLD[row]) / len(GOLD[row])
        total -= (wanted * np.log(shares) + (1 - wanted) * np.log(1 - shares)).sum() / len(rows)  # eqs. 10-12
    for one, other in ((in_scene[rows], in_tool[rows]), (by_scene[[0, 2]], pooled[[0, 2]])):  # eqs. 8, 9
        table = np.exp([[cosine(a, b) / 0.1 for b in other] for a in one])
        total -= 0.04 * np.log(np.diag(table) / table.sum(axis=1)).mean()
    assert made.backward(rows, np.random.default_rng(0)) == pytest.approx(total, rel=1e-4)


def test_a_list_holds_all_golds_and_others_that_somebody_uses() -> None:
    made = task(length=3)
    columns, listed, gold = made.draw_lists(np.array([0, 1, 3]), np.random.default_rng(1))
    assert listed is not None and listed.shape == (3, 3)
    for row, marks, query in zip(listed, gold, (0, 1, 3), strict=True):
        tools = columns[row]
        assert sorted(tools[marks]) == sorted(GOLD[query])
        assert len(set(tools)) == 3 and 4 not in tools
    assert task(length=99).draw_lists(np.array([0]), np.random.default_rng(0))[1] is None


def test_a_query_that_needs_every_tool_that_is_used_has_a_list_of_them_all() -> None:
    every = [np.arange(4), *GOLD[1:]]
    made = task(length=2)
    made.gold = every
    columns, listed, gold = made.draw_lists(np.array([0, 1]), np.random.default_rng(1))
    assert listed is not None and listed.shape == (2, 4) and columns.tolist() == [0, 1, 2, 3]
    assert gold.sum(axis=1).tolist() == [4, len(GOLD[1])]


def test_frozen_queries_stay_and_free_ones_move() -> None:
    for queries, moved in (("frozen", False), ("free", True)):
        made = task(queries=queries, layers=0, loss="softmax", sharpness=20.0, contrast=0.0)
        before = made.queries.detach().clone(), made.tools.detach().clone()
        train(made, Plan(epochs=3, batch=2, rate=0.05, warmup=0.0, schedule="constant", decay=0.0))
        assert torch.equal(before[0], made.queries) != moved
        assert not torch.equal(before[1][:4], made.tools[:4])
        assert torch.equal(before[1][4], made.tools[4])


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("layers", [0, 1, 2, 3])
def test_the_wanted_rows_alone_are_those_of_all(layers: int, scaled: bool) -> None:
    graph = Bipartite(np.repeat(np.arange(30), 3), np.tile(np.arange(9), 10), (30, 9))
    left, right = (torch.randn(n, 5, generator=torch.manual_seed(n), requires_grad=True) for n in (30, 9))
    wanted = torch.tensor([7, 0, 29, 7])
    full = graph.propagate(left, right, layers, scaled=scaled)
    some = graph.propagate(left, right, layers, scaled=scaled, wanted=wanted)
    assert torch.allclose(some[0], full[0][wanted], atol=1e-6) and torch.allclose(some[1], full[1], atol=1e-6)
    for one, other in zip(
        torch.autograd.grad(some[0].square().sum(), (left, right), materialize_grads=True),
        torch.autograd.grad(full[0][wanted].square().sum(), (left, right), materialize_grads=True),
        strict=True,
    ):
        assert torch.allclose(one, other, atol=1e-5)


def test_a_scene_starts_anew_from_all_its_tools_whichever_edges_an_epoch_drops() -> None:
    """Layer 0 of a scene (eq. 2) and its vector in the tool view (eq. 6); no edge from a scene to a tool is dropped."""
    made = task(layers=0, dropped=0.9)
    moved = torch.from_numpy(np.random.default_rng(5).normal(size=(5, 6)).astype(np.float32))
    with torch.no_grad():
        made.compute_views(*made.epoch_edges)
        made.tools.copy_(moved)
        _, scenes, _, _, pooled = made.compute_views(*made.epoch_edges)
    expected = np.stack([moved[GOLD[query]].mean(dim=0).numpy() for query in (0, 1, 3)])
    np.testing.assert_allclose(scenes.numpy(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(pooled.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert len(made.epoch_edges[0].left) < 4 and len(made.epoch_edges[1].left) < 7
