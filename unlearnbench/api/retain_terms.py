"""Retain terms: losses on the retain rows that can be added to the loss of any method.

Gradient difference is gradient ascent with `nll`. KL minimisation is gradient ascent with `kl`.
"""

from torch import Tensor

from unlearnbench.api.method import LossBatch


def retain_nll(batch: LossBatch) -> Tensor:
    """Compute the mean negative log-likelihood of the retain rows' answer tokens."""
    return batch.retain.mean_tokens(batch.retain.cross_entropy())


def retain_kl(batch: LossBatch) -> Tensor:
    """Compute the mean of KL(p_ref ‖ p) over the retain rows' answer tokens.

    p_ref are the start model's next-token distributions, and p those of the trained model.
    """
    return batch.retain.mean_tokens(batch.retain.kl_from(batch.reference.retain))
