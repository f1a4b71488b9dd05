"""The contract of a method that trains nothing and changes the model's input."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

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

    @abstractmethod
    def fit(self, model: Any, prompts: Prompts) -> Shift:
        """Fit the shift of prompts.

        Args:
            model: The start model, in evaluation mode.
            prompts: Questions to fit the shift to.

        Returns:
            The shift, which is applied to every prompt of the evaluation.
        """
