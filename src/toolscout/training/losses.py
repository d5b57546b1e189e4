"""The losses, each one equation. Rows of vectors and scores are float32 tensors; every loss is a mean over queries."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["binary", "colt_list", "cross_view", "info_nce", "list_softmax", "multi_positive", "triplet"]

_ALMOST_ONE = 1.0 - 1e-6


def info_nce(scores: Tensor, positives: Tensor) -> Tensor:
    """One positive a query; every other column, in-batch or mined, is a negative.

    `-1/n Σ_i log( exp(s_ip) / Σ_j exp(s_ij) )`, s = cosine / τ.

    Args:
        scores: (n, m): query i against tool j, divided by the temperature. Hard negatives are further columns.
        positives: (n,) int64: the column of each query's positive.
    """
    return functional.cross_entropy(scores, positives)


def multi_positive(scores: Tensor, gold: Tensor) -> Tensor:
    """Several positives a query: each against the negatives alone, never against another positive.

    `-1/n Σ_i 1/|P_i| Σ_{p∈P_i} log( exp(s_ip) / (exp(s_ip) + Σ_{j∉P_i} exp(s_ij)) )`, s = cosine / τ.

    Args:
        scores: (n, m): query i against tool j of the list, divided by the temperature.
        gold: (n, m) bool: at least one a row.
    """
    against = scores.masked_fill(gold, -torch.inf).logsumexp(dim=1, keepdim=True)
    each = functional.softplus(against - scores).masked_fill(~gold, 0.0)
    return (each.sum(dim=1) / gold.sum(dim=1)).mean()


def list_softmax(scores: Tensor, gold: Tensor, listed: Tensor | None = None) -> Tensor:
    """Cross-entropy between the gold set's share of a list and the softmax of the scores over the whole list.

    `-1/n Σ_i Σ_j p_ij log p̂_ij`, `p = y / Σ y`, `p̂ = softmax(s)`.

    Args:
        scores: (n, m): query i against item j of its list.
        gold: (n, m) bool: at least one a row.
        listed: (n, m) bool: which places of the list are filled; None: all. A gold place is filled.
    """
    if listed is not None:
        scores = scores.masked_fill(~listed, -torch.inf)
    logs = scores.log_softmax(dim=1).masked_fill(~gold, 0.0)
    return -(logs.sum(dim=1) / gold.sum(dim=1)).mean()


def colt_list(scores: Tensor, gold: Tensor) -> Tensor:
    """COLT's list-wise multi-label loss (eqs. 10-12); a mean over queries where the paper sums.

    `-1/n Σ_i Σ_j [ p_ij log p̂_ij + (1 - p_ij) log(1 - p̂_ij) ]`, `p = y / Σ y`, `p̂ = softmax(s)`; γ of eq. 11 is read
    as exp.

    Args:
        scores: (n, L): query i against item j of its list of all its gold tools and sampled negatives.
        gold: (n, L) bool: at least one a row.
    """
    share = gold / gold.sum(dim=1, keepdim=True)
    logs = scores.log_softmax(dim=1)
    rest = torch.log1p(-logs.exp().clamp(max=_ALMOST_ONE))
    return -(share * logs + (1.0 - share) * rest).sum(dim=1).mean()


def cross_view(one: Tensor, other: Tensor, temperature: float) -> Tensor:
    """COLT's contrast between the two views of the same queries, or scenes (eqs. 8, 9).

    `-1/n Σ_i log( exp(cos(a_i, b_i) / τ) / Σ_j exp(cos(a_i, b_j) / τ) )`.

    Args:
        one: (n, d): the anchors' view, of any length.
        other: (n, d): the same things in the other view.
        temperature: τ.
    """
    cosines = functional.normalize(one, dim=1) @ functional.normalize(other, dim=1).T
    return info_nce(cosines / temperature, torch.arange(len(one), device=one.device))


def triplet(anchors: Tensor, positives: Tensor, negatives: Tensor, margin: float) -> Tensor:
    """The positive is to be nearer than the negative by a margin.

    `1/n Σ_i max(0, cos(a_i, n_i) - cos(a_i, p_i) + margin)`.

    Args:
        anchors: (n, d), of any length, as the others.
        positives: (n, d).
        negatives: (n, d).
        margin: in cosine, 0 to 2.
    """
    near = functional.cosine_similarity(anchors, positives)
    far = functional.cosine_similarity(anchors, negatives)
    return functional.relu(far - near + margin).mean()


def binary(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of independent yes-or-no answers, mean over all of them.

    `-mean[ y log σ(x) + (1 - y) log(1 - σ(x)) ]`.

    Args:
        logits: of any shape.
        targets: of the same shape, 0 to 1.
    """
    return functional.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype))
