"""The losses, one equation each. Vectors and scores are float32 tensors; every loss is a mean over queries."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["binary", "colt_list", "cross_view", "each_gold", "info_nce", "list_softmax", "triplet"]

_ALMOST_ONE = 1.0 - 1e-6
_NO_SCORE = -1e4  # below each cosine divided by a temperature; minus infinity would have no gradient


def info_nce(scores: Tensor, positives: Tensor) -> Tensor:
    """Compute InfoNCE: one positive per query; every other column, in-batch or mined, is a negative.

    `-1/n Σ_i log( exp(s_ip) / Σ_j exp(s_ij) )`, s = cosine / τ.

    Args:
        scores: (n, m): query i against tool j, divided by the temperature. Hard negatives are extra columns.
        positives: (n,) int64: the column of each query's positive.
    """
    return functional.cross_entropy(scores, positives)


def list_softmax(scores: Tensor, gold: Tensor, listed: Tensor | None = None) -> Tensor:
    """Compute the cross-entropy between the uniform distribution over gold tools and the softmax over a list.

    `-1/n Σ_i Σ_j p_ij log p̂_ij`, `p = y / Σ y`, `p̂ = softmax(s)`.

    Args:
        scores: (n, m): query i against item j of its list.
        gold: (n, m) bool: at least one per row.
        listed: (n, m) bool: which places of the list are filled; None for all. Gold places must be filled.
    """
    if listed is not None:
        scores = scores.masked_fill(~listed, -torch.inf)
    logs = scores.log_softmax(dim=1).masked_fill(~gold, 0.0)
    return -(logs.sum(dim=1) / gold.sum(dim=1)).mean()


def each_gold(scores: Tensor, gold: Tensor, excluded: Tensor) -> Tensor:
    """Compute the mean over requests of the mean over gold tools of `log(1 + Σ_j exp(s_j) / exp(s_g))`, j not gold.

    Each gold tool is compared with the tools that are not gold, so that gold tools do not compete with each other.

    Args:
        scores: (n, m): request i against tool j, divided by the temperature.
        gold: (n, m) bool. A request without gold tool in the list does not count.
        excluded: (n, m) bool: tools that are neither gold nor negatives.
    """
    others = scores.masked_fill(gold | excluded, _NO_SCORE).logsumexp(dim=1, keepdim=True)
    losses = functional.softplus(others - scores).masked_fill(~gold, 0.0).sum(dim=1)
    counts = gold.sum(dim=1)
    return (losses[counts > 0] / counts[counts > 0]).mean()


def colt_list(scores: Tensor, gold: Tensor) -> Tensor:
    """Compute COLT's list-wise multi-label loss (eqs. 10-12) as a mean over queries; the paper sums.

    `-1/n Σ_i Σ_j [ p_ij log p̂_ij + (1 - p_ij) log(1 - p̂_ij) ]`, `p = y / Σ y`, `p̂ = softmax(s)`; we take γ of eq. 11
    to be exp.

    Args:
        scores: (n, L): query i against item j of its list of all its gold tools and sampled negatives.
        gold: (n, L) bool: at least one per row.
    """
    share = gold / gold.sum(dim=1, keepdim=True)
    logs = scores.log_softmax(dim=1)
    rest = torch.log1p(-logs.exp().clamp(max=_ALMOST_ONE))
    return -(share * logs + (1.0 - share) * rest).sum(dim=1).mean()


def cross_view(one: Tensor, other: Tensor, temperature: float) -> Tensor:
    """Compute COLT's contrastive loss between two views of the same queries, or scenes (eqs. 8, 9).

    `-1/n Σ_i log( exp(cos(a_i, b_i) / τ) / Σ_j exp(cos(a_i, b_j) / τ) )`.

    Args:
        one: (n, d): the anchors, of any norm.
        other: (n, d): the same items in the other view.
        temperature: τ.
    """
    cosines = functional.normalize(one, dim=1) @ functional.normalize(other, dim=1).T
    return info_nce(cosines / temperature, torch.arange(len(one), device=one.device))


def triplet(anchors: Tensor, positives: Tensor, negatives: Tensor, margin: float) -> Tensor:
    """Compute the triplet loss: the positive must be nearer than the negative by a margin.

    `1/n Σ_i max(0, cos(a_i, n_i) - cos(a_i, p_i) + margin)`.

    Args:
        anchors: (n, d), of any norm, as the other two.
        positives: (n, d).
        negatives: (n, d).
        margin: in cosine, 0 to 2.
    """
    near = functional.cosine_similarity(anchors, positives)
    far = functional.cosine_similarity(anchors, negatives)
    return functional.relu(far - near + margin).mean()


def binary(logits: Tensor, targets: Tensor) -> Tensor:
    """Compute the binary cross-entropy of independent labels, as a mean over all of them.

    `-mean[ y log σ(x) + (1 - y) log(1 - σ(x)) ]`.

    Args:
        logits: of any shape.
        targets: of the same shape, 0 to 1.
    """
    return functional.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype))
