"""PDU: flatten logits of forget rows, and bound the retain loss."""

from collections.abc import Mapping
from typing import ClassVar

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.method import LossBatch, Method, Needs, Terms

_RUNS = "locuslab/open-unlearning@d3d7cf9 community/methods/PDU/run.sh, TOFU"


class PDU(Method):
    """PDU: Entesari et al. 2025, arXiv:2506.05314 (Constrained Entropic Unlearning).

    min over θ, max over λ ≥ 0 of  L = mean_t m_t² + λ · (mean_u −log p_u − ε)
    m_t = max_v z_tv − mean_v z_tv,   λ ← max(0, λ + η · (mean_u −log p_u − ε)) after each step

    t   answer token of a forget row, z_t its logits [V];  m_t = 0 where all are equally likely
    u   answer token of a retain row;  p_u  probability of the true one
    ε   bound on the loss of retain rows. The authors advise a value slightly above the start
        model's own loss on them, and use 0.3 for TOFU. With a much larger bound, nothing holds the
        model.
    λ   price of the bound, equal in all micro-batches and processes. It begins large, because m² is
        large.

    The authors' code masks the positions after the answer tokens instead of those before. It
    updates λ in each micro-batch and process. It keeps λ fixed in 5 of 10 to 30 epochs (TOFU) or in
    3 of 10 epochs (MUSE).

    Literature: this method has its own retain term, so add no other one. For 10 epochs or more, the
    authors' warm-up on TOFU is `warmup_epochs: 5`. [source: locuslab/open-unlearning@d3d7cf9
    community/methods/PDU/run.sh, README.md]
    """

    family = "target distribution"
    needs = Needs(parts=frozenset({"forget", "retain"}))
    ranges: ClassVar = {"epsilon": (0.05, 1.0)}  # ours

    epsilon: float = setting(0.3, "bound ε on the retain rows' mean NLL", _RUNS, ge=0)
    dual_start: float = setting(100.0, "λ before the first step", _RUNS, ge=0)
    dual_rate: float = setting(5.0, "step size η of λ", _RUNS, ge=0)
    warmup_epochs: int = setting(
        1,
        "number of first epochs in which λ stays fixed",
        "ours: runs have 5 epochs by default, all of which the authors' 5 of 10 to 30 would take",
        ge=0,
    )

    def start(self) -> Mapping[str, float]:
        """Return λ before the first step."""
        return {"dual": self.dual_start}

    def loss(self, batch: LossBatch) -> Terms:
        """Return two terms, `forget` and `retain`."""
        forget = batch.forget
        retain = batch.retain
        violation = retain.mean_tokens(retain.cross_entropy() - self.epsilon)
        batch.report("violation", violation)
        return {
            "forget": forget.mean_tokens(forget.margin.square()),
            "retain": batch.state["dual"] * violation,
        }

    def advance(
        self, state: Mapping[str, float], reported: Mapping[str, float], epoch: int
    ) -> Mapping[str, float]:
        """Return λ after a step, from how far the step's retain loss is above ε."""
        if epoch <= self.warmup_epochs:
            return state
        return {"dual": max(0.0, state["dual"] + self.dual_rate * reported["violation"])}
