"""Fine-tuning of a model in memory by somebody else: the `FineTune` of attacks.

The loop is the trainer's. All weights are trained, or adapters of low rank: two matrices beside
each linear layer, added to its output by a hook, so that the modules of the model stay what they
are, whether they are linear layers, quantised ones, or those inside the adapters of a run.

Several processes with whole copies of the weights share the rows of each step and stay equal to
each other, as in a run (`parallel: ddp`). Sharded weights are refused: gathered for an evaluation
they are copies, and what is trained into those is lost when they are sharded again.
"""

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from unlearnbench.api.benchmark import Question
from unlearnbench.base.errors import TrainingError
from unlearnbench.base.fsdp import is_sharded
from unlearnbench.config.precision import Precision
from unlearnbench.losses.lm_head import at_least_fp32
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.epoch_order import TrainingRows
from unlearnbench.models.limits import check_context
from unlearnbench.models.token_row import Row
from unlearnbench.training.objective import Objective
from unlearnbench.training.optimizers import TrainerSettings
from unlearnbench.training.trainer import FineTuning, NonFiniteError, Trainer

SCALE = 2.0
"""Factor of an adapter's product: alpha / rank of the default adapters of a run."""


@dataclass(frozen=True, eq=False)
class FineTuner:
    """Trains models that were given to it: an `api.edit.FineTune`."""

    encoder: Encoder
    """With the tokens of a training row as its `max_length`."""
    pad: int
    precision: Precision = "fp32"
    """Precision of the products, as in the run whose model is attacked."""
    micro_batch_size: int | None = None
    """Rows of a forward pass; None: all of a step, or what has fitted into memory."""
    _encoded: dict[Question, Row] = field(init=False, default_factory=dict[Question, Row])

    def __call__(
        self,
        model: Any,
        rows: Sequence[Question],
        *,
        steps: int,
        learning_rate: float,
        batch_size: int,
        schedule: Literal["constant", "linear"] = "constant",
        optimizer: str = "adamw",
        lora_rank: int | None = None,
        seed: int = 0,
    ) -> Generator[int, None, None]:
        """See `api.edit.FineTune`. Collective.

        Mean negative log-likelihood of the answers, without warm-up and weight decay, gradients
        clipped to norm 1. At the end, also where the iterator is closed early, gradients and
        adapters are gone, and modes and `requires_grad` are what they were.

        Raises: NonFiniteError with the weights of the step before; TrainingError for sharded
        weights or no rows; ModelError for a row that is longer than the model's context.
        """
        if is_sharded(model):
            raise TrainingError(
                "a model whose weights are sharded over processes cannot be fine-tuned by an "
                "attack; set resources.parallel: ddp, or one GPU for a run, or leave out the "
                "attacks that train"
            )
        encoded = [self._row(row) for row in rows]
        check_context(model, encoded, rows, "training.max_length")
        options = TrainerSettings(
            epochs=None,
            batch_size=batch_size,
            learning_rate=learning_rate,
            seed=seed,
            micro_batch_size=self.micro_batch_size,
            optimizer=optimizer,
            embedding_learning_rate=learning_rate,
            schedule=schedule,
            precision=self.precision,
            most_steps=steps,
        )
        with _trainable(model, lora_rank, seed):
            with _own_random_numbers(model):
                data = TrainingRows(retain=encoded)
                trainer = Trainer(model, Objective(FineTuning()), data, options, self.pad)
            taken = trainer.until(steps)
            while trainer.step < steps:
                model.train()
                with torch.enable_grad(), _own_random_numbers(model):
                    try:
                        next(taken)
                    except NonFiniteError as error:
                        raise NonFiniteError(f"fine-tuning by an attack: {error}") from None
                model.eval()
                yield trainer.step

    def _row(self, question: Question) -> Row:
        if question not in self._encoded:
            self._encoded[question] = self.encoder.row(question)
        return self._encoded[question]


@contextmanager
def _own_random_numbers(model: nn.Module) -> Generator[None, None, None]:
    """Leave torch's random numbers as they are; the trainer seeds them at each step."""
    device = next(model.parameters()).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield


