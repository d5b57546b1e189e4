"""Recipes that only the laboratory names: the papers' methods, their published settings, and their ablations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from toolscout.methods.colt import Colt
from toolscout.methods.dpr import Dpr
from toolscout.methods.feedback.prf import FeedbackPrf
from toolscout.methods.feedback.trained import FeedbackDpr
from toolscout.methods.masstool import MassTool
from toolscout.methods.query_rewriting import Mmrr, Qta
from toolscout.methods.tool2vec import Tool2VecTuned
from toolscout.methods.toolrefiner import ToolRefiner
from toolscout.methods.toolrerank.method import ToolRerank
from toolscout.methods.zero_shot import Bm25, Dense, RankFusion
from toolscout.recipes.recipe import Recipe

__all__ = ["ABLATIONS"]

STRONG_COLT: Final = {  # what was left of COLT once each part had to earn its place on dev (benchmarks/LAB.md)
    "base": "dpr",
    "layers": 0,
    "dropped": 0.0,
    "queries": "frozen",
    "loss": "softmax",
    "length": 0,
    "sharpness": 8.0,
    "contrast": 0.0,
    "epochs": 60,
    "rate": 2e-3,
}
PUBLISHED_MASSTOOL: Final = {"transfer": "gate", "seen": "graph", "loss": "colt", "length": 10, "sharpness": 1.0}
PUBLISHED_TOOLRERANK: Final = {"seen": 10, "unseen": 50, "sure": 0.8, "each": 3, "alike": 0.8}


def _rerank_first(count: int) -> dict[str, Any]:
    """Rerank-m as settings of toolrerank, so that all m share one cross-encoder."""
    return {"seen": count, "unseen": count, "hierarchy": "none"}


_COLT: Final[tuple[tuple[str, str, Mapping[str, Any]], ...]] = (
    ("colt", "Vectors of tools, tuned over graphs of tools needed together, as published.", {}),
    ("colt-no-semantic", "colt over an encoder that was not tuned.", {"base": None}),
    ("colt-no-collaborative", "colt without its second stage.", {"collaborative": False}),
    ("colt-no-contrastive", "colt without the contrast between its views.", {"contrast": 0.0}),
    ("colt-strong", "colt over dpr, with settings chosen on validation queries of ToolLens.", STRONG_COLT),
)
_MASSTOOL: Final[tuple[tuple[str, str, Mapping[str, Any]], ...]] = (
    ("masstool", "Whether a tool is needed, and which, judged by similar requests.", {}),
    ("masstool-published", "masstool with the settings of the paper.", PUBLISHED_MASSTOOL),
    ("masstool-no-suim", "masstool without the search for similar requests.", {"search": False}),
    ("masstool-no-adakt", "masstool without detection.", {"transfer": "none", "need": 0.0}),
    ("masstool-no-df", "masstool over all of the nearest requests, however far.", {"floor": -1.0}),
    ("masstool-no-cl", "masstool without the contrast between its views.", {"contrast": 0.0}),
)
_TOOLRERANK: Final[tuple[tuple[str, str, Mapping[str, Any]], ...]] = (
    ("crossencoder-10", "crossencoder that reads 10 tools.", _rerank_first(10)),
    ("crossencoder-30", "crossencoder that reads 30 tools.", _rerank_first(30)),
    ("crossencoder-50", "crossencoder that reads 50 tools.", _rerank_first(50)),
    ("toolrerank", "crossencoder that heeds which tools are new, and which belong together.", {}),
    ("toolrerank-published", "toolrerank with the settings of the paper.", PUBLISHED_TOOLRERANK),
    ("toolrerank-none", "toolrerank without its hierarchy.", {"hierarchy": "none"}),
    ("toolrerank-single", "toolrerank as if one parent served each query.", {"hierarchy": "single"}),
    ("toolrerank-multi", "toolrerank as if each query needed several.", {"hierarchy": "multi"}),
    ("toolrerank-oracle", "toolrerank that knows which; for bench alone.", {"hierarchy": "oracle"}),
)
_FEEDBACK_DPR: Final[tuple[tuple[str, str, Mapping[str, Any]], ...]] = (
    ("feedback-dpr", "dpr, tuned further on its queries reworded round by round.", {}),
    ("feedback-dpr-no-warmup", "feedback-dpr from an encoder that was not tuned before.", {"base": None}),
    ("feedback-dpr-no-hard", "feedback-dpr without hard negatives.", {"hard": 0}),
    (
        "feedback-dpr-no-joint",
        "feedback-dpr that learns from one round after the other, without hard negatives.",
        {"joint": False, "hard": 0},
    ),
)

ABLATIONS: Final[dict[str, Recipe]] = {
    each.name: each
    for each in (
        Recipe("bm25-plain", "BM25 as most libraries ship it.", Bm25(), {"tokenizer": "plain"}, encodes=False),
        Recipe(
            "dense-minilm",
            "all-MiniLM-L6-v2 on title and text.",
            Dense(),
            {"style": "raw"},
            encoder="minilm-plain",
        ),
        Recipe(
            "rrf-minilm",
            "bm25-plain and dense-minilm, fused by reciprocal rank: the usual baseline.",
            RankFusion(),
            encoder="minilm-plain",
            fallback="bm25-plain",
        ),
        Recipe(
            "dpr",
            "An encoder tuned so that queries lie near all their gold tools, against the whole catalogue.",
            Dpr(),
            encoder="minilm",
        ),
        Recipe(
            "dpr-inbatch",
            "An encoder tuned as published: one gold tool of a query against the other tools of the batch.",
            Dpr(),
            {"negatives": "batch", "epochs": 2, "batch": 64, "rate": 2e-5},
            encoder="minilm",
        ),
        *(Recipe(name, summary, Colt(), settings, encoder="minilm") for name, summary, settings in _COLT),
        *(Recipe(name, summary, MassTool(), settings, encoder="minilm") for name, summary, settings in _MASSTOOL),
        Recipe(
            "toolrefiner-tool2vec",
            "toolrefiner over tool2vec-tuned.",
            ToolRefiner(),
            {"base": "tool2vec-tuned", "give_way": True},
            encoder="minilm",
        ),
        *(
            Recipe(name, summary, ToolRerank(), settings, encoder="minilm", revision=2)
            for name, summary, settings in _TOOLRERANK
        ),
        Recipe(
            "tool2vec-tuned",
            "tool2vec over an encoder tuned so that queries which share a tool lie near each other.",
            Tool2VecTuned(),
            encoder="minilm",
        ),
        Recipe(
            "feedback-prf",
            "hybrid, the query expanded with words of the first tools where dev says that this helps; no model.",
            FeedbackPrf(),
        ),
        *(
            Recipe(name, summary, FeedbackDpr(), settings, encoder="minilm")
            for name, summary, settings in _FEEDBACK_DPR
        ),
        Recipe("mmrr", "A language model imagines the tool; its description is searched for.", Mmrr()),
        Recipe("qta", "dpr, on training queries and a language model's rewritings of them.", Qta(), encoder="minilm"),
    )
}
