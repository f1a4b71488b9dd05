"""The sizes of a model, counted on tensors that have shapes and no data.

Only the model's config is read and no weight is loaded, so that a model of 7 billion weights takes
less than a second. Any architecture of transformers works, in three steps:

1. Build the model on torch's meta device, with adapters and frozen weights (`_built`).
2. Replace its tensors by fake ones on the CPU, which take part in autocast (`_on_fake_cpu`).
3. Run a forward pass and add up the activations that the layers save for the backward pass
   (`_saved_bytes`).
"""

import copy
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from unlearnbench.base.deferred_imports import deferred_imports
from unlearnbench.base.errors import ModelError
from unlearnbench.config.schema import ModelSettings
from unlearnbench.models.lora import add_lora
from unlearnbench.models.quiet_libraries import quiet_transformers
from unlearnbench.models.source import Source
from unlearnbench.models.tiny import tiny_config
from unlearnbench.models.towers import text_decoder, unreached_weights
from unlearnbench.models.whole_model import read_config

_GROUPED_PRODUCT_RULE = "_can_use_grouped_mm"
"""Function of transformers that decides whether torch's grouped product is used. It has no public
name."""
_CANNOT_BUILD = (RuntimeError, ValueError, TypeError, AttributeError, KeyError, ImportError)
"""What a model may raise when it is built or run without data."""
Trains = Callable[[str, int], bool]
"""`Method.trains`: whether the weight of this name, in a model of so many layers, is trained."""


@dataclass(frozen=True)
class Shape:
    """Sizes of one model and its training, in numbers of elements unless stated otherwise."""

    weights: int
    trained: int
    """Weights that are trained."""
    weight_bytes: int
    """Bytes of all weights. Adapters may have another precision than the model."""
    trained_bytes: int
    largest_weight: int
    """Elements of the largest weight tensor."""
    largest_layer: int
    """Weights of the largest decoder layer, which FSDP gathers as a whole."""
    layers: int
    hidden: int
    """Width of the hidden states between layers."""
    element_bytes: int
    """Bytes of an element of the hidden states."""
    output_weights: int
    """Weights of the output layer: vocabulary × hidden size."""
    vocabulary: int
    output_trained: bool
    cache_width: int
    """Keys and values of a token, in all layers together."""
    attention_width: int
    """Queries, keys, values and outputs of a token, in all layers together."""
    attention_output_width: int
    """Only the outputs among these."""
    attention_element_bytes: int
    """Bytes of an element of queries, keys, values and outputs."""
    row_bytes: int
    """Bytes of activations of a row of `width` tokens, without gradient checkpointing."""
    width: int
    cast_bytes: int
    """Bytes of weights that autocast copies for a forward pass."""
    has_own_embeddings: bool
    """Whether the input embeddings are other weights than the output layer's."""

    @property
    def matrices(self) -> int:
        """Weights that a token is multiplied with: all except input embeddings of their own."""
        return self.weights - (self.output_weights if self.has_own_embeddings else 0)


def config_of(settings: ModelSettings, source: Source) -> Any:
    """Read the config of the model in `source`, or make that of the built-in tiny model.

    Raises:
        ModelError: If neither a folder nor the hub has the model.
    """
    if settings.base == "tiny":
        return tiny_config(settings.architecture)
    source.check()
    quiet_transformers()
    return read_config(source, settings)


@dataclass(frozen=True)
class _ShapeKey:
    """Everything that a shape depends on. It is the key of a cache."""

    text: str
    """Config and model settings as text, by which keys are compared. Empty if the key is in no
    cache."""
    frozen: frozenset[str]
    """Names of the weights that are not trained."""
    autocast: bool
    width: int
    """Tokens of the row whose activations are counted."""
    config: Any = field(compare=False)
    settings: ModelSettings = field(compare=False)


