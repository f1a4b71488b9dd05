"""Task vector: learn the forget rows, then move weights the other way."""

from typing import ClassVar

from torch import Tensor

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.method import LossBatch, Method, Needs


class TaskVector(Method):
    """Negated task vector: Ilharco et al. 2023, arXiv:2212.04089; for unlearning in MUSE.

    L = mean_t −log p_t,   θ_evaluated = θ_start − α · (θ_trained − θ_start)

    t   answer token of a forget row;  p_t  probability of the true token
    θ   weights. The loss fine-tunes the model on the forget set. The evaluated model is the start
        model minus the update, scaled by α. The training loss falls, as it should.

    Every epoch evaluates its own negation, and the training continues from the trained weights.

    Literature: MUSE uses α 5 after 10 epochs on its news: `{method: task-vector, alpha: 5.0}`.
    [source: Shi et al. 2024, arXiv:2407.06460]
    An added `retain` term is negated like the rest of the loss. The term `nll` would unlearn the
    retain rows, too, whereas `kl` only keeps the update from touching them. [source: ours: the
    equation]
    """

    family = "weights"
    needs = Needs(parts=frozenset({"forget"}))
    ranges: ClassVar = {"alpha": (0.5, 10.0)}  # ours

    alpha: float = setting(
        1.0,
        "scale α of the negated update",
        "MUSE's code, as in OPTML-Group/Unlearn-Simple@f1a355d MUSE/baselines/unlearn.py",
        gt=0,
    )

    def loss(self, batch: LossBatch) -> Tensor:
        """Scalar."""
        return batch.forget.mean_tokens(batch.forget.cross_entropy())

    def update_scale(self) -> float:
        """Return −α: the evaluated model lies on the other side of the start model."""
        return -self.alpha
