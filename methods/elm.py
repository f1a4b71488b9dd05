"""ELM: learn what the start model says if prompted as a novice."""

from dataclasses import replace
from typing import ClassVar

from pydantic import field_validator
from torch import Tensor

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.method import LossBatch, Method, Needs, Part, Terms
from unlearnbench.api.retain_terms import retain_kl
from unlearnbench.losses.lm_head import at_least_fp32
from unlearnbench.losses.predictions import Reference

_BOTH: frozenset[Part] = frozenset({"forget", "retain"})


class ELM(Method):
    """ELM (erasure of language memory): Gandikota et al. 2024, arXiv:2410.02760.

    L = mean_t KL(a_t ‖ p_t) + α · mean_r KL(p_ref,r ‖ p_r)
    a_t ∝ p_ref(· | x_t) · (p_ref(· | novice, x_t) / p_ref(· | expert, x_t))^η

    t, r   answer token of a forget row, of a retain row;  x_t  the row up to t
    p      the model;  p_ref  the frozen start model, also with the prompts `novice` and `expert`

    Let h be the inputs of the output layer. Then a is computed as the layer's output at h_ref + η
    (h_novice − h_expert). Both forms are equal if the layer is linear, but not if it caps logits
    (Gemma 2). The loss is the paper's cross entropy minus the entropy of a_t, which does not
    change. The paper's third term, the fluency of texts that the erased model writes, is not
    available here.

    Literature: this method has its own retain term, so add no other one. The released code raises
    η from 1 to 1000 along a text, keeps the 50 most likely tokens of a, and trains LoRA (rank 256,
    α 16) on layers 4 to 8 at 5.0e-5. [source: rohitgandikota/erasing-llm@fa33064 erase.py]
    """

    family = "target distribution"
    needs = Needs(parts=_BOTH, distributions=_BOTH)
    ranges: ClassVar = {"eta": (0.3, 30.0), "retain_weight": (0.5, 10.0)}  # ours

    eta: float = setting(3.0, "exponent η of the ratio", "ours: theirs rises from 1 to 1000", gt=0)
    retain_weight: float = setting(
        1.0, "weight α of the retain rows' KL", "Gandikota et al. 2024, arXiv:2410.02760", ge=0
    )
    expert: str = setting(
        "An expert who knows all about this answers.\n{question}",
        "prompt of an expert, who knows the answer; it contains {question}",
        "ours: the authors' name the subject",
    )
    novice: str = setting(
        "A novice who knows nothing about this answers.\n{question}",
        "prompt of a novice, who does not know the answer; it contains {question}",
        "ours: the authors' name the subject",
    )

    @field_validator("expert", "novice")
    @classmethod
    def _has_the_question(cls, text: str) -> str:
        if "{question}" not in text:
            raise ValueError("the prompt needs {question}, which stands for the row's own")
        return text

    def needed(self) -> Needs:
        """Return the needs with the start model's predictions after both prompts."""
        return replace(self.needs, prompts=(self.expert, self.novice))

    def loss(self, batch: LossBatch) -> Terms:
        """Return two terms, `forget` and `retain`."""
        divergence = batch.forget.kl_from(self._erased(batch))  # [N]
        return {
            "forget": batch.forget.mean_tokens(divergence),
            "retain": self.retain_weight * retain_kl(batch),
        }

    def _erased(self, batch: LossBatch) -> Reference:
        """Return the start model's predictions of forget rows, moved from expert to novice."""
        start = batch.reference.forget
        expert, novice = (_inputs(prompted) for prompted in batch.reference.prompted)
        plain = _inputs(start)
        moved = plain + self.eta * (novice - expert)
        # Inputs may be logits. Masked logits are −∞ for both prompts, and their difference is NaN.
        moved = moved.where(~plain.isneginf(), plain)
        return replace(start, hidden=moved.to(start.distributions[0].dtype))


def _inputs(reference: Reference) -> Tensor:
    """Return the inputs h of the output layer [N, H], in float32 or more."""
    return at_least_fp32(reference.distributions[0])
