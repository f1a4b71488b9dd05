"""IHL: push the true token just below the best other token."""

from torch import Tensor

from unlearnbench.api.method import LossBatch, Method, Needs


class IHL(Method):
    """Inverted hinge loss: Cha et al. 2025 (LoKU), arXiv:2408.06621.

    L = mean_t 1 + p_t − max_{v≠y_t} p_tv

    t    answer token of a forget row;  y_t  its label
    p_t  probability of the label, p_tv of another token

    The loss is between 0 and 2, whereas log p_t has no lower bound. As a function of the
    probabilities, it lowers only that of the label and raises only that of the best other token.

    Literature: the authors add `retain: {term: nll}`. They train LoRA (rank 32, α 64) at 1.0e-4 for
    5 epochs in batches of 32. Their adapters begin with the weights that matter to the forget rows
    (FILA), which is not available here. [source: csm9493/efficient-llm-unlearning@272484a]
    """

    family = "target distribution"
    needs = Needs(parts=frozenset({"forget"}))

    def loss(self, batch: LossBatch) -> Tensor:
        """Scalar."""
        return batch.forget.mean_tokens(1 + batch.forget.lead)
