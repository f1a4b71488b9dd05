"""AltPO: prefer what else the model would answer to the answer that is to be forgotten."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator
from torch import Tensor
from torch.nn.functional import softplus

from unlearnbench.method import LossBatch, Method, Needs, Part, Sampling

_PAIR: frozenset[Part] = frozenset({"forget", "alternative"})
_AUTHORS = (
    "Question: {question}\nAnswer:{answer}\nNow write another version of the answer with some "
    "alternate plausible facts that change answer details.\n",
    " Alternate Answer :",
    ("Question:", "Q:"),  # theirs with a space behind end no other text
)
"""Instruction for Llama-2, prefix of the reply and words that end it, as their runs had them:
molereddy/Alternate-Preference-Optimization@c9b78bd generate.py, config/generate.yaml."""


class AltPO(Method):
    """Alternate preference optimisation: Mekala et al. 2024, arXiv:2409.13474.

    L = −(2/β) · mean_b log σ(β · ((s_a − s_ref,a) − (s_l − s_ref,l)))

    b         pair of rows with the same forget question: l  the true answer, a  an alternative that
              the frozen start model has sampled, drawn anew in each epoch out of `alternatives`
    s, s_ref  summed answer log-probability [B], policy and frozen start
    This is DPO with other winners. The factor 2/β is that of the authors' code and of NPO, so that
    rates and weights are theirs; `scaled: false` leaves it out, as in the equation of DPO. Their
    retain term is `retain: {term: nll}`.

    `dpo` has the other convention by default: 20 times less at β 0.1, at the same rate and beside
    the same retain weight.

    A model that knows the answer by heart mostly repeats it when it is asked the plain question,
    the default here, and a pair of equal rows teaches nothing. The authors show chat models the
    answer and instruct them to write another: `asked: authors` is their instruction for Llama-2,
    their `prefix` of the reply and their words that end it, `stop`. Without these an alternative
    is the tokens that were sampled, and one that met the limit of `max_new_tokens` has no EOS to
    learn. With `prefix` or `stop` it is a text, as in their code: cut before the first word that
    ends it, without outer white space, encoded as the rows of the data are, and so with an EOS.
    (Sampling goes on to the EOS or the limit; what follows such a word is dropped.) A higher
    `temperature` serves small models.

    Literature: `{method: altpo, asked: authors, retain: {term: nll}}` at 5.0e-5 for 2 epochs, in
    batches of 35. For other models the authors search β 0.05, 0.1, 0.5, rates 1.0e-5, 2.0e-5,
    5.0e-5 and retain weights 1, 2, 5. [source: molereddy/Alternate-Preference-Optimization@c9b78bd
    README.md, generate.py, config; locuslab/open-unlearning@d3d7cf9
    community/methods/AltPO/README.md]
    """

    needs: ClassVar[Needs] = Needs(parts=_PAIR, logprobs=_PAIR, alternatives=Sampling(5))

    later: ClassVar[frozenset[str]] = frozenset({"asked", "prefix", "stop"})

    beta: float = Field(
        default=0.1,
        gt=0,
        description="inverse temperature β [source: "
        "molereddy/Alternate-Preference-Optimization@c9b78bd README.md]",
    )
    scaled: bool = Field(
        default=True,
        description="multiply the loss by 2/β [source: "
        "molereddy/Alternate-Preference-Optimization@c9b78bd dataloader.py]",
    )
    alternatives: int = Field(
        default=5,
        ge=1,
        description="alternatives to each forget answer [source: "
        "molereddy/Alternate-Preference-Optimization@c9b78bd config/generate.yaml]",
    )
    temperature: float = Field(
        default=1.0,
        gt=0,
        description="at which they are sampled [source: "
        "molereddy/Alternate-Preference-Optimization@c9b78bd config/generate.yaml]",
    )
    max_new_tokens: int = Field(
        default=200,
        ge=1,
        description="most tokens of an alternative [source: "
        "molereddy/Alternate-Preference-Optimization@c9b78bd config/generate.yaml]",
    )
    asked: Literal["instruction", "authors"] = Field(
        default="instruction",
        description="what the start model is asked: `instruction`, or as the authors ask Llama-2 "
        "[source: ours: their wording is made for chat models]",
    )
    instruction: str = Field(
        default="{question}",
        description="what the start model is asked; may also contain {answer}, the true one "
        "[source: ours: the question as it is fits every model]",
    )
    prefix: str = Field(
        default="",
        description="how its reply begins; the alternative goes on from there [source: ours: a "
        "model without an instruction needs none]",
    )
    stop: str = Field(
        default="",
        description="texts that an alternative ends before, with | between them [source: ours: as "
        "for `prefix`]",
    )

    @field_validator("instruction")
    @classmethod
    def _asks(cls, text: str) -> str:
        if "{question}" not in text:
            raise ValueError("instruction must contain {question}, where the question goes")
        return text

    @model_validator(mode="after")
    def _asks_once(self) -> Self:
        for name in ("instruction", "prefix", "stop"):
            given = getattr(self, name) != type(self).model_fields[name].default
            if given and self.asked == "authors":
                raise ValueError(f"{name} has no effect with asked: authors; drop one of the two")
        return self

    def needed(self) -> Needs:
        """As many alternatives as asked for."""
        words = (self.instruction, self.prefix, tuple(filter(None, self.stop.split("|"))))
        words = _AUTHORS if self.asked == "authors" else words
        how = Sampling(self.alternatives, self.temperature, self.max_new_tokens, *words)
        return Needs(parts=_PAIR, logprobs=_PAIR, alternatives=how)

    def loss(self, batch: LossBatch) -> Tensor:
        """Scalar."""
        reference = batch.reference
        win = batch.alternative.sequence_logprob - reference.alternative.sequence_logprob  # [B]
        lose = batch.forget.sequence_logprob - reference.forget.sequence_logprob  # [B]
        return batch.forget.mean_sequences(self._scale * softplus(-self.beta * (win - lose)))

    def value_at_reference(self) -> float:
        """That of softplus of a margin of 0."""
        return self._scale * math.log(2)

    @property
    def _scale(self) -> float:
        return 2 / self.beta if self.scaled else 1.0
