"""AltPO: prefer other answers of the start model to the true one."""

import math
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from pydantic import field_validator, model_validator
from torch import Tensor
from torch.nn.functional import softplus

from unlearnbench.api.hyperparameters import refuse_unused, setting
from unlearnbench.api.identity import IF_SET
from unlearnbench.api.method import LossBatch, Method, Needs, Part, Sampling

_PAIR: frozenset[Part] = frozenset({"forget", "alternative"})


class _Prompt(NamedTuple):
    """How the start model is asked for an alternative."""

    instruction: str
    prefix: str
    """Beginning of the reply."""
    stop: tuple[str, ...]
    """Texts that end the reply."""


_AUTHORS = _Prompt(
    instruction="Question: {question}\nAnswer:{answer}\nNow write another version of the answer "
    "with some alternate plausible facts that change answer details.\n",
    prefix=" Alternate Answer :",
    # The authors also have both words with a space after them, which end no other text.
    stop=("Question:", "Q:"),
)
"""The authors' prompt for Llama-2, as in their runs:
molereddy/Alternate-Preference-Optimization@c9b78bd generate.py, config/generate.yaml."""

_CONFIG = "molereddy/Alternate-Preference-Optimization@c9b78bd config/generate.yaml"


class AltPO(Method):
    """Alternate preference optimisation: Mekala et al. 2024, arXiv:2409.13474.

    L = −(2/β) · mean_b log σ(β · ((s_a − s_ref,a) − (s_l − s_ref,l)))

    b         pair of rows with the same forget question: l  the true answer, a  an alternative that
              the frozen start model has sampled; each epoch draws one of its `alternatives`
    s, s_ref  summed answer log-probability [B], of the model and of the frozen start model

    This is DPO with other winners. The factor 2/β comes from the authors' code. NPO has the same
    factor, so learning rates and retain weights are comparable between the two methods.
    `scaled: false` omits the factor, as in the equation of DPO. The method `dpo` omits it by
    default, which makes its loss 20 times smaller at β 0.1, with the same rate and retain weight.
    The authors use the retain term `retain: {term: nll}`.

    By default, alternatives are sampled after the plain question. A model that has memorised the
    answer mostly repeats it there, and a pair of equal rows has no gradient. Small models need a
    higher `temperature`. The authors show the answer to a chat model and instruct the model to
    write another one. `asked: authors` uses their instruction for Llama-2, their `prefix` of the
    reply, and their words that end it, `stop`.

    Without `prefix` and `stop`, an alternative consists of the sampled tokens. If it reaches
    `max_new_tokens`, it has no EOS to learn. With `prefix` or `stop`, an alternative is a text, as
    in the authors' code. The text is cut before the first stop word, stripped, and encoded like the
    rows of the data, so it ends with an EOS. (Sampling continues to the EOS or to the limit, and
    the text after a stop word is dropped.)

    Literature: the authors train with `{method: altpo, asked: authors, retain: {term: nll}}` at
    5.0e-5 for 2 epochs, in batches of 35. For other models, they search β among 0.05, 0.1 and 0.5,
    rates among 1.0e-5, 2.0e-5 and 5.0e-5, and retain weights among 1, 2 and 5.
    [source: molereddy/Alternate-Preference-Optimization@c9b78bd README.md, generate.py, config;
    locuslab/open-unlearning@d3d7cf9 community/methods/AltPO/README.md]
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
    temperature: float = setting(
        1.0, "temperature at which alternatives are sampled", _CONFIG, gt=0
    )
    max_new_tokens: int = setting(200, "maximal number of tokens of an alternative", _CONFIG, ge=1)
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
        """Return the needs with the configured sampling of alternatives."""
        prompt = _AUTHORS
        if self.asked != "authors":
            stop = tuple(text for text in self.stop.split("|") if text)
            prompt = _Prompt(self.instruction, self.prefix, stop)
        sampling = Sampling(
            self.alternatives,
            self.temperature,
            self.max_new_tokens,
            prompt.instruction,
            prompt.prefix,
            prompt.stop,
        )
        return Needs(parts=_PAIR, logprobs=_PAIR, alternatives=sampling)

    def loss(self, batch: LossBatch) -> Tensor:
        """Scalar."""
        reference = batch.reference
        win = batch.alternative.sequence_logprob - reference.alternative.sequence_logprob  # [B]
        lose = batch.forget.sequence_logprob - reference.forget.sequence_logprob  # [B]
        return batch.forget.mean_sequences(self._scale * softplus(-self.beta * (win - lose)))

    def value_at_reference(self) -> float:
        """Return softplus at a margin of 0: (2/β) log 2, or log 2 if it is not scaled."""
        return self._scale * math.log(2)

    @property
    def _scale(self) -> float:
        return 2 / self.beta if self.scaled else 1.0
