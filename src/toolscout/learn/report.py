"""The report of a learning run. The file `<home>/learn/last.json` contains the newest one."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from toolscout.home.database import open_home
from toolscout.learn.gate import PromotionVerdict
from toolscout.location import Home

__all__ = ["LAST_FILE", "Candidate", "Report", "last"]

LAST_FILE: Final = "learn/last.json"


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One recipe that was tried: its model and metrics on dev, or the problem that prevented the fit.

    Attributes:
        recipe: its name.
        model: name of the fitted model; None if the fit failed.
        dev: measure → mean on dev.
        seconds: duration of the fit.
        problem: why the fit failed; otherwise empty.
    """

    recipe: str
    model: str | None = None
    dev: dict[str, float] = {}
    seconds: float = 0.0
    problem: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a run.

    Attributes:
        outcome: promoted or refused; would-promote or would-refuse after a dry run.
        reason: why, in one sentence or more.
        champion: the champion before the run: the name of a model, or of the recipe of the settings.
        candidate: name of the model that was chosen on dev; None if no candidate could be fitted.
        evidence: how many requests the journal has, and how many were left out and why.
        splits: numbers of train, dev and test requests.
        candidates: the recipes that were tried.
        verdict: the decision of the gate; None if the run ended before the gate.
        seconds: wall time.
        at: start of the run.
    """

    outcome: str
    reason: str
    champion: str
    candidate: str | None
    evidence: dict[str, Any]
    splits: dict[str, int]
    candidates: tuple[Candidate, ...]
    verdict: PromotionVerdict | None
    seconds: float
    at: str


def last(home: Home) -> Report | None:
    """Return the report of the last finished run; None if there is none, or it cannot be read."""
    try:
        return msgspec.json.decode(open_home(home).read_document(LAST_FILE), type=Report)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
