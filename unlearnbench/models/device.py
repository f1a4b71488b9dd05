"""The device of a run, checked before anything is loaded, and its memory."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from unlearnbench.base.errors import TrainingError, UnlearnbenchError
from unlearnbench.base.provenance import driver_version
from unlearnbench.config.resources import Resources

USABLE_SHARE = 0.94
"""Share of a GPU's memory; torch's context and gaps between tensors take the rest."""
CACHE_SHARE = 0.7
"""Share of a GPU's free memory for keys and values; the rest is for activations."""

_FLASH = "FLASH_ATTENTION_DETERMINISTIC"
"""The variable that transformers reads before it calls the flash-attn package."""


def use_device(resources: Resources) -> None:
    """Hide GPUs from a run that uses none; call before anything is computed in the process.

    Raises: UnlearnbenchError where a run was given a GPU that torch cannot use: it would run on
    the CPU, while the GPU is idle.
    """
    if not resources.gpu:
        # Ray hides GPUs from processes that request none; without Ray nothing else does.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not torch.cuda.is_available():
        build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs alone"
        raise UnlearnbenchError(
            f"resources.gpu: {resources.gpu:g}, but torch finds no GPU to use: torch "
            f"{torch.__version__} is built for {build}, and the machine has "
            f"{driver_version()}; install a torch that is built for a CUDA version which the "
            "driver supports, or run on the CPU with --set resources.gpu=0"
        )
    else:  # its neighbours have the rest; the process may have served a run with another share
        torch.cuda.set_per_process_memory_fraction(min(resources.gpu, 1.0))
    disable_cudnn_attention()


def cuda_variables(*, deterministic: bool = False) -> dict[str, str]:
    """Environment variables that torch and cuBLAS read once, before they first use a GPU.

    A value that the user has set is kept.
    """
    variables: dict[str, str] = {}
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:  # the older name
        # Batches differ in length: segments of fixed sizes would leave unusable gaps.
        variables["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    if deterministic:
        variables["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    return {name: os.environ.get(name, value) for name, value in variables.items()}


@contextmanager
def deterministic(enabled: bool) -> Generator[None, None, None]:
    """Make the same work give the same bits on a GPU; do nothing unless `enabled`.

    torch's flash and memory-efficient attention use their deterministic backward passes under this
    flag. It needs the variables of `cuda_variables`.

    Raises: TrainingError for an operation that has no deterministic form
    """
    if not enabled:
        yield
        return
    cudnn: Any = torch.backends.cudnn
    flash = os.environ.get(_FLASH)
    before = torch.get_deterministic_debug_mode(), cudnn.deterministic, cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    cudnn.deterministic, cudnn.benchmark = True, False
    os.environ[_FLASH] = "1"
    try:
        yield
    except Exception as error:  # a method wraps what torch raises in errors of its own
        if (reason := _without_deterministic_form(error)) is None:
            raise
        raise TrainingError(
            f"training.deterministic: {reason}; leave the key out for runs that repeat to "
            "rounding, or change what uses the operation"
        ) from error
    finally:
        mode, cudnn.deterministic, cudnn.benchmark = before
        torch.set_deterministic_debug_mode(mode)
        if flash is None:
            del os.environ[_FLASH]
        else:
            os.environ[_FLASH] = flash


def _without_deterministic_form(error: BaseException | None) -> str | None:
    """torch's message about an operation that it refuses; None for other errors.

    torch's error may be the cause of one that names the method.
    """
    while error is not None:
        if isinstance(error, RuntimeError) and "use_deterministic_algorithms" in str(error):
            return str(error).partition(", but you set")[0].partition("\n")[0]
        error = error.__cause__
    return None


def device_count() -> int:
    """Number of GPUs that this process may use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def device_memory() -> int | None:
    """Memory in bytes of the smallest GPU that this process may use; None where there is none."""
    if not torch.cuda.is_available():
        return None
    devices = range(torch.cuda.device_count())
    return min(torch.cuda.get_device_properties(device).total_memory for device in devices)


def usable_memory(total: int | None, resources: Resources) -> int | None:
    """Bytes of a GPU of `total` bytes that a process of a run may use; None without a limit."""
    if total is None or not resources.gpu:
        return None
    return int(total * USABLE_SHARE * min(resources.gpu, 1.0))


def disable_cudnn_attention() -> None:
    """Turn cuDNN's attention off.

    On H100 and later it is the first choice, and it makes a plan for every new shape of a batch:
    tens of milliseconds again and again where batches differ in length.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def is_half(tensor: Tensor) -> bool:
    """True if matrix products with `tensor` are in bf16 or fp16 here."""
    return product_dtype(tensor) in (torch.bfloat16, torch.float16)


def product_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype of matrix products with `tensor`: autocast's where it is on, else its own."""
    kind = tensor.device.type
    if tensor.dtype == torch.float64 or not torch.amp.is_autocast_available(kind):
        return tensor.dtype  # autocast leaves float64 alone
    if not torch.is_autocast_enabled(kind):
        return tensor.dtype
    return torch.get_autocast_dtype(kind)


KEPT_BYTES = 2**30
"""Keys and values that an evaluation keeps from scoring for decoding."""


def max_cached_tokens(model: Any, tokens: int) -> int:
    """`tokens`, or on a GPU the smaller number whose keys and values fit into its free memory.

    Call it inside the autocast that the model runs under, if there is one.
    """
    parameter = next(model.parameters())
    if parameter.device.type != "cuda":
        return tokens
    dtype = product_dtype(parameter)
    free, total = torch.cuda.mem_get_info(parameter.device)
    free += torch.cuda.memory_reserved(parameter.device)
    share = torch.cuda.get_per_process_memory_fraction(parameter.device)
    free = min(free, int(share * total))
    free -= torch.cuda.memory_allocated(parameter.device)
    if dtype != parameter.dtype:  # autocast keeps a copy of each matrix
        free -= sum(p.numel() for p in model.parameters() if p.ndim > 1) * dtype.itemsize
    each = _cached_values_per_token(model.config.get_text_config()) * dtype.itemsize
    return max(min(tokens, int(CACHE_SHARE * free / each)), 1)


def kept_tokens(model: Any) -> int:
    """Tokens whose keys and values fit into `KEPT_BYTES` of a CPU's memory; on a GPU none.

    There reading a text again costs little, and memory is short.
    """
    parameter = next(model.parameters())
    if parameter.device.type != "cpu":
        return 0
    each = _cached_values_per_token(model.config.get_text_config())
    return KEPT_BYTES // (each * product_dtype(parameter).itemsize)


def _cached_values_per_token(config: Any) -> int:
    """Numbers in the keys and values of one token, over all layers.

    A recurrent model, such as Mamba, has neither. Its state takes the place of the hidden state.
    """
    heads = getattr(config, "num_attention_heads", None)
    if heads is None:
        return int(2 * config.num_hidden_layers * config.hidden_size)
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    width *= getattr(config, "num_key_value_heads", None) or heads
    return int(2 * config.num_hidden_layers * width)
