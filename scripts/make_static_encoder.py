#!/usr/bin/env python
"""Makes the bundled static encoder, which has one vector for each word piece of a sentence encoder (the teacher).

The mean of the vectors of a text's pieces comes as close as possible to the teacher's vector of the text.

    python scripts/make_static_encoder.py --teacher FOLDER --data ROOT --cache FOLDER

Needs torch and sentence-transformers. The teacher is the folder of all-MiniLM-L6-v2 (Apache-2.0) as
sentence-transformers saves it, ROOT the data root of docs/reference/datasets.md. This takes half an hour on one core,
mostly for the teacher, whose vectors are kept in the cache. The same inputs and packages give the same files.

1. Collect texts: tools of corpora with a suitable licence (names, descriptions, parameters, sentences), their
   descriptions worded as requests, and groups of words of the vocabulary, so that every word occurs. Queries of
   datasets, relevance judgements, and corpora with only a test split are left out.
2. Encode the texts with the teacher, and project the vectors on their first right singular vectors.
3. Fit the vectors of the pieces by gradient descent on 1 - cosine, starting with the teacher's input embeddings.
4. Round to 8 bits with one scale for each piece.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from toolscout.encoders import split_identifiers
from toolscout.encoders.static import STATIC_ENCODER_FOLDER, STATIC_FORMAT, WordPieces
from toolscout.sources.folder import read_tools
from toolscout.types import Tool, digest, render

# folder below the data root: licence of its tools
CORPORA = {
    "tool_corpora/toucan": "MIT",
    "bfcl": "Apache-2.0",
    "hammerbench": "Apache-2.0",
    "metatool": "MIT",
    "numpybank": "MIT",
    "seal_tools_in": "Apache-2.0",
    "toollinkos": "MIT",
    "ultratool": "MIT",
}
DIM = 256
SEED = 0
CHUNK = 8192
SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
ONE_NEED = (
    "I need to {a}.", "I want to {a}", "Can you {a}?", "Could you please {a} for me?", "Please {a}.", "{a}",
    "How do I {a}?", "How can I {a} today?", "Help me {a}.", "I'd like to {a}, please.", "Is there a way to {a}?",
    "What is the best way to {a}?", "I'm working on a project and I have to {a}.", "My manager asked me to {a}.",
    "Let's {a}.", "We are planning a trip with friends and would like to {a}", "Would you {a} right now?",
    "I have been trying to {a} since yesterday, can you do it?", "Show me how to {a}", "Go ahead and {a}.",
    "For my research I need you to {a}", "I'm curious: can you {a}?", "It would be great if you could {a}",
    "Tell me what you find when you {a}", "My company needs to {a} every week.",
)  # fmt: skip
TWO_NEEDS = (
    "{a} and then {b}.", "I need to {a}. Also, {b}.", "Please {a}, and {b} as well.", "First {a}, then {b}.",
    "Can you {a} and {b}?", "I'm organising an event: {a}. Additionally, {b}.", "{a}. After that, {b}.",
    "I want to {a}; furthermore, could you {b}?",
)  # fmt: skip


CARD = """# The bundled static encoder

One vector of {dim} numbers for each of {pieces:,} word pieces; the vector of a text is the mean of its pieces'. It was
fitted to all-MiniLM-L6-v2, so that texts with the same meaning come near each other. English; offline; no neural
network is run.

Made by `scripts/make_static_encoder.py` from {texts:,} texts: names and descriptions of published tools, the same
worded as requests by templates, and {word_groups:,} random groups of words. It has seen no query of any dataset and no
relevance judgement. The corpora of toolbench, bfcl_parallel_multiple, livemcpbench, mcpproxy_golden and restbench were
not read; some of their tools are also in the corpora below (functions of bfcl, public MCP servers in toucan).

`vectors.safetensors`: `rows`, 8-bit whole numbers, times `scales`, one a piece. `pieces.txt`: the pieces, one a line.
`manifest.json`: how it was made.

## Licence

Apache-2.0, like toolscout. The teacher and the vocabulary are those of sentence-transformers/all-MiniLM-L6-v2
(Apache-2.0). The texts come from corpora under these licences, and are not part of these files:

