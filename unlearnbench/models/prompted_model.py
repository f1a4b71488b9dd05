"""Models that are asked other prompts, as inference-time methods write them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from unlearnbench.api.benchmark import Question
from unlearnbench.models.prompt_shift import ShiftedModel


@dataclass(frozen=True, eq=False)
class PromptedModel:
    """A model and what its method makes of each question before the model reads it."""

    model: Any
    """The model, which may be a `ShiftedModel`."""
    ask: Callable[[Question], Question]
    """Returns a question with text around it. Its answers are the same."""

    def asked(self, questions: Sequence[Question]) -> tuple[Question, ...]:
        """Return questions as the model is asked them."""
        return tuple(self.ask(question) for question in questions)


def bare_model(model: Any) -> Any:
    """Return the model with the weights, without a method at inference time around it."""
    if isinstance(model, PromptedModel):
        model = model.model
    if isinstance(model, ShiftedModel):
        model = model.model
    return model
