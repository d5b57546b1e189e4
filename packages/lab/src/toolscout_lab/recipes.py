"""The recipes of toolscout-lab: methods with torch or a language model, the papers' settings, and their ablations.

`recipes.registry` finds this table by the entry point group `toolscout.methods`.
"""

from __future__ import annotations

from typing import Final

from toolscout.rankers import Method, Recipe
from toolscout.rankers.tool2vec import Tool2Vec
from toolscout_lab.machine import Record
from toolscout_lab.rankers.colt import Colt
from toolscout_lab.rankers.crossencoder import CrossEncoderRerank
from toolscout_lab.rankers.decided import Decided
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
PUBLISHED_TOOL2VEC: Final = {  # the cosine with the mean of a tool's queries, and no other source of scores
    "kappa": 0.0,
    "agreement": 0.0,
    "novelty": 0.0,
    "sharpness": 1.0,
}
PUBLISHED_MASSTOOL: Final = {"transfer": "gate", "seen": "graph", "loss": "colt", "length": 10, "sharpness": 1.0}
PUBLISHED_TOOLRERANK: Final = {"seen": 10, "unseen": 50, "sure": 0.8, "each": 3, "alike": 0.8}


def _tune(
    name: str, summary: str, method: Method, settings: Record | None = None, *, when: str = "", revision: int = 1
) -> Recipe:
    """Make a recipe over the encoder MiniLM, which most of them tune."""
    return Recipe(name, summary, method, settings or {}, when=when, encoder="minilm", revision=revision)


def _rerank_first(count: int) -> Recipe:
    """Make Rerank-m with settings of toolrerank, so that recipes with different m share one cross-encoder."""
    settings = {"seen": count, "unseen": count, "hierarchy": "none"}
    return _tune(f"crossencoder-{count}", f"crossencoder that reads {count} tools.", ToolRerank(), settings, revision=2)


