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
    """Answer with the states after an inner layer, by the start model's norm and output layer.

    nostalgebraist 2020, "interpreting GPT: the logit lens". The model is evaluated as if it ended
    after the layer: later layers are left out. The final norm and output layer are the start
    model's, which may read what the unlearned model's own no longer read. Knowledge has not been
    removed if inner layers of the unlearned model still have it, and those of the retain model do
    not.

    Input embeddings stay the model's own, even if the output layer is tied to them.
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
        increase = sorted(set(depths)) == list(depths)
        if not increase or depths[0] < 1 or depths[-1] > 100:
            raise ValueError("expected increasing percentages, from 1 to 100")
        return depths

    def points(self) -> tuple[str, ...]:
        """Return the depths."""
        return tuple(map(str, self.depths))

    def change(self, model: Any, tools: AttackTools) -> Iterator[str]:
        """Cut the model after each of the layers."""
        inner = _readable(model)
        start = _readable(tools.start_model())
        norm = start.model.norm
        output = start.get_output_embeddings()
        del start  # its layers take as much memory as the model
        layers = inner.model.layers
        with _put_back(inner):
            inner.model.norm = norm
            inner.set_output_embeddings(output)
            for depth in self.depths:
                count = math.ceil(depth * len(layers) / 100)
                inner.model.layers = layers[:count]
                inner.config.num_hidden_layers = count
                yield str(depth)


def _readable(model: Any) -> Any:
    """Return the model without adapters' wrapping, after a check that its layers can be read.

    Raises:
        EvaluationError: The model is not built like Llama.
    """
    base = getattr(model, "get_base_model", None)
    inner = model if base is None else base()
    decoder = getattr(inner, "model", None)
    has_layers = isinstance(getattr(decoder, "layers", None), nn.ModuleList)
    has_norm = isinstance(getattr(decoder, "norm", None), nn.Module)
    if not has_layers or not has_norm:
        raise EvaluationError(
            f"logit-lens: {type(inner).__name__} has no `model.layers` and `model.norm`, as models "
            "built like Llama have, so its inner layers are not read; leave the attack out"
        )
    return inner


@contextmanager
def _put_back(inner: Any) -> Generator[None, None, None]:
    """Put layers, norm and output layer of a model back after the block."""
    layers = inner.model.layers
    norm = inner.model.norm
    output = inner.get_output_embeddings()
    count = inner.config.num_hidden_layers
    try:
        yield
    finally:
        inner.model.layers = layers
        inner.model.norm = norm
        inner.set_output_embeddings(output)
        inner.config.num_hidden_layers = count
