"""The contracts of methods that train nothing and change the model's input.

A `Wrapper` shifts the embeddings of a prompt's tokens. A `PromptWrapper` writes another prompt: it
puts earlier turns, a system message or text around the question. In both cases the harness scores
and generates the same answers as for a model without the method. A prompt attack asks its question
first, and the method wraps what is asked. An attack with the weights bypasses the method.

    class Polite(PromptWrapper):
        def asked(self, row: Question, rows: DefenderRows) -> Question:
            return replace(row, question=f"Please be careful. {row.question}")
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from unlearnbench.api.benchmark import Question
from unlearnbench.api.defender_rows import DefenderRows as DefenderRows
from unlearnbench.api.hyperparameters import HyperParameters

Prompt = tuple[int, ...]
"""The tokens of a question with its template."""

Shift = Callable[[Sequence[Prompt]], Sequence[Tensor | None]]
"""Maps each prompt to a shift [tokens, d] of the first d dimensions of its tokens' embeddings.

None in place of a shift leaves the prompt unchanged.
"""


@dataclass(frozen=True)
class Prompts:
    """The data that a wrapper may be fitted to: forget and retain questions without answers."""

    forget: Sequence[Prompt]
    retain: Sequence[Prompt]
    seed: int
    """The run's seed."""
    mean_states: Callable[[Sequence[Prompt]], Tensor]
    """Returns the start model's final hidden states of n prompts, each averaged over the tokens of
    the prompt [n, H]."""


class Wrapper(HyperParameters, ABC):
    """Base of methods that train no weight and change the model's input instead.

    Their runs have no learning rate, epochs or retain terms: the model is evaluated once.
    """

    family: ClassVar[str] = "other"
    """Kind of method, which overviews group by."""
    needs_questions: ClassVar[bool] = True
    """Whether the method needs training rows with questions. If so, plain text is refused."""

    @abstractmethod
    def fit(self, model: Any, prompts: Prompts) -> Shift:
        """Fit the shift of prompts.

        Args:
            model: The start model, in evaluation mode.
            prompts: Questions to fit the shift to.

        Returns:
            The shift, which is applied to every prompt of the evaluation.
        """


def no_shift(prompts: Sequence[Prompt]) -> list[Tensor | None]:
    """Leave the embeddings of all prompts as they are. This is a `Shift`."""
    return [None] * len(prompts)


class PromptWrapper(Wrapper):
    """Base of methods that put text around the question, and train no weight.

    The text is rendered by the model's template. Its tokens do not count against `max_length`.
    """

    @abstractmethod
    def asked(self, row: Question, rows: DefenderRows) -> Question:
        """Return a row as the model is asked it.

        Args:
            row: A row of an evaluation set, or what an attack has made of it. Its answers must not
                be read, because the method does not have them.
            rows: Rows that the method may use.

        Returns:
            The row with another question, system message (`Question.system`) or earlier turns
            (`Question.examples`). Its answers must stay as they are.
        """

    def fit(self, model: Any, prompts: Prompts) -> Shift:
        """Fit the shift of prompts as `asked` writes them. By default, no embedding is shifted."""
        return no_shift
