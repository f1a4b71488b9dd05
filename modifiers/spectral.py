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
        """Replace the singular values of each matrix, in place."""
        for name, matrix in gradient.tensors.items():
            if matrix.ndim != 2:
                continue
            # Eigenvalues s² of GᵀG in ascending order, and the vectors v.
            squares, vectors = torch.linalg.eigh(gradient.gram(name))
            # Rounding gives directions with s = 0 a tiny value.
            is_real = squares > 1e-12 * squares[-1]
            top_squares = squares[is_real][-self.directions :]
            top_vectors = vectors[:, is_real][:, -self.directions :]
            smallest_square = top_squares[:1]  # s_k²
            # G v_i = s_i u_i. Times s_k² / s_i² − 1, it is the change of s_i u_i.
            change = (matrix.double() @ top_vectors) * (smallest_square / top_squares - 1)
            matrix.add_((change @ top_vectors.T).to(matrix.dtype))
        return gradient
