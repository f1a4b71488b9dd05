"""KTO: mark the forget answers as undesirable."""

import math
from typing import ClassVar, Literal

from torch import Tensor
from torch.nn.functional import softplus

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.method import LossBatch, Method, Needs, Terms

_PAPER = "Ethayarajh et al. 2024, arXiv:2402.01306"


class KTO(Method):
    """KTO: Ethayarajh et al. 2024, arXiv:2402.01306; for unlearning Zhang et al. 2024 (NPO).

    L = λ · mean_b (1 − v_b),   v_b = σ(β · (z₀ − (s_b − s_ref,b))),
    z₀ = max(0, mean_r (s_r − s_ref,r)), detached

    b         forget row, which is undesirable; there are no desirable rows
    r         refusal: a forget question with an unrelated answer, for the divergence from the start
    s, s_ref  summed answer log-probability, of the model and of the frozen start model

    z₀ is computed over the whole optimiser step, over all micro-batches and processes.

    `value: log-sigmoid` is λ · mean_b −log v_b. This is the variant of the NPO paper
    (arXiv:2404.05868, equation 18), which uses λ = 2/β (`weight: 20`) and does not clamp
    (`clamp: false`). Unlike equation 19 of that paper, its code leaves z₀ without β
    (`scale_baseline: false`). The code also adds constants.

    Literature: the NPO paper also adds `retain: {term: nll}`. With
    `{value: log-sigmoid, clamp: false, weight: 20, scale_baseline: false}` the gradient is that of
    its code at β 0.1, whose constant has a slip of precedence, 1 − σ(…) · 2/β.
    [source: licong-lin/negative-preference-optimization@1207bbe TOFU/dataloader.py]
    """

    family = "preference"
    needs = Needs(
        parts=frozenset({"forget"}),
        logprobs=frozenset({"forget", "refusal"}),
        statistics=frozenset({"refusal"}),
    )
    ranges: ClassVar = {"beta": (0.03, 1.0)}  # ours: that of `npo`

    beta: float = setting(
        0.1,
        "inverse temperature β",
        "Ethayarajh et al. 2024, arXiv:2402.01306; "
        "licong-lin/negative-preference-optimization@1207bbe TOFU/config/forget.yaml",
        gt=0,
    )
    weight: float = setting(1.0, "weight λ of undesirable answers", _PAPER, gt=0)
    value: Literal["sigmoid", "log-sigmoid"] = setting(
        "sigmoid", "sigmoid as in KTO, log-sigmoid as in the NPO paper", _PAPER
    )
    clamp: bool = setting(True, "z₀ is at least 0", _PAPER)
    scale_baseline: bool = setting(
        True,
        "z₀ is multiplied by β",
        "Ethayarajh et al. 2024, arXiv:2402.01306; arXiv:2404.05868, equation 19",
    )

    def statistics(self, batch: LossBatch) -> Terms:
        """Return the mean log-ratio of the refusals."""
        log_ratio = batch.refusal.sequence_logprob - batch.reference.refusal.sequence_logprob  # [B]
        return {"log_ratio": batch.refusal.mean_sequences(log_ratio)}

    def loss(self, batch: LossBatch) -> Tensor:
        """Scalar."""
        baseline = batch.statistics["log_ratio"]
        if self.clamp:
            baseline = baseline.clamp(min=0)
        if self.scale_baseline:
            baseline = self.beta * baseline
        log_ratio = batch.forget.sequence_logprob - batch.reference.forget.sequence_logprob  # [B]
        gain = self.beta * log_ratio - baseline
        values = gain.sigmoid() if self.value == "sigmoid" else softplus(gain)
        return self.weight * batch.forget.mean_sequences(values)

    def value_at_reference(self) -> float:
        """Return the value at a gain of 0."""
        return self.weight * (0.5 if self.value == "sigmoid" else math.log(2))