def shape_of(
    config: Any, settings: ModelSettings, trains: Trains, *, autocast: bool, width: int
) -> Shape:
    """Count the sizes of a model and of its training.

    Args:
        config: Config of the model, see `config_of`.
        settings: Settings of the model: precision, adapters, gradient checkpointing.
        trains: Decides which weights are trained.
        autocast: Whether matrix products are in bf16, whatever the weights' precision.
        width: Tokens of the row whose activations are counted.

    Raises:
        ModelError: If the model cannot run without data.
    """
    # A shape does not depend on the name of the model, nor on where it runs.
    settings_text = settings.model_dump_json(exclude={"name", "retain", "resources"})
    text = config.to_json_string(use_diff=False) + settings_text
    try:
        all_trained = _ShapeKey(text, frozenset(), False, 0, config, settings)
        names = _trainable_names(all_trained)
        layers = int(config.get_text_config().num_hidden_layers)
        frozen = frozenset(name for name in names if not trains(name, layers))
        return _counted(_ShapeKey(text, frozen, autocast, width, config, settings))
    except _CANNOT_BUILD as error:
        raise ModelError(
            f"a model of type {config.model_type!r} cannot be counted without its weights "
            f"({_reason(error)}), so its memory is not known"
        ) from None


def number_of_weights(config: Any, settings: ModelSettings) -> int:
    """Count the weights of a model from its config, without loading them.

    Raises:
        ModelError: If the architecture cannot be built here.
    """
    key = _ShapeKey("", frozenset(), False, 0, config, settings)
    try:
        return sum(parameter.numel() for parameter in _built(key).parameters())
    except _CANNOT_BUILD as error:
        raise ModelError(
            f"a model of type {config.model_type!r} cannot be counted without its weights "
            f"({_reason(error)}), so its size is not known"
        ) from None


def _reason(error: Exception) -> str:
    """Return the first line of an error, or its type if it has no text."""
    lines = str(error).strip().splitlines()
    first_line = lines[0] if lines else type(error).__name__
    return first_line[:160]


def _built(key: _ShapeKey) -> Any:
    """Build the model on torch's meta device, with adapters and frozen weights."""
    import torch
    from transformers import AutoModelForCausalLM

    # An attention that may not be installed here, such as flash attention, saves what SDPA saves.
    # With None, transformers chooses SDPA, or eager attention for a model without SDPA.
    attention = "eager" if key.settings.attention == "eager" else None
    config = copy.deepcopy(key.config)
    config._attn_implementation = None
    # Building must not change the state of the random generators.
    with deferred_imports(), torch.random.fork_rng(devices=[]), torch.device("meta"):
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
    """Replace the model's tensors by fake ones on the CPU, because the meta device has no autocast.

    They are replaced one by one, because adapters cannot be built on fake tensors, and `Module.to`
    cannot move a model to them. To be called in a `FakeTensorMode`.
    """
    import torch

    fake_of: dict[int, Any] = {}
    """By id of the old parameter, so that tied weights stay one parameter."""
    for module in model.modules():
        for name, old in module._parameters.items():
            if old is None:
                continue
            if id(old) not in fake_of:
                data = torch.empty(old.shape, dtype=old.dtype, device="cpu")
                fake_of[id(old)] = torch.nn.Parameter(data, old.requires_grad)
            module._parameters[name] = fake_of[id(old)]
        for name, old in module._buffers.items():
            if old is not None:
                module._buffers[name] = torch.empty(old.shape, dtype=old.dtype, device="cpu")
    return model


@lru_cache(maxsize=8)
def _trainable_names(key: _ShapeKey) -> tuple[str, ...]:
    """Return the names of the weights that can be trained: with LoRA only the adapters."""
    return tuple(name for name, weight in _built(key).named_parameters() if weight.requires_grad)


