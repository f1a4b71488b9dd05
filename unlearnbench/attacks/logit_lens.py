"""Read inner layers through the start model's output layer."""

import math
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import Field, field_validator
from torch import nn

from unlearnbench.api.attack import AttackTools, WeightAttack
from unlearnbench.base.errors import EvaluationError


class LogitLens(WeightAttack):
    """Answer with the states behind an inner layer, by the start model's norm and output layer.

    nostalgebraist 2020, "interpreting GPT: the logit lens". The model is evaluated as one that ends
    behind the layer: layers beyond it are left out, and the final norm and output layer are the
    start model's, which read what the unlearned ones may not read any more. What inner layers of
    the unlearned model still know, and those of the retain model do not, has not been removed.

    Input embeddings stay the model's own, also where the output layer is tied to them.
    """

    label = "Logit lens"
    white_box = True
    points_are = "kinds"  # depths

    depths: tuple[int, ...] = Field(
        default=(25, 50, 75, 100),
        min_length=1,
        description="depths of the layers that are read, in percent of all layers, rounded up",
    )

    @field_validator("depths")
    @classmethod
    def _increase(cls, depths: tuple[int, ...]) -> tuple[int, ...]:
        if sorted({*depths}) != [*depths] or not 1 <= depths[0] <= depths[-1] <= 100:
            raise ValueError("expected increasing percentages, from 1 to 100")
        return depths

    def points(self) -> tuple[str, ...]:
        """The depths."""
        return tuple(map(str, self.depths))

    def change(self, model: Any, tools: AttackTools) -> Iterator[str]:
        """Cut the model behind each of the layers."""
        inner = _whole(model)
        start = _whole(tools.start_model())
        norm, output = start.model.norm, start.get_output_embeddings()
        del start  # the rest of it takes as much memory as the model
        layers = inner.model.layers
        with _put_back(inner):
            inner.model.norm = norm
            inner.set_output_embeddings(output)
            for depth in self.depths:
                count = math.ceil(depth * len(layers) / 100)
                inner.model.layers = layers[:count]
                inner.config.num_hidden_layers = count
                yield str(depth)


def _whole(model: Any) -> Any:
    """The model without what wraps it. Raises: EvaluationError where it has other parts."""
    base = getattr(model, "get_base_model", None)
    inner = model if base is None else base()
    decoder = getattr(inner, "model", None)
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, nn.ModuleList) or not isinstance(
        getattr(decoder, "norm", None), nn.Module
    ):
        raise EvaluationError(
            f"logit-lens: {type(inner).__name__} has no `model.layers` and `model.norm`, as models "
            "built like Llama have, so its inner layers are not read; leave the attack out"
        )
    return inner


@contextmanager
def _put_back(inner: Any) -> Generator[None, None, None]:
    """Put layers, norm and output layer of the model back on leaving."""
    layers, norm, output = inner.model.layers, inner.model.norm, inner.get_output_embeddings()
    count = inner.config.num_hidden_layers
    try:
        yield
    finally:
        inner.model.layers, inner.model.norm = layers, norm
        inner.set_output_embeddings(output)
        inner.config.num_hidden_layers = count