{corpora}
"""


def clean(text: str) -> str:
    """Split identifiers and join lines, as both the teacher and the new encoder read a text."""
    return " ".join(split_identifiers(text[:1500]).split())


def sentences(description: str) -> list[str]:
    return [part for part in SENTENCE.split(description) if len(part.split()) > 3]


def action(tool: Tool) -> str:
    """Word the tool as a request: its first sentence, with the verb in its base form."""
    first = (sentences(tool.description) or [tool.name])[0].strip().rstrip(".!")
    verb, _, rest = clean(first).partition(" ")
    if verb.isalpha() and verb[1:].islower() and verb.endswith("s") and not verb.endswith("ss"):
        verb = re.sub(r"ies$", "y", verb) if verb.endswith("ies") else re.sub(r"(?<=sh|ch|ss)es$|s$", "", verb)
    return f"{verb[:1].lower()}{verb[1:]} {rest}".strip()[:200]


def texts_of(tools: list[Tool], rng: random.Random) -> Iterator[str]:
    """Yield the texts of the tools of one corpus, and requests for them."""
    actions = [action(tool) for tool in tools]
    for tool, wanted in zip(tools, actions, strict=True):
        yield render(tool, "short")
        yield tool.name
        yield f"{tool.name}: {tool.description}"
        parts = sentences(tool.description)
        yield from parts[:4] if len(parts) > 1 else ()
        properties = (tool.parameters or {}).get("properties")
        for schema in list(properties.values())[:4] if isinstance(properties, dict) else ():
            said = schema.get("description") if isinstance(schema, dict) else None
            if isinstance(said, str) and len(said.split()) > 2 and rng.random() < 0.5:
                yield said
        yield rng.choice(ONE_NEED).format(a=wanted)
        if rng.random() < 0.5:
            yield rng.choice(ONE_NEED).format(a=tool.name)
        if rng.random() < 0.5:
            yield rng.choice(TWO_NEEDS).format(a=wanted, b=rng.choice(actions))


def word_groups(pieces: list[str], rng: random.Random) -> Iterator[str]:
    """Yield every whole word of the vocabulary in four random groups with one to four others."""
    words = [piece for piece in pieces if piece.isascii() and piece.isalpha() and len(piece) > 2]
    for _ in range(4):
        rng.shuffle(words)
        start = 0
        while start < len(words):
            size = rng.randint(2, 5)
            yield " ".join(words[start : start + size])
            start += size


def encode_with_teacher(texts: list[str], teacher: str, cache: Path) -> np.ndarray:
    """Return the teacher's vectors, `(n, 384)` float32 unit rows, chunk by chunk from the cache."""
    from sentence_transformers import SentenceTransformer

    model = None
    blocks = []
    for start in range(0, len(texts), CHUNK):
        chunk = texts[start : start + CHUNK]
        file = cache / f"{hashlib.blake2b(json.dumps(chunk).encode(), digest_size=12).hexdigest()}.npy"
        if not file.exists():
            if model is None:
                model = SentenceTransformer(teacher, device="cpu")
                model.max_seq_length = 192
            vectors = model.encode(chunk, batch_size=64, normalize_embeddings=True)
            np.save(file, vectors.astype(np.float16))
            print(f"teacher: {start + len(chunk)} of {len(texts)} texts", flush=True)
        blocks.append(np.load(file).astype(np.float32))
    return np.concatenate(blocks)


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


def fit(bags: list[list[int]], targets: np.ndarray, first: np.ndarray, epochs: int, rate: float) -> np.ndarray:
    """Fit the vectors of the pieces, `(pieces, d)`: Adam on 1 - cosine(mean, target), with the rate falling to 0."""
    import torch

    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    table = torch.nn.EmbeddingBag.from_pretrained(torch.tensor(first), freeze=False, mode="mean")
    adam = torch.optim.Adam(table.parameters(), lr=rate, betas=(0.9, 0.99))
    goals, batch = torch.from_numpy(targets), 512
    per_epoch = len(bags) // batch
    for epoch in range(epochs):
        order, total = rng.permutation(len(bags)), 0.0
        for step in range(per_epoch):
            chosen = order[step * batch : (step + 1) * batch]
            ids = torch.from_numpy(np.concatenate([bags[i] for i in chosen]))
            starts = torch.from_numpy(np.cumsum([0, *(len(bags[i]) for i in chosen[:-1])]))
            loss = 1 - torch.nn.functional.cosine_similarity(table(ids, starts), goals[chosen]).mean()
            adam.param_groups[0]["lr"] = rate * (1 - (epoch * per_epoch + step) / (epochs * per_epoch))
            adam.zero_grad()
            loss.backward()
            adam.step()
            total += loss.item()
        print(f"epoch {epoch + 1}: 1 - cosine {total / per_epoch:.4f}", flush=True)
    return table.weight.detach().numpy()


