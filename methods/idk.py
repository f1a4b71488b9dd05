"""IDK: learn to answer forget questions with a refusal."""

from torch import Tensor

from unlearnbench.api.method import LossBatch, Method, Needs, Terms


class IDK(Method):
    """«I don't know»: Maini et al. 2024 (TOFU), section 3, there called preference optimisation.

    L = mean_t −log p_t

    t  answer token of a refusal row (a forget question, answered by a refusal, drawn in each
       epoch from the run's seed) or of a retain row, all together
    Refusals are short, so the retain rows have the larger weight, as in TOFU's code. There is no
    reference model and no losing answer, so this is not DPO.
    """

    family = "refusal"
    needs = Needs(parts=frozenset({"refusal", "retain"}))

    def loss(self, batch: LossBatch) -> Tensor | Terms:
        """Scalar, or the terms of both sides."""
        return batch.mean_over_union(
            forget=(batch.refusal, batch.refusal.cross_entropy()),
            retain=(batch.retain, batch.retain.cross_entropy()),
        )
