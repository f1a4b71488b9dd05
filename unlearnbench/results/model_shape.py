"""The sizes of a model, counted on tensors that have shapes and no data.

Only the config is read: no weight is loaded, 7 billion of them are counted in less than a second,
and any architecture works. Activations are the tensors that the library's own layers save in a
forward pass, with the run's precision, adapters and frozen weights.
"""

import copy
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from unlearnbench.base.errors import ModelError
from unlearnbench.config.schema import ModelSettings
from unlearnbench.models.lora import add_lora
from unlearnbench.models.quiet_libraries import quiet_transformers
from unlearnbench.models.source import Source
from unlearnbench.models.tiny import tiny_config
from unlearnbench.models.towers import text_decoder, unreached_weights
from unlearnbench.models.whole_model import read_config

_GROUPED = "_can_use_grouped_mm"
"""transformers' choice of torch's grouped product. It has no public name."""
Trains = Callable[[str, int], bool]
"""`Method.trains`: whether the weight of this name, in a model of so many layers, is trained."""


@dataclass(frozen=True)
class Shape:
    """Sizes of one model and its training; in elements unless stated otherwise."""

    weights: int
    trained: int
    weight_bytes: int
    """Bytes of all weights: adapters may be in another precision than the model."""
    trained_bytes: int
    largest: int
    """Numbers of the largest weight."""
    layer: int
    """Numbers of the largest decoder layer, which FSDP gathers as a whole."""
    layers: int
    hidden: int
    item: int
    """Bytes of an element of the hidden states between layers."""
    output: int
    """Numbers of the output layer: vocabulary × hidden size."""
    vocabulary: int
    output_trained: bool
    keys: int
    """Width of a token's keys and values, all layers together."""
    attention: int
    """Width of a token's queries, keys, values and outputs, all layers together."""
    queries: int
    """Width of the outputs alone."""
    attention_item: int
    """Bytes of an element of these."""
    row_bytes: int
    """Bytes of activations of a row of `width` tokens, without gradient checkpointing."""
    width: int
    cast_bytes: int
    """Bytes of weights that autocast copies for a forward pass."""

    @property
    def matrices(self) -> int:
        """Weights that a token is multiplied with: all but the embeddings."""
        return self.weights - (self.output if self._untied else 0)

    _untied: bool = False


def config_of(settings: ModelSettings, source: Source) -> Any:
    """The config of the model in `source`, or that of the built-in tiny model.

    Raises: ModelError where neither a folder nor the hub has it.
    """
    if settings.base == "tiny":
        return tiny_config(settings.architecture)
    source.check()
    quiet_transformers()
    return read_config(source, settings)


@dataclass(frozen=True)
class _ShapeKey:
    """The values that a shape depends on; the key of a cache."""

    text: str
    """The config and the model's settings."""
    frozen: frozenset[str]
    autocast: bool
    width: int
    config: Any = field(compare=False)
    settings: ModelSettings = field(compare=False)


def shape_of(
    config: Any, settings: ModelSettings, trains: Trains, *, autocast: bool, width: int
) -> Shape:
    """Count the sizes of a model with these settings, whose weights are trained where `trains`.

    autocast  matrix products in bf16, whatever the weights' precision
    width     tokens of the row whose activations are counted

    Raises: ModelError for a model that cannot run without data.
    """
    part = settings.model_dump_json(exclude={"name", "retain", "resources"})
    text = config.to_json_string(use_diff=False) + part
    try:
        names = _names(_ShapeKey(text, frozenset(), False, 0, config, settings))
        layers = int(config.get_text_config().num_hidden_layers)
        frozen = frozenset(name for name in names if not trains(name, layers))
        return _counted(_ShapeKey(text, frozen, autocast, width, config, settings))
    except (RuntimeError, ValueError, TypeError, AttributeError, KeyError, ImportError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"a model of type {config.model_type!r} cannot be counted without its weights "
            f"({reason[:160]}), so its memory is not known"
        ) from None


def number_of_weights(config: Any, settings: ModelSettings) -> int:
    """Count the weights of a model from its configuration, without its weights.

    Raises:
        ModelError: If the architecture cannot be built here.
    """
    key = _ShapeKey("", frozenset(), False, 0, config, settings)
    try:
        return sum(parameter.numel() for parameter in _built(key).parameters())
    except (RuntimeError, ValueError, TypeError, AttributeError, KeyError, ImportError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"a model of type {config.model_type!r} cannot be counted without its weights "
            f"({reason[:160]}), so its size is not known"
        ) from None


def _built(key: _ShapeKey) -> Any:
    """Build the model on torch's meta device."""
    import torch
    from transformers import AutoModelForCausalLM

    # Attention that is not installed here, such as flash, saves what the library's own saves.
    # None: SDPA, or eager attention in models without SDPA.
    attention = "eager" if key.settings.attention == "eager" else None
    config = copy.deepcopy(key.config)
    config._attn_implementation = None
    # Building must not change the state of the random generators.
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(
            config,
            dtype=getattr(torch, key.settings.dtype),
            attn_implementation=attention,
            trust_remote_code=key.settings.trust_remote_code,
        )
        if key.settings.lora is not None:
            model = add_lora(model, key.settings.lora)
    for name, parameter in model.named_parameters():
        if name in key.frozen:
            parameter.requires_grad_(False)
    return model


