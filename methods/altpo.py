"""AltPO: prefer other answers of the start model to the true one."""

import math
from typing import Annotated, ClassVar, Literal, Self

from pydantic import field_validator, model_validator
from torch import Tensor
from torch.nn.functional import softplus

from unlearnbench.api.hyperparameters import refuse_unused, setting
from unlearnbench.api.identity import IF_SET
from unlearnbench.api.method import LossBatch, Method, Needs, Part, Sampling

_PAIR: frozenset[Part] = frozenset({"forget", "alternative"})
_AUTHORS = (
    "Question: {question}\nAnswer:{answer}\nNow write another version of the answer with some "
    "alternate plausible facts that change answer details.\n",
    " Alternate Answer :",
    ("Question:", "Q:"),  # theirs with a space behind end no other text
)
"""Instruction for Llama-2, prefix of the reply and words that end it, as their runs had them:
molereddy/Alternate-Preference-Optimization@c9b78bd generate.py, config/generate.yaml."""

_CONFIG = "molereddy/Alternate-Preference-Optimization@c9b78bd config/generate.yaml"


class AltPO(Method):
    """Alternate preference optimisation: Mekala et al. 2024, arXiv:2409.13474.

    L = −(2/β) · mean_b log σ(β · ((s_a − s_ref,a) − (s_l − s_ref,l)))

    b         pair of rows with the same forget question: l  the true answer, a  an alternative that
              the frozen start model has sampled; each epoch draws one of its `alternatives`
    s, s_ref  summed answer log-probability [B], policy and frozen start
    This is DPO with other winners. The factor 2/β is that of the authors' code and of NPO, so that
    rates and weights are comparable; `scaled: false` omits it, as in the equation of DPO. Their
    retain term is `retain: {term: nll}`.

    `dpo` has the other convention by default: 20 times less at β 0.1, with the same rate
    and retain weight.

    A model that has memorised the answer mostly repeats it after the plain question, the default
    here, and a pair of equal rows has no gradient. The authors show chat models the answer and
    instruct them to write another: `asked: authors` is their instruction for Llama-2,
    their `prefix` of the reply and the words that end it, `stop`. Without these an alternative
    is the sampled tokens, and one that reaches `max_new_tokens` has no EOS to learn. With `prefix`
    or `stop` it is a text, as in their code: cut before the first stop word, stripped, encoded as
    the rows of the data are, and so with an EOS. (Sampling continues to the EOS or the limit; text
    after a stop word is dropped.) Small models need a higher `temperature`.

    Literature: `{method: altpo, asked: authors, retain: {term: nll}}` at 5.0e-5 for 2 epochs, in
    batches of 35. For other models the authors search β 0.05, 0.1, 0.5, rates 1.0e-5, 2.0e-5,
    5.0e-5 and retain weights 1, 2, 5. [source: molereddy/Alternate-Preference-Optimization@c9b78bd
    README.md, generate.py, config; locuslab/open-unlearning@d3d7cf9
    community/methods/AltPO/README.md]
    """

    family = "preference"
    needs = Needs(parts=_PAIR, logprobs=_PAIR, alternatives=Sampling(5))
    ranges: ClassVar = {"beta": (0.03, 1.0)}  # ours: the authors try 0.05 to 0.5

    beta: float = setting(
        0.1,
        "inverse temperature β",
        "molereddy/Alternate-Preference-Optimization@c9b78bd README.md",
        gt=0,
    )
    scaled: bool = setting(
        True,
        "multiply the loss by 2/β",
        "molereddy/Alternate-Preference-Optimization@c9b78bd dataloader.py",
    )
    alternatives: int = setting(5, "alternatives to each forget answer", _CONFIG, ge=1)
    temperature: float = setting(1.0, "at which they are sampled", _CONFIG, gt=0)
    max_new_tokens: int = setting(200, "most tokens of an alternative", _CONFIG, ge=1)
    asked: Annotated[Literal["instruction", "authors"], IF_SET] = setting(
        "instruction",
        "the prompt of the start model: `instruction`, or the authors' prompt for Llama-2",
        "ours: their wording is for chat models",
    )
    instruction: str = setting(
        "{question}",
        "prompt of the start model; may also contain {answer}, the true one",
        "ours: the question as it is fits every model",
    )
    prefix: Annotated[str, IF_SET] = setting(
        "",
        "beginning of its reply, which the alternative continues",
        "ours: a model without an instruction needs none",
    )
    stop: Annotated[str, IF_SET] = setting(
        "", "texts before which an alternative ends, separated by |", "ours: as for `prefix`"
    )

    @field_validator("instruction")
    @classmethod
    def _check_instruction(cls, text: str) -> str:
        if "{question}" not in text:
            raise ValueError("instruction must contain {question}, the place of the question")
        return text

    @model_validator(mode="after")
    def _check_unused(self) -> Self:
        if self.asked == "authors":
            refuse_unused(self, "asked", "instruction", "prefix", "stop")
        return self

    def needed(self) -> Needs:
        """The sampling settings, with the configured number of alternatives."""
        words = (self.instruction, self.prefix, tuple(filter(None, self.stop.split("|"))))
        words = _AUTHORS if self.asked == "authors" else words
        options = Sampling(self.alternatives, self.temperature, self.max_new_tokens, *words)
        return Needs(parts=_PAIR, logprobs=_PAIR, alternatives=options)

    def loss(self, batch: LossBatch) -> Tensor:
        """Scalar."""
        reference = batch.reference
        win = batch.alternative.sequence_logprob - reference.alternative.sequence_logprob  # [B]
        lose = batch.forget.sequence_logprob - reference.forget.sequence_logprob  # [B]
        return batch.forget.mean_sequences(self._scale * softplus(-self.beta * (win - lose)))

    def value_at_reference(self) -> float:
        """(2/β) log 2, or log 2 unscaled: softplus at a margin of 0."""
        return self._scale * math.log(2)

    @property
    def _scale(self) -> float:
        return 2 / self.beta if self.scaled else 1.0
