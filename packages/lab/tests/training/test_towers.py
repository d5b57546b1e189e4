from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tiny import tiny_bert

torch = pytest.importorskip("torch")

from toolscout_lab.encoders.transformer import TransformerEncoder  # noqa: E402
from toolscout_lab.training.losses import list_softmax  # noqa: E402
from toolscout_lab.training.towers import Tower, chunks, uses_bfloat16  # noqa: E402

TEXTS = ["rain in the city", "send mail", "book a hotel room, then a flight", "copyFile", "translate text", "weather"]
GOLD = torch.tensor([[True, False, True], [False, True, False], [False, False, True]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("bert") / "tiny")


def tower(folder: Path, dropout: float = 0.0) -> Any:
    return Tower(TransformerEncoder(str(folder)).model, dropout=dropout, precision="float32")


def gradients(folder: Path, hold: int, dropout: float = 0.0, chunk: int = 20) -> tuple[float, dict[str, Any]]:
    made = tower(folder, dropout)
    made.model.train()
    tokens = made.tokens(TEXTS, "query", 48)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("toolscout_lab.training.towers.MAX_CHUNK_TOKENS", chunk)
        torch.manual_seed(7)
        loss = made.backward(tokens, lambda rows: list_softmax(rows[:3] @ rows[3:].T / 0.05, GOLD), hold)
    return loss, {name: each.grad for name, each in made.model.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_cached_gradients_are_the_plain_ones(folder: Path, dropout: float) -> None:
    plain_loss, plain = gradients(folder, hold=10_000, dropout=dropout)
    cached_loss, cached = gradients(folder, hold=0, dropout=dropout)
    assert cached_loss == pytest.approx(plain_loss, abs=1e-5)
    assert plain.keys() == cached.keys() and plain
    for name, wanted in plain.items():
        assert torch.allclose(cached[name], wanted, atol=1e-5), name
    assert max(float(each.abs().max()) for each in plain.values()) > 1e-2


def test_gradients_do_not_depend_on_how_texts_share_chunks(folder: Path) -> None:
    _, one = gradients(folder, hold=10_000, chunk=1)
    _, all_together = gradients(folder, hold=10_000, chunk=10_000)
    assert all(torch.allclose(one[name], all_together[name], atol=1e-5) for name in one)


def test_a_tower_and_the_encoder_give_the_same_vectors(folder: Path) -> None:
    made = tower(folder)
    rows = made.vectors(made.tokens(TEXTS, "tool", 48))
    assert rows == pytest.approx(TransformerEncoder(str(folder)).encode(TEXTS, "tool"), abs=1e-5)


def test_texts_are_cut_and_prompts_put_before_them(folder: Path) -> None:
    made = tower(folder)
    made.model.prompts = {"query": "mail ", "document": ""}
    [asked], [held] = made.tokens(["rain rain rain"], "query", 4), made.tokens(["rain rain rain"], "tool", 4)
    words = made.model.tokenizer.convert_ids_to_tokens
    assert words(asked) == ["[CLS]", "mail", "rain", "[SEP]"]
    assert words(held) == ["[CLS]", "rain", "rain", "[SEP]"]
    assert made.tokens([], "tool", 4) == []


def test_chunks_hold_every_place_once_and_no_more_tokens_than_allowed() -> None:
    lengths = [5, 30, 7, 7, 2, 100, 6]
    groups = chunks(lengths, 30)
    assert sorted(np.concatenate(groups)) == list(range(len(lengths)))
    padded = [len(group) * max(lengths[place] for place in group) for group in groups]
    assert all(size <= 30 or len(group) == 1 for size, group in zip(padded, groups, strict=True))
    assert [list(group) for group in groups] == [[5], [1], [2, 3, 6, 0], [4]]


def test_precision_is_what_was_asked_for() -> None:
    place = torch.device("cpu")
    assert uses_bfloat16(place, "bfloat16") and not uses_bfloat16(place, "float32")


def test_bfloat16_gives_nearly_the_same_vectors(folder: Path) -> None:
    made = tower(folder)
    exact = made.vectors(made.tokens(TEXTS, "query", 48))
    made.half = True
    rough = made.vectors(made.tokens(TEXTS, "query", 48))
    assert rough.dtype == np.float32 and (rough * exact).sum(axis=1) == pytest.approx(np.ones(len(TEXTS)), abs=0.01)