def _on_fake_cpu(model: Any) -> Any:
    """Replace the model's tensors by fake ones on the CPU: the meta device has no autocast.

    By hand, because adapters cannot be built on fake tensors, and `Module.to` cannot move them.
    """
    import torch

    replaced: dict[int, Any] = {}  # tied weights stay one
    for module in model.modules():
        for name, old in module._parameters.items():
            if old is not None:
                new = torch.empty(old.shape, dtype=old.dtype, device="cpu")
                parameter = torch.nn.Parameter(new, old.requires_grad)
                module._parameters[name] = replaced.setdefault(id(old), parameter)
        for name, old in module._buffers.items():
            if old is not None:
                module._buffers[name] = torch.empty(old.shape, dtype=old.dtype, device="cpu")
    return model


@lru_cache(maxsize=8)
def _names(key: _ShapeKey) -> tuple[str, ...]:
    return tuple(name for name, p in _built(key).named_parameters() if p.requires_grad)


@lru_cache(maxsize=16)
def _counted(key: _ShapeKey) -> Shape:
    from torch._subclasses.fake_tensor import FakeTensorMode

    built = _built(key)
    with FakeTensorMode():
        model = _on_fake_cpu(built)
        if key.settings.gradient_checkpointing:
            model.enable_input_require_grads()  # as in training: all layers have gradients
        for parameter in unreached_weights(model).values():
            parameter.requires_grad_(False)
        item, two = (_saved(model, rows, key) for rows in (1, 2))
        parameters = dict(model.named_parameters())
        head: Any = model.get_output_embeddings()
        table: Any = model.get_input_embeddings()
    config = key.config.get_text_config()
    # A recurrent model, such as Mamba, has no heads.
    heads = int(getattr(config, "num_attention_heads", None) or 1)
    size = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    key_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    layers = int(config.num_hidden_layers)
    trained = [p for p in parameters.values() if p.requires_grad]
    output = getattr(head, "base_layer", head).weight
    return Shape(
        weights=sum(p.numel() for p in parameters.values()),
        trained=sum(p.numel() for p in trained),
        weight_bytes=sum(p.nbytes for p in parameters.values()),
        trained_bytes=sum(p.nbytes for p in trained),
        largest=max(p.numel() for p in parameters.values()),
        layer=_largest_layer(dict(text_decoder(model).named_parameters())),
        layers=layers,
        hidden=int(config.hidden_size),
        item=output.element_size(),
        output=output.numel(),
        vocabulary=len(output),
        output_trained=bool(output.requires_grad),
        keys=2 * layers * key_heads * size,
        attention=2 * layers * (heads + key_heads) * size,
        queries=layers * heads * size,
        attention_item=2 if key.autocast else output.element_size(),
        row_bytes=two - item,
        width=key.width,
        cast_bytes=max(2 * item - two, 0) if key.autocast else 0,
        _untied=output is not table.weight,
    )


def _saved(model: Any, rows: int, key: _ShapeKey) -> int:
    """Bytes that a forward pass up to the output layer saves, without the weights themselves."""
    import torch
    from torch.autograd.graph import saved_tensors_hooks
    from torch.multiprocessing.reductions import StorageWeakRef

    def name_of(storage: Any) -> int:
        return int(StorageWeakRef(storage).cdata)  # its address: there is no data to point to

    weights = {name_of(p.untyped_storage()) for p in model.parameters()}
    result: dict[int, Any] = {}  # storages, kept alive so that no address serves twice

    def save(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if name_of(storage) not in weights:
            result[name_of(storage)] = storage
        return tensor

    body = getattr(model, "get_base_model", lambda: model)().base_model
    ids = torch.ones((rows, key.width), dtype=torch.long)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=key.autocast)
    with saved_tensors_hooks(save, lambda tensor: tensor), autocast, _experts_on_any_type():
        body(input_ids=ids, use_cache=False)
    return sum(storage.nbytes() for storage in result.values())


@contextmanager
def _experts_on_any_type() -> Generator[None, None, None]:
    """Let experts multiply tensors without data in any type.

    torch's grouped product takes float32 on a CPU, but its version for tensors without data only
    takes bfloat16. transformers has another version, which saves the same tensors.
    """
    from transformers.integrations import moe

    module: Any = moe
    choose = getattr(module, _GROUPED, None)
    if choose is None:
        yield
        return

    def never(*_: Any) -> bool:
        return False

    setattr(module, _GROUPED, never)
    try:
        yield
    finally:
        setattr(module, _GROUPED, choose)


def _largest_layer(parameters: dict[str, Any]) -> int:
    """Elements of the largest decoder layer: weights with the same first number in their names."""
    sizes: dict[str, int] = {}
    for name, parameter in parameters.items():
        number = next((part for part in name.split(".") if part.isdigit()), "")
        if number:
            sizes[number] = sizes.get(number, 0) + parameter.numel()
    return max(sizes.values(), default=0)