@lru_cache(maxsize=16)
def _counted(key: _ShapeKey) -> Shape:
    """Build a model, run it once without data, and count its sizes."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    built = _built(key)
    with deferred_imports(), FakeTensorMode():
        model = _on_fake_cpu(built)
        if key.settings.gradient_checkpointing:
            # As in training: the gradients of all layers exist, also with adapters.
            model.enable_input_require_grads()
        for weight in unreached_weights(model).values():
            weight.requires_grad_(False)
        saved_of_one_row = _saved_bytes(model, 1, key)
        saved_of_two_rows = _saved_bytes(model, 2, key)
        weights = list(model.parameters())
        output_layer: Any = model.get_output_embeddings()
        embeddings: Any = model.get_input_embeddings()
    trained = [weight for weight in weights if weight.requires_grad]
    # An adapter wraps the layer that it adapts.
    output = getattr(output_layer, "base_layer", output_layer).weight

    # A pass over n rows saves n · row_bytes, and the weights that autocast copies once.
    row_bytes = saved_of_two_rows - saved_of_one_row
    copied_weights = max(2 * saved_of_one_row - saved_of_two_rows, 0)

    config = key.config.get_text_config()
    layers = int(config.num_hidden_layers)
    # A recurrent model, such as Mamba, has no heads.
    heads = int(getattr(config, "num_attention_heads", None) or 1)
    key_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    head_width = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    return Shape(
        weights=sum(weight.numel() for weight in weights),
        trained=sum(weight.numel() for weight in trained),
        weight_bytes=sum(weight.nbytes for weight in weights),
        trained_bytes=sum(weight.nbytes for weight in trained),
        largest_weight=max(weight.numel() for weight in weights),
        largest_layer=_largest_layer(dict(text_decoder(model).named_parameters())),
        layers=layers,
        hidden=int(config.hidden_size),
        element_bytes=output.element_size(),
        output_weights=output.numel(),
        vocabulary=len(output),
        output_trained=bool(output.requires_grad),
        # Keys and values, and for the second width also queries and outputs.
        cache_width=2 * layers * key_heads * head_width,
        attention_width=2 * layers * (heads + key_heads) * head_width,
        attention_output_width=layers * heads * head_width,
        attention_element_bytes=2 if key.autocast else output.element_size(),
        row_bytes=row_bytes,
        width=key.width,
        cast_bytes=copied_weights if key.autocast else 0,
        has_own_embeddings=output is not embeddings.weight,
    )


def _saved_bytes(model: Any, rows: int, key: _ShapeKey) -> int:
    """Return the bytes that a forward pass up to the output layer saves, without the weights."""
    import torch
    from torch.autograd.graph import saved_tensors_hooks
    from torch.multiprocessing.reductions import StorageWeakRef

    def storage_id(storage: Any) -> int:
        # The address of the storage object, because there is no data with an address.
        return int(StorageWeakRef(storage).cdata)

    weight_storages = {storage_id(weight.untyped_storage()) for weight in model.parameters()}
    saved: dict[int, Any] = {}
    """Storages by id. They are kept alive, so that no address is used twice."""

    def save(tensor: torch.Tensor) -> torch.Tensor:
        # Tensors that share a storage are counted once.
        storage = tensor.untyped_storage()
        if storage_id(storage) not in weight_storages:
            saved[storage_id(storage)] = storage
        return tensor

    whole_model = model.get_base_model() if hasattr(model, "get_base_model") else model
    decoder = whole_model.base_model
    ids = torch.ones((rows, key.width), dtype=torch.long)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=key.autocast)
    with saved_tensors_hooks(save, lambda tensor: tensor), autocast, _experts_on_any_type():
        decoder(input_ids=ids, use_cache=False)
    return sum(storage.nbytes() for storage in saved.values())


@contextmanager
def _experts_on_any_type() -> Generator[None, None, None]:
    """Let a mixture of experts multiply fake tensors of any type.

    torch's grouped product takes float32 on a CPU, but only bfloat16 for fake tensors. transformers
    has a product of its own, which saves the same tensors. It is used inside this context.
    """
    from transformers.integrations import moe

    module: Any = moe
    rule = getattr(module, _GROUPED_PRODUCT_RULE, None)
    if rule is None:
        yield
        return

    def never(*_: Any) -> bool:
        return False

    setattr(module, _GROUPED_PRODUCT_RULE, never)
    try:
        yield
    finally:
        setattr(module, _GROUPED_PRODUCT_RULE, rule)


def _largest_layer(parameters: dict[str, Any]) -> int:
    """Return the number of weights in the largest decoder layer.

    Args:
        parameters: Weights by name. Those of a layer have the same first number in their names,
            such as 7 in `layers.7.mlp.down_proj.weight`.
    """
    size_of_layer: dict[str, int] = {}
    for name, parameter in parameters.items():
        number = next((part for part in name.split(".") if part.isdigit()), None)
        if number is not None:
            size_of_layer[number] = size_of_layer.get(number, 0) + parameter.numel()
    return max(size_of_layer.values(), default=0)
