"""Fine-tuning of a model in memory: the `FineTune` of attacks.

The loop is the trainer's. It trains all weights, or adapters of low rank. An adapter has two
matrices for each linear layer, and a hook adds their product to the layer's output. So the modules
of the model stay what they are: linear layers, quantised layers, or those inside a run's adapters.

Several processes with copies of the weights (`parallel: ddp`) share the rows of each step and stay
equal, as in a run. Sharded weights are refused: an evaluation gathers them into copies, and a
training would change only the copies, which are dropped when the weights are sharded again.
"""

import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

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
"""Factor of an adapter's product. It is alpha / rank of a run's default adapters."""
_MATRICES = ("attack_lora_a", "attack_lora_b")
"""Names of the parameters that an adapter adds to its layer."""


@dataclass(frozen=True, eq=False)
class FineTuner:
    """Trains models in memory: an `api.edit.FineTune`.

    Attributes:
        encoder: Encodes the rows. Its `max_length` bounds the tokens of a row.
        pad: Id of the padding token.
        precision: Precision of the products, as in the run whose model is attacked.
        micro_batch_size: Rows of a forward pass. None: all rows of a step, or as many as have
            fitted into memory.
    """

    encoder: Encoder
    pad: int
    precision: Precision = "fp32"
    micro_batch_size: int | None = None
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
        """Train a model, see `api.edit.FineTune`. Collective.

        The loss is the mean negative log-likelihood of the answers' tokens. There is no warm-up and
        no weight decay, and gradients are clipped to norm 1. When the iterator ends or is closed,
        gradients and adapters are removed, and modes and `requires_grad` are restored.

        Raises:
            NonFiniteError: The loss is not finite. The weights are those of the step before.
            TrainingError: The weights are sharded, or there are no rows.
            ModelError: A row is longer than the model's context.
        """
        if is_sharded(model):
            raise TrainingError(
                "a model whose weights are sharded over processes cannot be fine-tuned by an "
                "attack; set resources.parallel: ddp, or one GPU for a run, or leave out the "
                "attacks that train"
            )
        encoded = [self._row(row) for row in rows]
        check_context(model, encoded, rows, "training.max_length")
        settings = TrainerSettings(
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
                training_rows = TrainingRows(retain=encoded)
                objective = Objective(FineTuning())
                trainer = Trainer(model, objective, training_rows, settings, self.pad)
            training = trainer.until(steps)
            while trainer.step < steps:
                model.train()
                with torch.enable_grad(), _own_random_numbers(model):
                    try:
                        next(training)
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
    """Restore torch's random numbers on leaving. The trainer seeds them at each step."""
    device = next(model.parameters()).device
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        yield


@contextmanager
def _trainable(model: nn.Module, rank: int | None, seed: int) -> Generator[None, None, None]:
    """Make weights or new adapters trainable inside the `with`, and remove the adapters at the end.

    Trained weights keep their values. Modes, gradients and `requires_grad` are restored.

    Args:
        model: The model.
        rank: Rank of adapters. None: all weights of the model are trained.
        seed: Seed of the adapters' initial values.
    """
    was_training = {module: module.training for module in model.modules()}
    required_gradient = {parameter: parameter.requires_grad for parameter in model.parameters()}
    gradients = {parameter: parameter.grad for parameter in required_gradient}
    for parameter in required_gradient:
        parameter.grad = None
    adapters = nullcontext() if rank is None else _adapted(model, rank, seed)
    try:
        with adapters:
            unread = _unread_weights(model)
            for name, parameter in model.named_parameters():
                if rank is None:
                    is_chosen = _is_own(name) and id(parameter) not in unread
                else:
                    is_chosen = name.endswith(_MATRICES)
                # Quantised weights are integers, which have no gradient.
                parameter.requires_grad_(is_chosen and parameter.is_floating_point())
            yield
    finally:
        for parameter, before in required_gradient.items():
            parameter.requires_grad_(before)
            parameter.grad = gradients[parameter]
        for module, mode in was_training.items():
            module.training = mode


def _is_own(name: str) -> bool:
    """Whether a weight is the model's own, not that of an adapter on it.

    If all weights are trained, adapters of a run stay frozen: to train a weight W is to train the
    sum W + BA of the weight and its adapter.
    """
    return not any(part.startswith("lora_") for part in name.split("."))


def _unread_weights(model: nn.Module) -> set[int]:
    """Return the ids of weights that nothing reads, because an adapter has a copy of their module.

    Such a module is an adapter's `modules_to_save`. If the output layer shares the weight of a
    copied embedding, the output layer still reads it.
    """
    originals: list[nn.Module] = [
        module.get_submodule("original_module")
        for module in model.modules()
        if type(module).__name__ == "ModulesToSaveWrapper"
    ]
    inside_originals = {id(module) for original in originals for module in original.modules()}
    read: set[int] = set()
    for module in model.modules():
        if id(module) not in inside_originals:
            read |= {id(parameter) for parameter in module.parameters(recurse=False)}
    of_originals = {id(parameter) for original in originals for parameter in original.parameters()}
    return of_originals - read


@contextmanager
def _adapted(model: Any, rank: int, seed: int) -> Generator[None, None, None]:
    """Add an adapter to every linear layer except the output layer, inside the `with`.

    The layer's output becomes y = Wx + SCALE · B A x, with A [rank, in] and B [out, rank] of zeros
    (Hu et al. 2022, arXiv:2106.09685). A is drawn as by peft (Kaiming, uniform). Both are at least
    in float32. An output layer that is tied to the embedding has no adapter either.

    Raises:
        TrainingError: The model has no linear layer to adapt.
    """
    generator = torch.Generator().manual_seed(seed)
    adapted_layers: list[nn.Module] = []
    hooks: list[RemovableHandle] = []
    try:
        # Registering parameters changes no names of modules, so the loop may do both.
        for layer, sizes in _layers_to_adapt(model):
            _add_matrices(layer, sizes, rank, generator)
            adapted_layers.append(layer)
            hooks.append(layer.register_forward_hook(_add_product))
        if not adapted_layers:
            raise TrainingError(f"lora_rank: {type(model).__name__} has no linear layer to adapt")
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for layer in adapted_layers:
            for name in _MATRICES:
                delattr(layer, name)


class _Sizes(NamedTuple):
    """Numbers of inputs and outputs of a linear layer."""

    inputs: int
    outputs: int


def _layers_to_adapt(model: Any) -> Iterator[tuple[Any, _Sizes]]:
    """Yield the linear layers whose output an adapter's product can be added to."""
    output_layer = model.get_output_embeddings()
    for name, layer in model.named_modules():
        sizes = _sizes(layer)
        if sizes is None or layer is output_layer or not _is_own(name):
            continue
        if _returns_product(model, name, layer):
            yield layer, sizes


def _add_matrices(layer: Any, sizes: _Sizes, rank: int, generator: torch.Generator) -> None:
    """Add the two matrices of an adapter to a layer, as its parameters."""
    weight = layer.weight
    dtype = at_least_fp32(weight[:0]).dtype if weight.is_floating_point() else torch.float32
    bound = 1 / math.sqrt(sizes.inputs)
    drawn = torch.rand((rank, sizes.inputs), generator=generator, dtype=dtype) * 2 - 1
    zeros = torch.zeros((sizes.outputs, rank), dtype=dtype)
    # Both are made before one is registered: the device may have no memory for them.
    matrices = [values.to(weight.device) for values in (drawn * bound, zeros)]
    for name, matrix in zip(_MATRICES, matrices, strict=True):
        layer.register_parameter(name, nn.Parameter(matrix))


def _returns_product(model: nn.Module, name: str, layer: nn.Module) -> bool:
    """Whether a linear layer is called and returns its product, to which another can be added.

    The router of Llama 4 also returns scores. A layer of Mamba computes with the weight of its
    `dt_proj`, and does not call it.
    """
    place, _, own_name = name.rpartition(".")
    is_router = type(layer).__name__.endswith("Router")
    is_read_directly = own_name == "dt_proj" and hasattr(model.get_submodule(place), "A_log")
    return not is_router and not is_read_directly


def _add_product(layer: Any, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
    """Add the product of an adapter to the output of its layer. A forward hook."""
    a = layer.attack_lora_a
    b = layer.attack_lora_b
    linear: Any = nn.functional.linear
    product: Tensor = linear(linear(inputs[0].to(a.dtype), a), b)
    return output + (SCALE * product).to(output.dtype)


def _sizes(layer: nn.Module) -> _Sizes | None:
    """Return the sizes of a linear layer, quantised or not. None for other modules."""
    if isinstance(layer, nn.Linear):
        return _Sizes(layer.in_features, layer.out_features)
    if type(layer).__name__ == "Conv1D":
        # GPT-2 has linear layers of this class, whose weight is [in, out].
        weight: Any = layer.weight
        return _Sizes(int(weight.shape[0]), int(weight.shape[1]))
    return None
