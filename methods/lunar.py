"""LUNAR: move hidden states to those of unanswerable questions."""

from dataclasses import replace
from typing import ClassVar

from pydantic import field_validator
from torch import Tensor

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.method import (
    LossBatch,
    Method,
    Needs,
    Part,
    Terms,
    is_down_projection,
    layer_of,
)
from unlearnbench.losses.lm_head import at_least_fp32

_CODE = "facebookresearch/LUNAR@dfa56eb config/forget.yaml"
_BOTH: frozenset[Part] = frozenset({"forget", "retain"})


class LUNAR(Method):
    """LUNAR (activation redirection): Shen et al. 2025, arXiv:2502.07218.

    L = mean_t ‖h_t − h_ref,t − c u‖² / D + α · mean_r ‖h_r − h_ref,r‖² / D
    u = mean_q h_ref,q − mean_p h_ref,p

    t, r      position that predicts an answer token of a forget row, of a retain row
    h, h_ref  hidden states [D] after decoder layer ℓ, of the model and of the frozen start model;
              after the last layer, the final norm is included
    q, p      last position of a prompt: q of each of `questions`, which the model cannot or will
              not answer, and p of each forget row;  c  `steering`;  α  `retain_weight`

    Only the MLP's down-projection of layer ℓ is trained. Below the last layer, h − h_ref is
    therefore the difference of its outputs. Choose `questions` that the start model declines. A
    model that was only trained to answer declines none, and u then points to states in which it
    answers other things.

    The authors' code trains on the positions of prompts instead of answers. In each epoch, it
    trains on all retain rows. It has 199 or 260 questions.

    Literature: this method has its own retain term, so add no other one. The authors use layer 22
    of 32, counted from 0 (`layer: 23` here). They train with AdamW at 1.0e-2, a rate that falls by
    a tenth in each of 20 epochs, and with 64 tokens in a step.
    [source: facebookresearch/LUNAR@dfa56eb run_lunar.py, config/forget.yaml]
    """

    family = "hidden states"
    needs = Needs(parts=_BOTH, states=_BOTH)
    learning_rate = 1e-2  # facebookresearch/LUNAR@dfa56eb
    ranges: ClassVar = {"steering": (0.5, 8.0), "retain_weight": (0.5, 20.0)}  # ours

    layer: int = setting(
        2, "decoder layer ℓ, from 1", "ours: the smallest models have as many", ge=1
    )
    steering: float = setting(2.0, "distance c by which states are moved along u", _CODE, gt=0)
    retain_weight: float = setting(
        1.0, "weight α of the retain rows", "ours: theirs is the number of rows of each", ge=0
    )
    questions: str = setting(
        "What is the currency of the made-up country Brovandia? | Who won the Neptune chess cup?",
        "what the model cannot or will not answer, with | between questions",
        "ours: the authors' have made-up things or, by default, harmful requests",
    )

    @field_validator("questions")
    @classmethod
    def _has_questions(cls, text: str) -> str:
        if not all(question.strip() for question in text.split("|")):
            raise ValueError("there must be a question on each side of every |")
        return text

    def needed(self) -> Needs:
        """Return the needs with the states after `layer`, and the questions."""
        questions = tuple(question.strip() for question in self.questions.split("|"))
        return replace(self.needs, layers=frozenset({self.layer}), questions=questions)

    def trains(self, parameter: str, layers: int) -> bool:
        """Whether a weight is the down-projection of `layer`."""
        return layer_of(parameter) == self.layer and is_down_projection(parameter)

    def loss(self, batch: LossBatch) -> Terms:
        """Return two terms, `forget` and `retain`."""
        target = self.steering * batch.reference.forget.direction(self.layer)
        return {
            "forget": self._square_distance(batch, "forget", target),
            "retain": self.retain_weight * self._square_distance(batch, "retain", 0.0),
        }

    def _square_distance(self, batch: LossBatch, part: Part, target: Tensor | float) -> Tensor:
        """Average over tokens the squared distance of a state's move from the target.

        Args:
            batch: The batch.
            part: Rows whose states have moved.
            target: The move that is wanted, relative to the start model, [D] or 0.
        """
        start = at_least_fp32(batch.reference.parts[part].hidden_states(self.layer))
        states = at_least_fp32(batch.parts[part].hidden_states(self.layer))
        difference = states - start - target  # [N, D]
        return batch.parts[part].mean_tokens(difference.square().mean(dim=1))
