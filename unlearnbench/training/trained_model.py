"""The model that a training changes: its trained weights, and their place on devices."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from unlearnbench.api.method import Method
from unlearnbench.api.modifier import Gradients
from unlearnbench.base.deferred_imports import deferred_imports
from unlearnbench.base.errors import TrainingError
from unlearnbench.base.fsdp import is_sharded, local_part, shard
from unlearnbench.base.garbage_collection import collection_paused
from unlearnbench.config.precision import FLOAT16_IS_NOT_TRAINED, Precision
from unlearnbench.models.towers import freeze_unreached
from unlearnbench.training.objective import called
from unlearnbench.training.optimizers import PRODUCTS, TrainerSettings

if TYPE_CHECKING:
    from accelerate import Accelerator


def freeze_untrained(model: nn.Module, method: Method, precision: Precision) -> None:
    """Freeze the weights that the method does not train, and those that no text reaches.

    Raises:
        TrainingError: The remaining weights cannot be trained in their dtype.
    """
    config: Any = getattr(model, "config", None)
    layers = 0 if config is None else int(config.get_text_config().num_hidden_layers)
    for name, parameter in model.named_parameters():
        with called(method, "trains"):
            trained = method.trains(name, layers)
        if not trained:
            parameter.requires_grad_(False)
    freeze_unreached(model)
    _check_float16(model, precision)


def _check_float16(model: nn.Module, precision: Precision) -> None:
    """Raise TrainingError for float16 weights that are trained, or lie below trained ones.

    The gradients of adapters pass through frozen weights, and have their dtype on the way.
    """
    for name, parameter in model.named_parameters():
        if parameter.dtype == torch.float16 and (parameter.requires_grad or precision != "fp16"):
            raise TrainingError(f"{name} is of float16: {FLOAT16_IS_NOT_TRAINED}")


class TrainedModel:
    """A model on the devices of its run, whose weights to train are chosen."""

    def __init__(self, model: Any, accelerator: Accelerator, settings: TrainerSettings) -> None:
        """Place the model. If a run has several processes, each gets a copy or a shard of it.

        Args:
            model: The model. Its weights are trained in place.
            accelerator: The accelerator of the run in this process.
            settings: Settings of the training, of which `precision` and `parallel` are read.
        """
        self.precision: Precision = settings.precision
        self.accelerator = accelerator
        self.module: Any = model
        """The model itself."""
        self.model: Any = self._placed(model, settings)
        """What a forward pass calls: the model, or its wrapper that sums gradients."""
        # Sharding replaces parameters.
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        """The trained weights."""

    def _placed(self, model: Any, settings: TrainerSettings) -> Any:
        """Shard the model or copy it to each process.

        `Accelerator.prepare` would do so with two faults. It leaves an autocast around `forward`,
        so a model trained in bf16 would be evaluated in another precision than the models that it
        is compared with. And it numbers devices by LOCAL_RANK, although a process that Ray started
        sees only its own device, as number 0.
        """
        accelerator = self.accelerator
        device = accelerator.device
        if device.type == "cpu":
            # accelerate gives the CPU of several processes a number. torch takes `cpu:0` for
            # another device than `cpu`, so `to` would copy all weights into new memory.
            device = torch.device("cpu")
        model = model.to(device)
        if accelerator.num_processes == 1:
            return model
        if settings.parallel == "fsdp":
            shard(model, products=PRODUCTS.get(settings.precision))
            return model
        return DistributedDataParallel(model)

    @property
    def is_sharded(self) -> bool:
        """Whether this process has only a part of each weight."""
        return is_sharded(self.module)

    def trained(self) -> dict[str, nn.Parameter]:
        """Return the trained weights by name."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    @property
    def weights(self) -> Gradients:
        """This process's part of the trained weights, sharing their memory."""
        return self.by_weight(
            {name: local_part(weight.detach()) for name, weight in self.trained().items()}
        )

    def by_weight(self, tensors: Mapping[str, Tensor]) -> Gradients:
        """Bundle tensors of this process, given by the name of the weight that they belong to."""
        return Gradients(tensors, sharded=self.is_sharded)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context in which forward passes have the precision of the training."""
        if self.precision == "fp16":
            # accelerate refuses float16 on a CPU, and wraps optimisers with its scale elsewhere.
            return torch.autocast(self.accelerator.device.type, torch.float16)
        of_accelerate: AbstractContextManager[Any] = self.accelerator.autocast()
        return of_accelerate

    def discard_gradient(self) -> None:
        """Discard the gradient of all trained weights."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def copy_of_update_factors(self) -> dict[str, Tensor]:
        """Copy the weights whose change scales the whole update, by name.

        With LoRA the update is the product B · A, so scaling one factor scales it. The copied
        factor is B, which begins as zeros.
        """
        return {name: p.clone() for name, p in self.trained().items() if "lora_A" not in name}


def make_accelerator(precision: Precision) -> Accelerator:
    """Make the accelerator of a run in this process."""
    # Processes that only plan, or only evaluate, import this module, too.
    with collection_paused(), deferred_imports():
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState

    # A worker may train in several precisions one after another, which accelerate's shared state
    # would refuse.
    AcceleratorState._reset_state()  # pyright: ignore[reportPrivateUsage]  # no public name
    on_cpu = not torch.cuda.is_available()  # explicit: processes on CPUs are one run
    return Accelerator(mixed_precision="bf16" if precision == "bf16" else "no", cpu=on_cpu)
