"""Spectral: make a gradient's largest directions its smallest."""

from typing import ClassVar

import torch

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.modifier import Filter, Gradients, Memory, RunStep


class Spectral(Filter):
    """RepSelect's spectral filter: Sondej, Yang, Mahdi 2026, arXiv:2606.17168.

    s_i ← s_k² / s_i  for i ≤ k,   G = Σ_i s_i u_i v_iᵀ

    G   gradient of a matrix; s_1 ≥ s_2 ≥ …   its singular values, u and v their vectors
    k   `directions`, at most as many as G has
    The largest directions, which many texts share, become the smallest of the k directions. What is
    left is particular to these rows. The rule is that of the released repselect_simple.py. That
    script filters only one gradient, which belongs to the MLPs and comes from the forget rows. It
    computes this gradient with an adapter that has learned these rows again, and takes steps along
    it. Here, the gradient of each step and of every matrix is filtered, without an adapter. The
    eigenvectors of GᵀG are computed each time, which is slow for matrices with thousands of
    columns.
    """

    neutral: ClassVar = {"directions": 1}

    tried: ClassVar = {"directions": 3}

    directions: int = setting(
        512, "number k of directions whose order is reversed", "filyp/open-unlearning@5955f30", ge=1
    )

    def apply(self, gradient: Gradients, memory: Memory, step: RunStep) -> Gradients:
        """The gradient with other singular values."""
        for name, matrix in gradient.tensors.items():
            if matrix.ndim == 2:
                squares, vectors = torch.linalg.eigh(gradient.gram(name))  # ascending
                kept = squares > 1e-12 * squares[-1]  # what rounding leaves of nothing
                squares, vectors = squares[kept], vectors[:, kept]
                top, right = squares[-self.directions :], vectors[:, -self.directions :]
                turned = (matrix.double() @ right) * (top[:1] / top - 1)
                matrix.add_((turned @ right.T).to(matrix.dtype))
        return gradient