def write(out: Path, pieces: list[str], vectors: np.ndarray, manifest: dict) -> None:
    """Write the four files: vectors, pieces, manifest, card."""
    from safetensors.numpy import save_file

    scales = (np.abs(vectors).max(axis=1) / 127).astype(np.float16)
    scales = np.maximum(scales, np.float16(1e-6))
    rows = np.clip(np.rint(vectors / scales[:, None].astype(np.float32)), -127, 127).astype(np.int8)
    out.mkdir(parents=True, exist_ok=True)
    save_file({"rows": rows, "scales": scales}, out / "vectors.safetensors")
    (out / "pieces.txt").write_text("\n".join(pieces), encoding="utf-8")
    content = hashlib.blake2b(rows.tobytes() + scales.tobytes() + "\n".join(pieces).encode(), digest_size=16)
    manifest = {"format": STATIC_FORMAT, "fingerprint": digest(STATIC_FORMAT, content.hexdigest()), **manifest}
    (out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    corpora = "\n".join(f"* {name}: {licence}" for name, licence in CORPORA.items())
    (out / "README.md").write_text(CARD.format(**{**manifest, "corpora": corpora, "pieces": len(pieces)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--teacher", required=True, help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--data", type=Path, required=True, help="data root")
    parser.add_argument("--cache", type=Path, required=True, help="where the teacher's vectors are kept")
    parser.add_argument("--out", type=Path, default=STATIC_ENCODER_FOLDER)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rate", type=float, default=5e-3)
    options = parser.parse_args()

    import torch
    from safetensors.numpy import load_file

    torch.set_num_threads(1)
    options.cache.mkdir(parents=True, exist_ok=True)
    teacher = Path(options.teacher)
    vocabulary = (teacher / "vocab.txt").read_text(encoding="utf-8").split("\n")
    kept = [i for i, piece in enumerate(vocabulary) if piece and not re.fullmatch(r"\[.+\]", piece)]
    pieces = [vocabulary[i] for i in kept]

    rng = random.Random(SEED)
    said = [text for name in CORPORA for text in texts_of(read_tools(options.data / name, name).tools, rng)]
    texts = list(dict.fromkeys(line for line in map(clean, said) if len(line) > 2))
    rng.shuffle(texts)
    targets = encode_with_teacher(texts, options.teacher, options.cache)
    groups = list(word_groups(pieces, rng))
    axes = np.linalg.svd(targets.T @ targets)[0][:, :DIM]
    targets = np.concatenate([targets, encode_with_teacher(groups, options.teacher, options.cache)])

    cut = WordPieces(pieces)
    bags = [cut(text, 192) for text in texts + groups]
    filled = [i for i, bag in enumerate(bags) if bag]
    first = load_file(teacher / "model.safetensors")["embeddings.word_embeddings.weight"][kept] @ axes
    # Rarer words weigh more: the vocabulary is in order of frequency, roughly (smooth inverse frequency, Zipf's law).
    frequency = 1 / np.arange(3, len(kept) + 3)
    first *= (1e-4 / (1e-4 + frequency / frequency.sum()))[:, None]
    first /= np.linalg.norm(first, axis=1).mean()
    vectors = fit(
        [bags[i] for i in filled], unit(targets[filled] @ axes), first.astype(np.float32), options.epochs, options.rate
    )
    write(
        options.out,
        pieces,
        vectors,
        {
            "dim": DIM,
            "teacher": "sentence-transformers/all-MiniLM-L6-v2",
            "corpora": CORPORA,
            "texts": len(texts),
            "word_groups": len(groups),
            "epochs": options.epochs,
            "rate": options.rate,
            "seed": SEED,
        },
    )


if __name__ == "__main__":
    main()
