"""The recipes of toolscout-lab: methods with torch or a language model, the papers' settings, and their ablations.

`recipes.registry` finds this table by the entry point group `toolscout.methods`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from toolscout.rankers import Recipe
from toolscout_lab.rankers.colt import Colt
from toolscout_lab.rankers.crossencoder import CrossEncoderRerank
from toolscout_lab.rankers.dpr import Dpr
from toolscout_lab.rankers.feedback.loop import Feedback
from toolscout_lab.rankers.feedback.prf import FeedbackPrf
from toolscout_lab.rankers.feedback.trained import FeedbackDpr
from toolscout_lab.rankers.hybrid_dpr import HybridDpr
from toolscout_lab.rankers.masstool import MassTool
from toolscout_lab.rankers.mlc import Mlc, MlcOnBase
from toolscout_lab.rankers.query_rewriting import Mmrr, Qta
from toolscout_lab.rankers.scout_full import ScoutFull
from toolscout_lab.rankers.tool2vec_tuned import Tool2VecTuned
from toolscout_lab.rankers.toolrefiner import ToolRefiner
from toolscout_lab.rankers.toolrerank.method import ToolRerank

__all__ = ["LAB_RECIPES"]

STRONG_COLT: Final = {  # only the parts of COLT that improved results on dev; see benchmarks/LAB.md
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
PUBLISHED_MLC: Final = {  # no sets, and neither start, dropped tokens nor descriptions of ours
    "loss": "binary",
    "sets": 0.0,
    "start": "zeros",
    "thinned": 0.0,
    "kappa": 0.0,
    "agreement": 0.0,
    "novelty": 0.0,
    "sharpness": 1.0,
}
PUBLISHED_MASSTOOL: Final = {"transfer": "gate", "seen": "graph", "loss": "colt", "length": 10, "sharpness": 1.0}
PUBLISHED_TOOLRERANK: Final = {"seen": 10, "unseen": 50, "sure": 0.8, "each": 3, "alike": 0.8}


def _rerank_first(count: int) -> dict[str, Any]:
    """Return Rerank-m as settings of toolrerank, so that recipes with different m share one cross-encoder."""
    return {"seen": count, "unseen": count, "hierarchy": "none"}


_COLT: Final[tuple[tuple[str, str, Mapping[str, Any]], ...]] = (
    ("colt", "Tool vectors tuned on graphs of tools that are needed together, after COLT.", {}),
    ("colt-no-semantic", "colt over an untuned encoder.", {"base": None}),
    ("colt-no-collaborative", "colt without its second stage.", {"collaborative": False}),
    ("colt-no-contrastive", "colt without its contrastive loss.", {"contrast": 0.0}),
    ("colt-strong", "colt over dpr, with settings chosen on dev queries of ToolLens.", STRONG_COLT),
)
_MASSTOOL: Final[tuple[tuple[str, str, Mapping[str, Any]], ...]] = (
    ("masstool", "Estimates from similar requests whether a tool is needed, and which.", {}),
    (
        "masstool-published",
        "masstool with the paper's gate, edges and loss; the rest is ours.",
        PUBLISHED_MASSTOOL,
    ),
    ("masstool-no-suim", "masstool without the search for similar requests.", {"search": False}),
    (
        "masstool-no-adakt",
        "masstool that does not estimate whether a tool is needed.",
        {"transfer": "none", "need": 0.0},
    ),
    ("masstool-no-df", "masstool over all nearest requests, without a minimum similarity.", {"floor": -1.0}),
    ("masstool-no-cl", "masstool without its contrastive loss.", {"contrast": 0.0}),
)
_TOOLRERANK: Final[tuple[tuple[str, str, Mapping[str, Any]], ...]] = (
    ("crossencoder-10", "crossencoder that reads 10 tools.", _rerank_first(10)),
    ("crossencoder-30", "crossencoder that reads 30 tools.", _rerank_first(30)),
    ("crossencoder-50", "crossencoder that reads 50 tools.", _rerank_first(50)),
    ("toolrerank", "crossencoder that treats new tools and tools of one parent differently.", {}),
    (
        "toolrerank-published",
        "toolrerank with the best values of the paper's grid.",
        PUBLISHED_TOOLRERANK,
    ),
    ("toolrerank-none", "toolrerank without its hierarchy.", {"hierarchy": "none"}),
    ("toolrerank-single", "toolrerank that assumes one parent per query.", {"hierarchy": "single"}),
    ("toolrerank-multi", "toolrerank that assumes several parents per query.", {"hierarchy": "multi"}),
    (
        "toolrerank-oracle",
        "toolrerank that is told how many parents a query needs; an upper bound, for bench only.",
        {"hierarchy": "oracle"},
    ),
)
_FEEDBACK_DPR: Final[tuple[tuple[str, str, Mapping[str, Any]], ...]] = (
    ("feedback-dpr", "dpr, tuned further on queries that are reworded round by round.", {}),
    ("feedback-dpr-no-warmup", "feedback-dpr from an untuned encoder.", {"base": None}),
    ("feedback-dpr-no-rounds", "feedback-dpr without new wordings; hard negatives alone are new.", {"rounds": 0}),
    ("feedback-dpr-no-hard", "feedback-dpr without hard negatives.", {"hard": 0}),
    (
        "feedback-dpr-no-joint",
        "feedback-dpr that learns from one round after another, without hard negatives.",
        {"joint": False, "hard": 0},
    ),
)

LAB_RECIPES: Final[dict[str, Recipe]] = {
    entry.name: entry
    for entry in (
        Recipe(
            "scout-full",
            "scout-light that also tunes two encoders on your requests, each weighed by what held-out requests show.",
            ScoutFull(),
            when="You have a thousand logged requests or more, and torch. `toolscout learn --full` fits it.",
            encoder="minilm",
            revision=3,
        ),
        Recipe(
            "mlc",
            "A tuned encoder with a linear classifier over tools and sets of tools.",
            Mlc(),
            when="You have thousands of logged requests, a stable catalogue, and torch.",
            encoder="minilm",
        ),
        Recipe(
            "hybrid-dpr",
            "BM25 fused with an encoder tuned on your requests (dpr).",
            HybridDpr(),
            when="Tools come and go. What it learned from requests also helps with new tools. Needs torch.",
            encoder="minilm",
        ),
        Recipe(
            "toolrefiner",
            "Reads the first tools of mlc together with the query, and orders them anew.",
            ToolRefiner(),
            when="Requests need several tools at once, and you have torch.",
            encoder="minilm",
            revision=2,
        ),
        Recipe(
            "crossencoder",
            "Reads each of the first tools of another recipe together with the query, and orders them anew.",
            CrossEncoderRerank(),
            when="The order of the first tools matters more than tens of milliseconds per search.",
            encoder="minilm",
        ),
        Recipe(
            "feedback",
            "A language model reads the first tools and rewrites the query, round by round.",
            Feedback(),
            when="Requests are vague, and a search may take seconds and cost tokens.",
        ),
        Recipe(
            "dpr",
            "An encoder tuned so that queries lie near all their gold tools; all other tools are negatives.",
            Dpr(),
            encoder="minilm",
        ),
        Recipe(
            "dpr-inbatch",
            "An encoder tuned with one gold tool per query; other tools of the batch are negatives, as usual.",
            Dpr(),
            {"negatives": "batch", "epochs": 2, "batch": 64, "rate": 2e-5},
            encoder="minilm",
        ),
        *(Recipe(name, summary, Colt(), settings, encoder="minilm") for name, summary, settings in _COLT),
        *(
            Recipe(name, summary, MassTool(), settings, encoder="minilm", revision=2)
            for name, summary, settings in _MASSTOOL
        ),
        Recipe(
            "toolrefiner-tool2vec",
            "toolrefiner over tool2vec-tuned.",
            ToolRefiner(),
            {"base": "tool2vec-tuned", "give_way": True},
            encoder="minilm",
            revision=2,
        ),
        *(
            Recipe(name, summary, ToolRerank(), settings, encoder="minilm", revision=2)
            for name, summary, settings in _TOOLRERANK
        ),
        Recipe(
            "mlc-published",
            "mlc with one layer over the tools, binary cross-entropy, and no other source of scores.",
            Mlc(),
            PUBLISHED_MLC,
            encoder="minilm",
        ),
        Recipe(
            "mlc-dpr",
            "mlc that goes on from the encoder of dpr; the base of scout-full.",
            MlcOnBase(),
            encoder="minilm",
        ),
        Recipe(
            "tool2vec-tuned",
            "tool2vec over an encoder tuned so that queries with a common tool lie near each other.",
            Tool2VecTuned(),
            encoder="minilm",
        ),
        Recipe(
            "feedback-prf",
            "hybrid that adds words of the first tools to the query, if that helps on dev; no language model.",
            FeedbackPrf(),
        ),
        *(
            Recipe(name, summary, FeedbackDpr(), settings, encoder="minilm")
            for name, summary, settings in _FEEDBACK_DPR
        ),
        Recipe("mmrr", "Searches for the description of a tool that a language model imagines.", Mmrr()),
        Recipe(
            "qta",
            "dpr, tuned on training queries and on a language model's rewritings of them.",
            Qta(),
            encoder="minilm",
        ),
    )
}
