"""Sentence encoders with gradients: texts tokenised once, chunks of similar length, cached gradients."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from toolscout.encoders import Kind, Vectors, split_identifiers

__all__ = ["Precision", "Tokens", "Tower", "backward", "chunks", "device", "uses_bfloat16"]

Tokens: TypeAlias = list[list[int]]
Precision: TypeAlias = Literal["auto", "float32", "bfloat16"]

MAX_CHUNK_TOKENS: Final = 2_048  # tokens, padding included, that go through an encoder at once
_PROMPTS: Final = {"query": ("query",), "tool": ("document", "passage", "corpus")}


def device() -> torch.device:
    """Return the device to train on: CUDA if available, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def uses_bfloat16(training_device: torch.device, precision: Precision = "auto") -> bool:
    """Decide whether to multiply in bfloat16; `auto` does where the device is faster with it than with float32."""
    if precision != "auto":
        return precision == "bfloat16"
    if training_device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    try:
        return "avx512_bf16" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False


def chunks(lengths: Sequence[int], max_tokens: int = MAX_CHUNK_TOKENS) -> list[npt.NDArray[np.intp]]:
    """Group the places of items, longest first, so that a padded group has at most `max_tokens` tokens.

    A longer item gets its own group.
    """
    order = np.argsort(-np.asarray(lengths), kind="stable")
    groups, start = [], 0
    while start < len(order):
        size = max(1, max_tokens // max(1, lengths[order[start]]))
        groups.append(order[start : start + size])
        start += size
    return groups


def backward(
    encode: Callable[[npt.NDArray[np.intp]], Tensor],
    groups: Sequence[npt.NDArray[np.intp]],
    loss: Callable[[Tensor], Tensor],
    *,
    cached: bool,
) -> float:
    """Accumulate the gradients of `loss(all rows)` for a batch of any size and return the loss.

    With cached gradients every group is first encoded without a graph, and the loss gives the gradient of each row.
    Then every group is encoded again, with its graph and the same random numbers, and the gradient is propagated. This
    needs the memory of one group and one more forward pass.

    Args:
        encode: maps places to (len, d) rows with a graph.
        groups: the places 0 … n-1, each once.
        loss: maps (n, d) rows, in the order of places, to a scalar; its own parameters also get gradients.
        cached: False encodes once and holds the graph of all groups.
    """
    original_order = torch.from_numpy(np.argsort(np.concatenate(groups)))
    if not cached:
        value = loss(torch.cat([encode(group) for group in groups])[original_order])
        value.backward()  # type: ignore[no-untyped-call]
        return value.item()
    states, parts = [], []
    for group in groups:
        states.append(_random_state())
        with torch.no_grad():
            parts.append(encode(group))
    final_state = _random_state()
    rows = torch.cat(parts)[original_order].requires_grad_()
    value = loss(rows)
    value.backward()  # type: ignore[no-untyped-call]
    assert rows.grad is not None
    for group, state in zip(groups, states, strict=True):
        _set_random_state(state)
        encode(group).backward(rows.grad[torch.from_numpy(group)])  # type: ignore[no-untyped-call]
    _set_random_state(final_state)
    return value.item()


def _random_state() -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state() if torch.cuda.is_available() else None


def _set_random_state(state: tuple[Tensor, Tensor | None]) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1])


class Tower:
    """A `SentenceTransformer` in training; it maps tokens to unit rows.

    Attributes:
        model: the `SentenceTransformer`.
        half: whether it multiplies in bfloat16.
    """

    def __init__(self, model: Any, *, dropout: float, precision: Precision = "auto") -> None:
        """Move the model to the training device and set its dropout."""
        self.device = device()
        self.model = model.to(self.device)
        if self.device.type == "cpu" and hasattr(model[0], "auto_model"):
            # The backward pass of the fused kernel is far slower on a CPU.
            model[0].auto_model.set_attn_implementation("eager")
        for part in model.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = dropout
        self.half = uses_bfloat16(self.device, precision)
        self._pad = int(model.tokenizer.pad_token_id or 0)

    def project(self, size: int, seed: int) -> None:
        """Append a linear layer so that vectors have length `size`; it starts as a random rotation."""
        try:
            modules: Any = importlib.import_module("sentence_transformers.sentence_transformer.modules")
        except ImportError:  # its place before version 5.4
            modules = importlib.import_module("sentence_transformers.models")
        width = int(self.vectors([[self._pad]]).shape[1])
        layer = modules.Dense(width, size, bias=False, activation_function=torch.nn.Identity())
        with torch.no_grad():
            torch.nn.init.orthogonal_(layer.linear.weight, generator=torch.Generator().manual_seed(seed))
        self.model.append(layer.to(self.device))

    def tokens(self, texts: Sequence[str], kind: Kind, max_tokens: int | None = None) -> Tokens:
        """Tokenise texts, with the prompt and the splitting of identifiers that encoders apply.

        Args:
            texts: queries or tools.
            kind: `query` or `tool`.
            max_tokens: maximum ids per text; None takes the encoder's own limit.
        """
        max_tokens = max_tokens or int(self.model.max_seq_length or 512)
        prompts = self.model.prompts
        prompt = next((prompts[name] for name in _PROMPTS[kind] if prompts.get(name)), "")
        prompted = [prompt + split_identifiers(text) for text in texts]
        if not prompted:
            return []
        ids: Tokens = self.model.tokenizer(prompted, truncation=True, max_length=max_tokens)["input_ids"]
        return ids

    def pad(self, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Return (n, longest) token ids on the device, padded, and the mask: 1 for a token, 0 for padding."""
        ids = torch.full((len(tokens), max(map(len, tokens))), self._pad)
        mask = torch.zeros_like(ids)
        for row, text in enumerate(tokens):
            ids[row, : len(text)] = torch.tensor(text)
            mask[row, : len(text)] = 1
        return ids.to(self.device), mask.to(self.device)

    def rows(self, tokens: Tokens) -> Tensor:
        """Encode texts as (n, d) float32 unit rows, with a graph unless gradients are off."""
        ids, mask = self.pad(tokens)
        features = {"input_ids": ids, "attention_mask": mask}
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            vectors = self.model(features)["sentence_embedding"]
        return functional.normalize(vectors.float(), dim=1)

    def backward(self, tokens: Tokens, loss: Callable[[Tensor], Tensor], hold: int) -> float:
        """Apply `backward` to a loss over the rows of texts; gradients are cached beyond `hold` tokens."""
        groups = chunks([len(text) for text in tokens])
        padded = sum(len(group) * len(tokens[group[0]]) for group in groups)
        return backward(
            lambda places: self.rows([tokens[place] for place in places]), groups, loss, cached=padded > hold
        )

    def vectors(self, tokens: Tokens) -> Vectors:
        """Encode texts as an array of (n, d) float32 unit rows, without dropout."""
        groups = chunks([len(text) for text in tokens])
        with self.evaluating():
            parts = [self.rows([tokens[place] for place in group]).cpu().numpy() for group in groups]
        rows: Vectors = np.concatenate(parts)[np.argsort(np.concatenate(groups))]
        return rows

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Switch off gradients and dropout inside the block."""
        before = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.model.train(before)