@contextmanager
def _trainable(model: nn.Module, rank: int | None, seed: int) -> Generator[None, None, None]:
    """Train all weights, or adapters of `rank`, inside the `with`; the weights stay trained."""
    modes = {module: module.training for module in model.modules()}
    required = {parameter: parameter.requires_grad for parameter in model.parameters()}
    gradients = {parameter: parameter.grad for parameter in required}
    for parameter in required:
        parameter.grad = None
    try:
        with nullcontext() if rank is None else _adapted(model, rank, seed):
            replaced = _replaced(model)
            for name, parameter in model.named_parameters():
                is_own = _is_own(name) and id(parameter) not in replaced
                chosen = is_own if rank is None else name.endswith(_NAMES)
                parameter.requires_grad_(chosen and parameter.is_floating_point())
            yield
    finally:
        for parameter, before in required.items():
            parameter.requires_grad_(before)
            parameter.grad = gradients[parameter]
        for module, training in modes.items():
            module.training = training


def _is_own(name: str) -> bool:
    """True for a weight of the model, not of an adapter on it.

    To train a weight W is to train the sum W + BA of a frozen adapter.
    """
    return not any(part.startswith("lora_") for part in name.split("."))


def _replaced(model: nn.Module) -> set[int]:
    """Ids of the weights of modules that an adapter has a whole copy of, which nothing reads.

    The weight of a replaced embedding that the output layer shares is still read there.
    """
    wrappers = [m for m in model.modules() if type(m).__name__ == "ModulesToSaveWrapper"]
    originals: list[nn.Module] = [wrapper.get_submodule("original_module") for wrapper in wrappers]
    inside = {id(module) for original in originals for module in original.modules()}
    others = (module for module in model.modules() if id(module) not in inside)
    read = {id(p) for module in others for p in module.parameters(recurse=False)}
    return {id(p) for original in originals for p in original.parameters()} - read


_NAMES = ("attack_lora_a", "attack_lora_b")


@contextmanager
def _adapted(model: Any, rank: int, seed: int) -> Generator[None, None, None]:
    """Add an adapter to the output of every linear layer but the output layer.

    y = Wx + SCALE · B A x with A [rank, in] as peft draws it (Kaiming, uniform) and B [out, rank]
    of zeros (Hu et al. 2022, arXiv:2106.09685), in float32 at least. A tied output layer is left
    out with the embedding that it is.
    """
    generator = torch.Generator().manual_seed(seed)
    output = model.get_output_embeddings()
    added, handles = list[tuple[nn.Module, str]](), list[RemovableHandle]()
    try:
        for name, layer in model.named_modules():
            sizes = _sizes(layer)
            if sizes is None or layer is output or not _is_own(name):
                continue
            if not _returns_product(model, name, layer):
                continue
            weight, bound = layer.weight, 1 / math.sqrt(sizes[0])
            dtype = at_least_fp32(weight[:0]).dtype if weight.is_floating_point() else torch.float32
            drawn = torch.rand((rank, sizes[0]), generator=generator, dtype=dtype) * 2 - 1
            zeros = torch.zeros((sizes[1], rank), dtype=dtype)
            for part, values in zip(_NAMES, (drawn * bound, zeros), strict=True):
                layer.register_parameter(part, nn.Parameter(values.to(weight.device)))
                added.append((layer, part))
            handles.append(layer.register_forward_hook(_add_product))
        if not added:
            raise TrainingError(f"lora_rank: {type(model).__name__} has no linear layer to adapt")
        yield
    finally:
        for handle in handles:
            handle.remove()
        for layer, subset in added:
            delattr(layer, subset)


def _returns_product(model: nn.Module, name: str, layer: nn.Module) -> bool:
    """Whether what a linear layer returns is its product, to which an adapter's can be added.

    The router of Llama 4 returns scores besides. A layer of Mamba computes with the weight of its
    `dt_proj`, and does not call it.
    """
    place, _, own_name = name.rpartition(".")
    is_router = type(layer).__name__.endswith("Router")
    is_read_directly = own_name == "dt_proj" and hasattr(model.get_submodule(place), "A_log")
    return not is_router and not is_read_directly


def _add_product(layer: Any, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    a, b = layer.attack_lora_a, layer.attack_lora_b
    linear: Any = nn.functional.linear
    product: Tensor = linear(linear(inputs[0].to(a.dtype), a), b)
    return output + (SCALE * product).to(output.dtype)


def _sizes(layer: nn.Module) -> tuple[int, int] | None:
    """Inputs and outputs of a linear layer, quantised or not; None for other modules."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    if type(layer).__name__ == "Conv1D":  # of GPT-2, whose weight is [in, out]
        weight: Any = layer.weight
        return int(weight.shape[0]), int(weight.shape[1])
    return None
