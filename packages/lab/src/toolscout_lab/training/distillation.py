"""The task that teaches a small encoder to place texts as a large one does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from toolscout.arrays import Places
from toolscout.encoders import Vectors
from toolscout_lab.training import Task
from toolscout_lab.training.towers import Tokens, Tower

if TYPE_CHECKING:
    from toolscout_lab.encoder_data import DistilOptions

__all__ = ["Distillation", "align_vectors"]

MAX_PAIRED: Final = 4_000  # texts by which the teacher's space is turned
DEV_TEXTS: Final = 500


def align_vectors(teacher: Vectors, student: Vectors) -> Vectors:
    """Bring the teacher's vectors into the student's space, so that the student has the least to change.

    They are projected to as many dimensions as the student has, those that keep most of their squared length, and
    turned by the rotation that brings them nearest to the student's own vectors (orthogonal Procrustes).

    Args:
        teacher: (n, D) unit rows.
        student: (m, d) unit rows of the first m of these texts, d at most D.

    Returns:
        (n, d) unit rows.
    """
    _, directions = np.linalg.eigh(teacher.T @ teacher)
    projected = teacher @ directions[:, -student.shape[1] :]
    projected /= np.maximum(np.linalg.norm(projected, axis=1, keepdims=True), 1e-9)
    left, _, right = np.linalg.svd(projected[: len(student)].T @ student)
    aligned: Vectors = (projected @ (left @ right)).astype(np.float32)
    return aligned


class Distillation(Task):
    """Learns to give each text the vector that a larger encoder, the teacher, gives it.

    The loss of a batch has two parts. The first is the mean of 1 - cosine with the teacher's vector. For unit rows that
    is half the squared error of Reimers and Gurevych (2020, arXiv:2004.09813). The second compares the cosine of each
    pair of texts in the batch, as the student has it, with the teacher's: the mean squared difference, times
    `relations` (Tung and Mori, 2019, arXiv:1907.09682, who also divide each row by its length). The vectors of single
    words stay as they are, since many words occur in few texts. Dev is the mean cosine with the teacher of texts that
    are not learned.
    """

    def __init__(self, tower: Tower, tokens: Tokens, teacher: Vectors, identity: str, settings: DistilOptions) -> None:
        """Describe the task.

        Args:
            tower: the student.
            tokens: the texts, in random order.
            teacher: (n, D) unit rows, one for each text.
            identity: see `Task`.
            settings: of the training.
        """
        self.tower, self.module, self.identity, self.settings = tower, tower.model, identity, settings
        tower.model[0].auto_model.get_input_embeddings().weight.requires_grad_(False)
        self.tokens = tokens
        self.targets = torch.from_numpy(align_vectors(teacher, tower.vectors(tokens[:MAX_PAIRED]))).to(tower.device)
        n_dev = min(DEV_TEXTS, len(tokens) // 10)
        self.size = len(tokens) - n_dev
        self.lengths = [len(text) for text in tokens[: self.size]]

    def backward(self, rows: Places, random: np.random.Generator) -> float:
        """Accumulate the gradients of a batch of texts and return the loss."""
        targets = self.targets[torch.from_numpy(rows).to(self.tower.device)]

        def compute_loss(vectors: torch.Tensor) -> torch.Tensor:
            """Compute the loss of the batch from the student's rows."""
            apart = (1 - (vectors * targets).sum(dim=1)).mean()
            relations = ((vectors @ vectors.T - targets @ targets.T) ** 2).mean()
            return apart + self.settings.relations * relations

        return self.tower.backward([self.tokens[row] for row in rows], compute_loss, self.settings.hold)

    def figures(self) -> dict[str, float]:
        """Return the mean cosine with the teacher of texts that are not learned. Without any: nothing."""
        if self.size == len(self.tokens):
            return {}
        vectors = self.tower.vectors(self.tokens[self.size :])
        return {"cosine": float((vectors * self.targets[self.size :].cpu().numpy()).sum(axis=1).mean())}
