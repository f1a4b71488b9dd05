"""Settings of training steps, and the optimisers that they are made with."""

import ctypes
import hashlib
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unlearnbench.api.modifier import OptimizerKind
from unlearnbench.api.plugin_code import plugin_code, source_file
from unlearnbench.base.distributed import world_size
from unlearnbench.base.errors import TrainingError
from unlearnbench.base.fsdp import local_shard
from unlearnbench.base.optional_packages import import_optional
from unlearnbench.base.out_of_memory import empty_cache
from unlearnbench.config.precision import Precision
from unlearnbench.config.step_schedule import Schedule, ScheduleName, make_schedule
from unlearnbench.config.training_settings import EIGHT_BIT, ONE_PROCESS

PRODUCTS: Mapping[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The dtype that a precision of training gives products; none for fp32."""
Reader = Callable[[str], Tensor]
"""Returns the whole tensor of a name."""
Made = Iterator[torch.optim.Optimizer]
"""The optimisers of a training: one, or two where matrices have one of their own (Muon)."""


def state_tensors(optimizer: Any) -> dict[str, Tensor]:
    """Every value of the state by `<number of the parameter>.<key>`; local shards where sharded.

    No two share memory: bitsandbytes decodes all parameters with the same two maps of 1 KiB.
    """
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for number, parameter in enumerate(_parameters(optimizer)):
        for key, value in optimizer.state.get(parameter, {}).items():
            tensor = torch.as_tensor(value)
            tensors[f"{number}.{key}"] = tensor.clone() if id(value) in seen else tensor
            seen.add(id(value))
    return tensors


@contextmanager
def on_host(optimizers: Iterable[Any]) -> Generator[None, None, None]:
    """Hold the state of optimisers of torch in host memory meanwhile, so that others fit a GPU.

    What is sharded stays: it is small, and no attack trains sharded weights.
    """
    moved: list[tuple[dict[str, Any], str, torch.device]] = []
    for values in (item for optimizer in optimizers for item in optimizer.state.values()):
        for key, value in values.items():
            kind = getattr(getattr(value, "device", None), "type", "cpu")
            if kind == "cuda" and not (hasattr(value, "to_local") or hasattr(value, "is_paged")):
                moved.append((values, key, value.device))
                values[key] = value.cpu()
    if moved:
        empty_cache()
    try:
        yield
    finally:
        for values, key, device in moved:
            values[key] = values[key].to(device)


def load_state(optimizer: Any, names: Iterable[str], read: Reader) -> None:
    """Restore the state that `state_tensors` returned, read by name.

    Raises: ValueError or KeyError where the state is of another optimiser.
    """
    keys: dict[int, list[str]] = {}
    for name in names:
        number, _, key = name.partition(".")
        keys.setdefault(int(number), []).append(key)
    load = _load_bitsandbytes if hasattr(optimizer, "init_state") else _load_torch
    load(optimizer, keys, read)


def _parameters(optimizer: Any) -> list[Tensor]:
    """Parameters, in the order in which `state_dict` numbers them."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def _load_torch(optimizer: Any, keys: dict[int, list[str]], read: Reader) -> None:
    """Load into an optimiser of torch; values of the parameter's shape are sharded like it."""
    parameters = _parameters(optimizer)
    state: dict[int, dict[str, Tensor]] = {}
    for number, names in keys.items():
        parameter, part = parameters[number], state.setdefault(number, {})
        for key in names:
            value = read(f"{number}.{key}")
            # Other shapes are counts, such as of steps.
            part[key] = local_shard(value, parameter) if value.shape == parameter.shape else value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


@torch.no_grad()
def _load_bitsandbytes(optimizer: Any, keys: dict[int, list[str]], read: Reader) -> None:
    """Load into an optimiser of bitsandbytes: make the state as for a first step, and fill it in.

    So nothing is in memory twice, paged state stays paged, and parameters share their maps.
    """
    number = 0
    for group_index, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            if number in keys:
                optimizer.init_state(group, parameter, group_index, index)
                state: dict[str, Any] = optimizer.state[parameter]
                for key in keys[number]:
                    state[key] = _filled(state[key], read(f"{number}.{key}"), f"{number}.{key}")
            number += 1


def _filled(target: Any, value: Tensor, name: str) -> Any:
    if not isinstance(target, Tensor):
        return type(target)(value.item())  # steps, counted in a Python number
    if (target.shape, target.dtype) != (value.shape, value.dtype):
        raise ValueError(
            f"optimiser state {name}: expected {target.dtype} {[*target.shape]}, found "
            f"{value.dtype} {[*value.shape]}: another version of bitsandbytes wrote it"
        )
    return target.copy_(value)


@dataclass(frozen=True)
class TrainerSettings:
    """Settings of the steps, apart from the loss and the rows."""

    epochs: int | None
    """Passes over the rows; None: as many as `most_steps` take."""
    batch_size: int
    learning_rate: float
    seed: int
    micro_batch_size: int | None = None
    optimizer: str = "adamw"
    embedding_learning_rate: float = 2e-3
    """Muon: AdamW's rate for embeddings, and for parameters that are no matrices."""
    schedule: ScheduleName = "constant"
    warmup_steps: int = 0
    weight_decay: float = 0.0
    decay_norms_and_biases: bool = True
    max_grad_norm: float = 1.0
    precision: Precision = "fp32"
    removes_dropout: bool = False
    """Whether the dropout of the model's own configuration is removed while it trains."""
    parallel: Literal["fsdp", "ddp"] = "ddp"
    """Several processes have shards of the weights, or copies."""
    most_steps: int | None = None
    """Steps after which training ends within its epochs; None: all of theirs."""

    def __post_init__(self) -> None:
        if self.epochs is None and self.most_steps is None:
            raise TrainingError("a training ends after `epochs` or after `most_steps`: set one")

    def plan_steps(self, rows: int) -> Schedule:
        """The steps over `rows` rows an epoch. Raises: TrainingError where there is none."""
        return make_schedule(
            self.schedule,
            rows,
            self.batch_size,
            epochs=self.epochs,
            most_steps=self.most_steps,
            warmup_steps=self.warmup_steps,
        )


def check_optimizer(name: str) -> None:
    """Raise TrainingError where the package of the optimiser called `name` is not installed."""
    try:
        if name in EIGHT_BIT:
            import_optional("bitsandbytes")
    except ImportError as error:
        raise TrainingError(
            f"training.optimizer: {name} needs bitsandbytes ({error}): "
            "pip install 'unlearnbench[8bit]', or leave the key out for adamw"
        ) from None


class _Pages(list[Tensor]):
    """Frees each appended tensor's managed memory once nothing uses it; bitsandbytes never does.

    The list stays empty. CUDA waits for its kernels before it frees anything.
    """

    def __init__(self, library: Any) -> None:
        """`library`: links the runtime that has allocated the memory."""
        super().__init__()
        self._free: Any = library.hipFree if torch.version.hip else library.cudaFree

    def append(self, tensor: Tensor) -> None:
        """Free the memory of `tensor`, whose first element is at its begin, with the tensor."""
        address = ctypes.c_void_p(tensor.data_ptr())
        # At exit all memory is freed anyway, and the runtime may be gone before.
        weakref.finalize(tensor.untyped_storage(), self._free, address).atexit = False


def check_gradients(model: nn.Module) -> None:
    """Raise TrainingError where a trained weight has no gradient after the backward pass.

    It would silently never change: adapters below a checkpoint that cuts the graph, for example.
    """
    without = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    if without:
        others = f" (and {len(without) - 1} more)" if len(without) > 1 else ""
        raise TrainingError(
            f"no gradient has reached {without[0]}{others}, which is to be trained: the loss does "
            "not depend on it. A method that trains a part of the model declares it in `trains`"
        )


def seed_of(*words: int | str) -> int:
    """A seed of 64 bits that `words` decide."""
    return int.from_bytes(hashlib.sha256(repr(words).encode()).digest()[:8])


def reseed(*words: int) -> None:
    """Seed torch's random numbers with `words`."""
    # For each kind of accelerator that is not there, `torch.manual_seed` formats a stack trace.
    has_accelerator = torch.accelerator.is_available()
    seed = torch.manual_seed if has_accelerator else torch.default_generator.manual_seed
    seed(seed_of(*words))


def make_optimizers(
    model: nn.Module, settings: TrainerSettings, kind: OptimizerKind | None = None
) -> Iterator[torch.optim.Optimizer]:
    """Yield the optimisers of the trained weights, of the settings or of a modifier's `kind`.

    Raises:
        TrainingError: No weight is trained, or an optimiser does not say how weights decay.
    """
    exempt: set[int] = set()
    if settings.weight_decay and not settings.decay_norms_and_biases:
        exempt = {id(parameter) for parameter in norms_and_biases(model)}
    for optimizer in _made_optimizers(model, settings, kind):
        _exempt_from_decay(optimizer, exempt)
        yield optimizer


def _made_optimizers(
    model: nn.Module, settings: TrainerSettings, kind: OptimizerKind | None
) -> Made:
    """Yield the optimisers, with the same weight decay for all weights."""
    weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not weights:
        raise TrainingError("no weight of the model requires a gradient; nothing would change")
    if kind is None:
        yield from OPTIMIZERS[settings.optimizer](model, [*weights.values()], settings)
        return
    for _ in range(2 if kind.two_roles else 1):
        with plugin_code(f"`make` of {type(kind).__name__}", source_file(type(kind))):
            yield kind.make(weights, settings.learning_rate, settings.weight_decay)


def norms_and_biases(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters that transformers' Trainer excludes from weight decay.

    These are all parameters of layers that normalise, and all biases. Embeddings, and the matrices
    of adapters, decay there too.
    """
    for module in model.modules():
        # Models bring classes of their own, such as LlamaRMSNorm, and sharding renames them.
        normalises = "norm" in type(module).__name__.lower()
        for name, parameter in module.named_parameters(recurse=False):
            if normalises or "bias" in name:
                yield parameter


def _exempt_from_decay(optimizer: torch.optim.Optimizer, exempt: Set[int]) -> None:
    """Divide the groups of an optimiser, so that the parameters with these ids do not decay."""
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        decayed = [p for p in group["params"] if id(p) not in exempt]
        others = [p for p in group["params"] if id(p) in exempt]
        if not others:
            groups.append(group)
            continue
        if "weight_decay" not in group:
            raise TrainingError(
                "training.decay_norms_and_biases: false needs an optimiser with `weight_decay` in "
                f"its groups of parameters, and {type(optimizer).__name__} has none there; leave "
                "the key out, or set weight_decay: 0"
            )
        if decayed:
            groups.append({**group, "params": decayed})
        groups.append({**group, "params": others, "weight_decay": 0.0})
    optimizer.param_groups[:] = groups


def _bitsandbytes(_: nn.Module, parameters: list[nn.Parameter], settings: TrainerSettings) -> Made:
    if world_size() > 1:
        raise TrainingError(
            f"training.optimizer: {settings.optimizer} works in one process, and the run has "
            f"{world_size()}: {ONE_PROCESS}"
        )
    check_optimizer(settings.optimizer)
    module = import_optional("bitsandbytes")
    # On a CPU there is nothing to page.
    paged = settings.optimizer == "paged-adamw-8bit" and parameters[0].device.type != "cpu"
    optimizer = (module.optim.PagedAdamW8bit if paged else module.optim.AdamW8bit)(
        parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    if getattr(optimizer, "is_paged", False):
        # Replaces the shared manager of all optimisers, which never frees their memory.
        optimizer.page_mng = SimpleNamespace(paged_tensors=_Pages(module.functional.lib))
    yield optimizer


def _muon(model: nn.Module, parameters: list[nn.Parameter], settings: TrainerSettings) -> Made:
    """Muon for matrices other than embeddings, and AdamW for the rest."""
    # Muon orthogonalises the update of a matrix; embeddings are tables, not linear maps.
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    matrices = [p for p in parameters if p.ndim == 2 and id(p) not in tables]
    rest = [p for p in parameters if p.ndim != 2 or id(p) in tables]
    decay = settings.weight_decay
    if matrices:
        scaled: Any = {"adjust_lr_fn": "match_rms_adamw"}
        yield torch.optim.Muon(matrices, lr=settings.learning_rate, weight_decay=decay, **scaled)
    if rest:  # empty with adapters, which are all matrices
        yield _adamw(rest, settings.embedding_learning_rate, decay)


OPTIMIZERS: Mapping[str, Callable[[nn.Module, list[nn.Parameter], TrainerSettings], Made]] = {
    "adamw": lambda _, ps, options: iter([_adamw(ps, options.learning_rate, options.weight_decay)]),
    "muon": _muon,
    "adamw-8bit": _bitsandbytes,
    "paged-adamw-8bit": _bitsandbytes,
}
"""By name; each yields the optimisers of the model's trained parameters."""


def _adamw(parameters: list[nn.Parameter], rate: float, decay: float) -> torch.optim.Optimizer:
    """AdamW, on GPUs with its fused kernel: faster, and without a copy of the weights."""
    fused = True if parameters[0].device.type == "cuda" else None
    return torch.optim.AdamW(parameters, rate, weight_decay=decay, fused=fused)
