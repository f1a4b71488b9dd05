"""Round the weights to four or eight bits."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from pydantic import Field, field_validator

from unlearnbench.api.attack import AttackTools, WeightAttack
from unlearnbench.attacks._bitsandbytes_layers import bitsandbytes_for, replaced
from unlearnbench.attacks._quantized_layers import (
    ExpertStack,
    LinearLayer,
    Quantised,
    check_coverage,
    expert_stacks,
    linear_layers,
)
from unlearnbench.stats.quantized_weights import Code, quantized


class Quantization(WeightAttack):
    """Quantise each matrix inside the layers. Embeddings and the output layer stay.

    Zhang et al. 2025, arXiv:2410.16454: a low learning rate moves most weights by less than the
    width of a bin, so that at four bits the unlearned model is near the start model again.

    Conv1D layers of GPT-2 are quantised transposed, as transformers does. The experts of a mixture
    are stacked in parameters with three dimensions, and each expert's matrix is quantised by
    itself. Routers, convolutions and state matrices stay. A model in which more than a tenth of
    such weights would stay is refused. An adapter is merged first, so that its changes are rounded
    as the changes of a fully trained model are.
    `backend: bitsandbytes` runs bitsandbytes' CUDA kernels in place of the layers. Eight bits are
    LLM.int8() then, activations included, and their evaluation is named `llm-int8`.
    """

    label = "Quantisation"
    roles = frozenset({"forget", "retain", "general"})
    white_box = True

    codes: tuple[Code, ...] = Field(
        default=("nf4",),
        min_length=1,
        description="codes of the quantised weights; the model is evaluated with each code, "
        "always from the full weights",
    )
    backend: Literal["exact", "bitsandbytes"] = Field(
        default="exact",
        description="exact: weights are rounded in memory, on any device; bitsandbytes: layers "
        "of bitsandbytes, on CUDA",
    )

    @field_validator("codes")
    @classmethod
    def _once(cls, codes: tuple[Code, ...]) -> tuple[Code, ...]:
        if len(set(codes)) < len(codes):
            raise ValueError("expected each code once")
        return codes

    @property
    def _has_kernels(self) -> bool:
        """Whether layers of bitsandbytes run in place of the model's layers."""
        return self.backend == "bitsandbytes"

    def points(self) -> tuple[str, ...]:
        """Return the codes, by the names of their evaluations."""
        points: list[str] = []
        for code in self.codes:
            is_llm_int8 = self._has_kernels and code == "int8-weights"
            points.append("llm-int8" if is_llm_int8 else code)
        return tuple(points)

    def change(self, model: Any, tools: AttackTools) -> Iterator[str]:
        """Yield with the weights of each code in turn.

        Raises:
            EvaluationError: There is nothing to quantise, too many weights would stay, or
                `bitsandbytes` has no CUDA.
            UnavailableError: bitsandbytes is not installed.
        """
        layers = linear_layers(model)
        # bitsandbytes can only replace linear layers.
        stacks = [] if self._has_kernels else expert_stacks(model)
        quantised: list[Quantised] = [*layers, *stacks]
        check_coverage(model, quantised, kernels=self._has_kernels)
        package = bitsandbytes_for(layers[0].weight.device) if self._has_kernels else None
        for code, point in zip(self.codes, self.points(), strict=True):
            # After the last code, the caller restores the weights.
            with _merged(quantised, restored=code != self.codes[-1]):
                if package is None:
                    _round(layers, stacks, code)
                    yield point
                else:
                    with replaced(layers, code, package):
                        yield point


def _round(layers: Sequence[LinearLayer], stacks: Sequence[ExpertStack], code: Code) -> None:
    """Round weights in place."""
    for layer in layers:
        layer.matrix.copy_(quantized(layer.matrix, code))
    for stack in stacks:
        for matrix in stack.matrices:
            matrix.copy_(quantized(matrix, code))


@contextmanager
def _merged(weights: Sequence[Quantised], *, restored: bool) -> Generator[None, None, None]:
    """Merge the adapters of layers and experts within the block.

    Args:
        weights: The layers and experts.
        restored: Whether weights are put back after the block. If not, the caller restores them.
    """
    copies = [layer.weight.clone() for layer in weights] if restored else []
    adapters: list[Any] = []
    for layer in weights:
        adapters += [adapter for adapter in layer.adapters if not adapter.merged]
    try:
        for adapter in adapters:
            adapter.merge()
        yield
    finally:
        for adapter in adapters:
            # This marks the adapter as not merged. The weights that it leaves are rounded, and are
            # overwritten below or by the caller.
            adapter.unmerge()
        for layer, copy in zip(weights, copies, strict=False):
            layer.weight.copy_(copy)