_RECIPES: Final = (
    _tune(
        "scout-full",
        "scout-light that also tunes two encoders on your requests, each weighed by what held-out requests show.",
        ScoutFull(),
        when="You have a thousand logged requests or more, and torch. `toolscout learn --full` fits it.",
        revision=3,
    ),
    _tune(
        "mlc",
        "A tuned encoder with a linear classifier over tools and sets of tools.",
        Mlc(),
        when="You have thousands of logged requests, a stable catalogue, and torch.",
    ),
    _tune(
        "hybrid-dpr",
        "BM25 fused with an encoder tuned on your requests (dpr).",
        HybridDpr(),
        when="Tools come and go. What it learned from requests also helps with new tools. Needs torch.",
    ),
    _tune(
        "toolrefiner",
        "Reads the first tools of mlc together with the query, and orders them anew.",
        ToolRefiner(),
        when="Requests need several tools at once, and you have torch.",
        revision=2,
    ),
    _tune(
        "crossencoder",
        "Reads each of the first tools of another recipe together with the query, and orders them anew.",
        CrossEncoderRerank(),
        when="The order of the first tools matters more than tens of milliseconds per search.",
    ),
    Recipe(
        "feedback",
        "A language model reads the first tools and rewrites the query, round by round.",
        Feedback(),
        when="Requests are vague, and a search may take seconds and cost tokens.",
    ),
    _tune(
        "dpr", "An encoder tuned so that queries lie near all their gold tools; all other tools are negatives.", Dpr()
    ),
    _tune(
        "dpr-inbatch",
        "An encoder tuned with one gold tool per query; other tools of the batch are negatives, as usual.",
        Dpr(),
        {"negatives": "batch", "epochs": 2, "batch": 64, "rate": 2e-5},
    ),
    _tune("colt", "Tool vectors tuned on graphs of tools that are needed together, after COLT.", Colt()),
    _tune("colt-no-semantic", "colt over an untuned encoder.", Colt(), {"base": None}),
    _tune("colt-no-collaborative", "colt without its second stage.", Colt(), {"collaborative": False}),
    _tune("colt-no-contrastive", "colt without its contrastive loss.", Colt(), {"contrast": 0.0}),
    _tune("colt-strong", "colt over dpr, with settings chosen on dev queries of ToolLens.", Colt(), STRONG_COLT),
    *(
        _tune(name, summary, MassTool(), settings, revision=2)
        for name, summary, settings in (
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
    ),
    _tune(
        "toolrefiner-tool2vec",
        "toolrefiner over tool2vec-tuned.",
        ToolRefiner(),
        {"base": "tool2vec-tuned", "give_way": True},
        revision=2,
    ),
    *map(_rerank_first, (10, 30, 50)),
    *(
        _tune(name, summary, ToolRerank(), settings, revision=2)
        for name, summary, settings in (
            ("toolrerank", "crossencoder that treats new tools and tools of one parent differently.", {}),
            ("toolrerank-published", "toolrerank with the best values of the paper's grid.", PUBLISHED_TOOLRERANK),
            ("toolrerank-none", "toolrerank without its hierarchy.", {"hierarchy": "none"}),
            ("toolrerank-single", "toolrerank that assumes one parent per query.", {"hierarchy": "single"}),
            ("toolrerank-multi", "toolrerank that assumes several parents per query.", {"hierarchy": "multi"}),
            (
                "toolrerank-oracle",
                "toolrerank that is told how many parents a query needs; an upper bound, for bench only.",
                {"hierarchy": "oracle"},
            ),
        )
    ),
    _tune(
        "mlc-published",
        "mlc with one layer over the tools, binary cross-entropy, and no other source of scores.",
        Mlc(),
        PUBLISHED_MLC,
    ),
    Recipe(
        "tool2vec-published",
        "tool2vec by the cosine with the mean query of each tool alone, without descriptions.",
        Tool2Vec(),
        PUBLISHED_TOOL2VEC,
    ),
    _tune("mlc-dpr", "mlc that goes on from the encoder of dpr; the base of scout-full.", MlcOnBase()),
    _tune(
        "tool2vec-tuned",
        "tool2vec over an encoder tuned so that queries with a common tool lie near each other.",
        Tool2VecTuned(),
    ),
    _tune(
        "tool2vec-mined",
        "tool2vec-tuned as in the released code: triplets mined among the 100 nearest queries, and means alone.",
        Tool2VecTuned(),
        {"mined": 100, "each": 5, **PUBLISHED_TOOL2VEC},
    ),
    Recipe(
        "feedback-prf",
        "hybrid that adds words of the first tools to the query, if that helps on dev; no language model.",
        FeedbackPrf(),
    ),
    *(
        _tune(name, summary, FeedbackDpr(), settings)
        for name, summary, settings in (
            ("feedback-dpr", "dpr, tuned further on queries that are reworded round by round.", {}),
            ("feedback-dpr-no-warmup", "feedback-dpr from an untuned encoder.", {"base": None}),
            (
                "feedback-dpr-no-rounds",
                "feedback-dpr without new wordings; hard negatives alone are new.",
                {"rounds": 0},
            ),
            ("feedback-dpr-no-hard", "feedback-dpr without hard negatives.", {"hard": 0}),
            (
                "feedback-dpr-no-joint",
                "feedback-dpr that learns from one round after another, without hard negatives.",
                {"joint": False, "hard": 0},
            ),
        )
    ),
    Recipe(
        "decided",
        "scout, then a decision model of yours picks among the first tools, or says that none fits.",
        Decided(),
    ),
    Recipe("mmrr", "Searches for the description of a tool that a language model imagines.", Mmrr()),
    _tune("qta", "dpr, tuned on training queries and on a language model's rewritings of them.", Qta()),
)
LAB_RECIPES: Final[dict[str, Recipe]] = {recipe.name: recipe for recipe in _RECIPES}
