"""Settings of training steps, and the optimisers that they name.

`make_optimizers` makes the optimisers of a training: one, or two if matrices have their own (Muon).
Their state in checkpoints is the subject of `optimizer_state.py`.
"""

import ctypes
import hashlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unlearnbench.api.modifier import OptimizerKind
from unlearnbench.api.plugin_code import plugin_code, source_file
from unlearnbench.base.distributed import world_size
from unlearnbench.base.errors import TrainingError
from unlearnbench.base.optional_packages import import_optional
from unlearnbench.config.precision import Precision
from unlearnbench.config.step_schedule import Schedule, ScheduleName, make_schedule
from unlearnbench.config.training_settings import EIGHT_BIT, ONE_PROCESS

PRODUCTS: Mapping[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The type that a precision of training gives to products. fp32 leaves them as they are."""


@dataclass(frozen=True)
class TrainerSettings:
    """Settings of the optimiser steps, apart from the loss and the rows.

    Attributes:
        epochs: Passes over the rows. None: as many as `most_steps` take.
        batch_size: Primary rows of a step.
        learning_rate: Learning rate at the beginning.
        seed: Seed of the order of rows and of random numbers.
        micro_batch_size: Rows of a forward pass. None: chosen by memory.
        optimizer: A name in `OPTIMIZERS`.
        embedding_learning_rate: Rate of AdamW for the parameters that Muon does not move:
            embeddings, and parameters that are no matrices.
        schedule: How the learning rate changes.
        warmup_steps: Steps in which the learning rate rises.
        weight_decay: Weight decay.
        decay_norms_and_biases: Whether they decay, too.
        max_grad_norm: Norm to which gradients are clipped.
        precision: Precision of products.
        removes_dropout: Whether the dropout of the model's own configuration is removed while it
            trains.
        parallel: Whether several processes have shards of the weights, or copies.
        most_steps: Steps after which training ends, even within an epoch. None: after `epochs`.
    """

    epochs: int | None
    batch_size: int
    learning_rate: float
    seed: int
    micro_batch_size: int | None = None
    optimizer: str = "adamw"
    embedding_learning_rate: float = 2e-3
    schedule: ScheduleName = "constant"
    warmup_steps: int = 0
    weight_decay: float = 0.0
    decay_norms_and_biases: bool = True
    max_grad_norm: float = 1.0
    precision: Precision = "fp32"
    removes_dropout: bool = False
    parallel: Literal["fsdp", "ddp"] = "ddp"
    most_steps: int | None = None

    def __post_init__(self) -> None:
        """Raise TrainingError if the training would never end."""
        if self.epochs is None and self.most_steps is None:
            raise TrainingError("a training ends after `epochs` or after `most_steps`: set one")

    def plan_steps(self, rows: int) -> Schedule:
        """Return the steps of the training.

        Args:
            rows: Primary rows of an epoch.

        Raises:
            TrainingError: There are no steps.
        """
        return make_schedule(
            self.schedule,
            rows,
            self.batch_size,
            epochs=self.epochs,
            most_steps=self.most_steps,
            warmup_steps=self.warmup_steps,
        )


def check_optimizer(name: str) -> None:
    """Raise TrainingError if the package of an optimiser is not installed."""
    if name not in EIGHT_BIT:
        return
    try:
        import_optional("bitsandbytes")
    except ImportError as error:
        raise TrainingError(
            f"training.optimizer: {name} needs bitsandbytes ({error}): "
            "pip install 'unlearnbench[8bit]', or leave the key out for adamw"
        ) from None


def check_gradients(model: nn.Module) -> None:
    """Check after a backward pass that every trained weight has a gradient.

    A weight without one would never change, and nothing would say so. That happens, for example, to
    adapters below a checkpoint that cuts the graph.

    Raises:
        TrainingError: A weight has no gradient.
    """
    without_gradient = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.grad is None
    ]
    if without_gradient:
        first, *rest = without_gradient
        others = f" (and {len(rest)} more)" if rest else ""
        raise TrainingError(
            f"no gradient has reached {first}{others}, which is to be trained: the loss does "
            "not depend on it. A method that trains a part of the model declares it in `trains`"
        )


def seed_of(*words: int | str) -> int:
    """Return a seed of 64 bits that depends on all words."""
    digest = hashlib.sha256(repr(words).encode()).digest()
    return int.from_bytes(digest[:8])


def reseed(*words: int) -> None:
    """Seed torch's random numbers with the seed that `words` give."""
    # `torch.manual_seed` formats a stack trace for each kind of accelerator that is missing.
    has_accelerator = torch.accelerator.is_available()
    seed = torch.manual_seed if has_accelerator else torch.default_generator.manual_seed
    seed(seed_of(*words))


def make_optimizers(
    model: nn.Module, settings: TrainerSettings, kind: OptimizerKind | None = None
) -> Iterator[torch.optim.Optimizer]:
    """Yield the optimisers of the trained weights.

    Args:
        model: The model.
        settings: Settings of the steps.
        kind: A modifier that brings its own optimiser. None: the optimiser of the settings.

    Raises:
        TrainingError: No weight is trained, or an optimiser does not say how weights decay.
    """
    exempt: set[int] = set()
    if settings.weight_decay and not settings.decay_norms_and_biases:
        exempt = {id(parameter) for parameter in norms_and_biases(model)}
    for optimizer in _decaying_optimizers(model, settings, kind):
        _exempt_from_decay(optimizer, exempt)
        yield optimizer


def _decaying_optimizers(
    model: nn.Module, settings: TrainerSettings, kind: OptimizerKind | None
) -> Iterator[torch.optim.Optimizer]:
    """Yield the optimisers, with the same weight decay for all weights."""
    weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not weights:
        raise TrainingError("no weight of the model requires a gradient; nothing would change")
    if kind is None:
        yield from OPTIMIZERS[settings.optimizer](model, [*weights.values()], settings)
        return
    optimizer_count = 2 if kind.two_roles else 1
    for _ in range(optimizer_count):
        with plugin_code(f"`make` of {type(kind).__name__}", source_file(type(kind))):
            yield kind.make(weights, settings.learning_rate, settings.weight_decay)


def norms_and_biases(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters that transformers' Trainer excludes from weight decay.

    These are all parameters of layers that normalise, and all biases. Embeddings, and the matrices
    of adapters, decay as in transformers.
    """
    for module in model.modules():
        # Models bring classes of their own, such as LlamaRMSNorm, and sharding renames them.
        normalises = "norm" in type(module).__name__.lower()
        for name, parameter in module.named_parameters(recurse=False):
            if normalises or "bias" in name:
                yield parameter


def _exempt_from_decay(optimizer: torch.optim.Optimizer, exempt: Set[int]) -> None:
    """Divide the groups of an optimiser, so that some parameters do not decay.

    Args:
        optimizer: The optimiser, which is changed in place.
        exempt: Ids of the parameters that do not decay.

    Raises:
        TrainingError: The groups of the optimiser have no weight decay to change.
    """
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        decaying = [p for p in group["params"] if id(p) not in exempt]
        not_decaying = [p for p in group["params"] if id(p) in exempt]
        if not not_decaying:
            groups.append(group)
            continue
        if "weight_decay" not in group:
            raise TrainingError(
                "training.decay_norms_and_biases: false needs an optimiser with `weight_decay` in "
                f"its groups of parameters, and {type(optimizer).__name__} has none there; leave "
                "the key out, or set weight_decay: 0"
            )
        if decaying:
            groups.append({**group, "params": decaying})
        groups.append({**group, "params": not_decaying, "weight_decay": 0.0})
    optimizer.param_groups[:] = groups


def _adamw(
    _: nn.Module, parameters: list[nn.Parameter], settings: TrainerSettings
) -> Iterator[torch.optim.Optimizer]:
    """Yield AdamW for all parameters."""
    yield _adamw_of(parameters, settings.learning_rate, settings.weight_decay)


def _adamw_of(parameters: list[nn.Parameter], rate: float, decay: float) -> torch.optim.Optimizer:
    """Return AdamW, on GPUs with its fused kernel, which is faster and copies no weights."""
    fused = True if parameters[0].device.type == "cuda" else None
    return torch.optim.AdamW(parameters, rate, weight_decay=decay, fused=fused)


def _muon(
    model: nn.Module, parameters: list[nn.Parameter], settings: TrainerSettings
) -> Iterator[torch.optim.Optimizer]:
    """Yield Muon for matrices except embeddings, and AdamW for all other parameters."""
    # Muon orthogonalises the update of a linear map. An embedding is a table of vectors.
    embeddings = {
        id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)
    }
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in parameters:
        is_linear_map = parameter.ndim == 2 and id(parameter) not in embeddings
        (matrices if is_linear_map else others).append(parameter)
    decay = settings.weight_decay
    if matrices:
        scaled: Any = {"adjust_lr_fn": "match_rms_adamw"}
        yield torch.optim.Muon(matrices, lr=settings.learning_rate, weight_decay=decay, **scaled)
    # Adapters consist of matrices only.
    if others:
        yield _adamw_of(others, settings.embedding_learning_rate, decay)


def _bitsandbytes(
    _: nn.Module, parameters: list[nn.Parameter], settings: TrainerSettings
) -> Iterator[torch.optim.Optimizer]:
    """Yield AdamW with a state of 8 bits, which may be paged.

    Raises:
        TrainingError: The run has several processes, or bitsandbytes is not installed.
    """
    if world_size() > 1:
        raise TrainingError(
            f"training.optimizer: {settings.optimizer} works in one process, and the run has "
            f"{world_size()}: {ONE_PROCESS}"
        )
    check_optimizer(settings.optimizer)
    bitsandbytes = import_optional("bitsandbytes")
    kind = bitsandbytes.optim.AdamW8bit
    is_on_cpu = parameters[0].device.type == "cpu"
    # On a CPU there is nothing to page.
    if settings.optimizer == "paged-adamw-8bit" and not is_on_cpu:
        kind = bitsandbytes.optim.PagedAdamW8bit
    optimizer = kind(parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    if getattr(optimizer, "is_paged", False):
        # By default, all optimisers share a manager of pages, which never frees their memory.
        optimizer.page_mng = SimpleNamespace(paged_tensors=_Pages(bitsandbytes.functional.lib))
    yield optimizer


class _Pages(list[Tensor]):
    """A list of paged tensors that stays empty.

    bitsandbytes appends each paged tensor to a list, and never frees it. Here the memory of an
    appended tensor is freed once nothing uses the tensor. CUDA waits for its kernels first.
    """

    def __init__(self, library: Any) -> None:
        """Find the function that frees memory.

        Args:
            library: The library of bitsandbytes, which links the runtime that allocated the memory.
        """
        super().__init__()
        self._free: Any = library.hipFree if torch.version.hip else library.cudaFree

    def append(self, tensor: Tensor) -> None:
        """Arrange that the memory of a tensor is freed with the tensor.

        Args:
            tensor: A tensor whose first element is at the beginning of its memory.
        """
        address = ctypes.c_void_p(tensor.data_ptr())
        finalizer = weakref.finalize(tensor.untyped_storage(), self._free, address)
        # At exit all memory is freed anyway, and the runtime may be gone before.
        finalizer.atexit = False


OptimizerMaker = Callable[
    [nn.Module, list[nn.Parameter], TrainerSettings], Iterator[torch.optim.Optimizer]
]
"""Yields the optimisers of a model's trained parameters."""
OPTIMIZERS: Mapping[str, OptimizerMaker] = {
    "adamw": _adamw,
    "muon": _muon,
    "adamw-8bit": _bitsandbytes,
    "paged-adamw-8bit": _bitsandbytes,
}
"""Makers by the name that `training.optimizer` has."""
