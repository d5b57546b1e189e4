from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from toolscout_lab.training import losses  # noqa: E402

SCORES = [[2.0, 1.0, 0.0, -1.0], [0.5, 0.0, 0.25, 3.0]]
GOLD = [[True, True, False, False], [False, False, False, True]]


def softmax(row: list[float]) -> list[float]:
    powers = [math.exp(value) for value in row]
    return [power / sum(powers) for power in powers]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def places(row: list[bool], wanted: bool = True) -> list[int]:
    return [place for place, gold in enumerate(row) if gold is wanted]


def test_info_nce_is_the_negative_log_share_of_the_positive() -> None:
    wanted = mean([-math.log(softmax(SCORES[0])[1]), -math.log(softmax(SCORES[1])[3])])
    assert losses.info_nce(torch.tensor(SCORES), torch.tensor([1, 3])).item() == pytest.approx(wanted, abs=1e-6)


def test_the_list_softmax_shares_one_distribution_among_all_golds() -> None:
    each = [
        mean([-math.log(softmax(row)[place]) for place in places(gold)]) for row, gold in zip(SCORES, GOLD, strict=True)
    ]
    found = losses.list_softmax(torch.tensor(SCORES), torch.tensor(GOLD)).item()
    assert found == pytest.approx(mean(each), abs=1e-6)


def test_places_of_a_list_that_are_not_filled_do_not_count() -> None:
    listed = torch.tensor([[True, True, True, False]])
    whole = losses.list_softmax(torch.tensor([SCORES[0][:3]]), torch.tensor([GOLD[0][:3]]))
    padded = losses.list_softmax(torch.tensor(SCORES[:1]), torch.tensor(GOLD[:1]), listed)
    assert padded.item() == pytest.approx(whole.item(), abs=1e-7)


def test_colts_list_loss_is_eq_12_written_out() -> None:
    each = []
    for row, gold in zip(SCORES, GOLD, strict=True):
        shares = [float(value) / sum(gold) for value in gold]
        pairs = list(zip(shares, softmax(row), strict=True))
        each.append(-sum(p * math.log(found) + (1 - p) * math.log(1 - found) for p, found in pairs))
    found = losses.colt_list(torch.tensor(SCORES), torch.tensor(GOLD)).item()
    assert found == pytest.approx(mean(each), abs=1e-5)


def test_colts_list_loss_stays_finite_when_one_tool_takes_everything() -> None:
    scores = torch.tensor([[200.0, 0.0, 0.0]], requires_grad=True)
    loss = losses.colt_list(scores, torch.tensor([[True, True, False]]))
    loss.backward()
    assert math.isfinite(loss.item()) and bool(torch.isfinite(scores.grad).all())


def test_cross_view_compares_directions_of_the_two_views() -> None:
    one = torch.tensor([[3.0, 0.0], [0.0, 0.5]])
    other = torch.tensor([[1.0, 1.0], [0.0, 2.0]])
    root = math.sqrt(0.5)
    rows = [[root / 0.5, 0.0], [root / 0.5, 1 / 0.5]]
    wanted = mean([-math.log(softmax(rows[0])[0]), -math.log(softmax(rows[1])[1])])
    assert losses.cross_view(one, other, 0.5).item() == pytest.approx(wanted, abs=1e-6)


def test_a_triplet_costs_what_the_negative_is_nearer_and_the_margin() -> None:
    anchors = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    positives = torch.tensor([[0.0, 2.0], [5.0, 0.0]])
    negatives = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    wanted = mean([math.sqrt(0.5) - 0.0 + 0.3, 0.0])
    assert losses.triplet(anchors, positives, negatives, 0.3).item() == pytest.approx(wanted, abs=1e-6)


def test_binary_is_the_mean_cross_entropy_of_each_answer() -> None:
    logits, targets = [[0.0, 2.0], [-1.0, 30.0]], [[1.0, 0.0], [0.0, 1.0]]
    chance = [[1 / (1 + math.exp(-value)) for value in row] for row in logits]
    wanted = -mean([math.log(0.5), math.log(1 - chance[0][1]), math.log(1 - chance[1][0]), math.log(chance[1][1])])
    assert losses.binary(torch.tensor(logits), torch.tensor(targets)).item() == pytest.approx(wanted, abs=1e-6)


def test_each_gold_tool_is_compared_with_the_tools_that_are_not_gold() -> None:
    excluded = torch.tensor([[False, False, True, False], [False, False, False, False]])
    rest = math.exp(-1.0)
    first = mean([math.log(1 + rest / math.exp(score)) for score in (2.0, 1.0)])
    second = -math.log(softmax(SCORES[1])[3])
    found = losses.each_gold(torch.tensor(SCORES), torch.tensor(GOLD), excluded).item()
    assert found == pytest.approx(mean([first, second]), abs=1e-6)
    some = torch.tensor([GOLD[0], [False] * 4])
    assert losses.each_gold(torch.tensor(SCORES), some, excluded).item() == pytest.approx(first, abs=1e-6)


def test_each_gold_without_any_other_tool_is_no_loss_and_has_a_gradient() -> None:
    scores = torch.tensor([[1.0, 2.0]], requires_grad=True)
    losses.each_gold(scores, torch.tensor([[True, False]]), torch.tensor([[False, True]])).backward()
    assert torch.equal(scores.grad, torch.zeros(1, 2))
