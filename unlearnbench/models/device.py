"""The device of a run, checked before anything is loaded, and its memory."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from unlearnbench.base.errors import TrainingError, UnlearnbenchError
from unlearnbench.base.gpu_share import CACHE_SHARE, gpu_share
from unlearnbench.base.provenance import driver_version
from unlearnbench.config.resources import Resources
from unlearnbench.models.replays import permit_recording

USABLE_SHARE = 0.94
"""Share of a GPU's memory that a run can use. torch's context and gaps between tensors take the
rest."""
KEPT_BYTES = 2**30
"""Size of the keys and values that an evaluation keeps from scoring for decoding."""
_FLASH = "FLASH_ATTENTION_DETERMINISTIC"
"""The environment variable that transformers reads before it calls the flash-attn package."""


def use_device(resources: Resources) -> None:
    """Give this process the run's share of a GPU, or hide GPUs from a run that uses none.

    Call it before anything is computed in the process.

    Raises:
        UnlearnbenchError: The run was given a GPU that torch cannot use. It would run on the CPU,
            while the GPU is idle.
    """
    if not resources.gpus:
        # Ray hides GPUs from processes that request none, and without Ray nothing else does.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    elif not torch.cuda.is_available():
        build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs alone"
        raise UnlearnbenchError(
            f"resources.gpu: {resources.gpu_text}, but torch finds no GPU to use: torch "
            f"{torch.__version__} is built for {build}, and the machine has "
            f"{driver_version()}; install a torch that is built for a CUDA version which the "
            "driver supports, or run on the CPU with --set resources.gpu=0"
        )
    else:
        # Other runs on the same GPU have the rest of its memory. The fraction is set even if it is
        # 1, because this process may have served a run with a smaller one.
        share = gpu_share() if resources.is_measured else min(resources.gpus, 1.0)
        torch.cuda.set_per_process_memory_fraction(share)
    permit_recording(resources.cuda_graphs)
    disable_cudnn_attention()


def cuda_variables(*, deterministic: bool = False) -> dict[str, str]:
    """Return environment variables that torch and cuBLAS read once, before they first use a GPU.

    A value that the user has set is kept.

    Args:
        deterministic: Whether the same work has to give the same bits.
    """
    variables: dict[str, str] = {}
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:  # the older name
        # Batches differ in length, so segments of fixed sizes would leave unusable gaps.
        variables["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    if deterministic:
        variables["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    return {name: os.environ.get(name, value) for name, value in variables.items()}


@contextmanager
def deterministic(enabled: bool) -> Generator[None, None, None]:
    """Make the same work give the same bits on a GPU; do nothing unless `enabled`.

    torch's flash and memory-efficient attention use their deterministic backward passes under this
    setting. It needs the variables of `cuda_variables`.

    Raises:
        TrainingError: An operation has no deterministic form.
    """
    if not enabled:
        yield
        return
    cudnn: Any = torch.backends.cudnn
    debug_mode_before = torch.get_deterministic_debug_mode()
    cudnn_deterministic_before = cudnn.deterministic
    cudnn_benchmark_before = cudnn.benchmark
    flash_before = os.environ.get(_FLASH)
    torch.use_deterministic_algorithms(True)
    cudnn.deterministic = True
    cudnn.benchmark = False
    os.environ[_FLASH] = "1"
    try:
        yield
    except Exception as error:  # a method wraps what torch raises in errors of its own
        reason = _without_deterministic_form(error)
        if reason is None:
            raise
        raise TrainingError(
            f"training.deterministic: {reason}; leave the key out for runs that repeat to "
            "rounding, or change what uses the operation"
        ) from error
    finally:
        cudnn.deterministic = cudnn_deterministic_before
        cudnn.benchmark = cudnn_benchmark_before
        torch.set_deterministic_debug_mode(debug_mode_before)
        if flash_before is None:
            del os.environ[_FLASH]
        else:
            os.environ[_FLASH] = flash_before


def _without_deterministic_form(error: BaseException | None) -> str | None:
    """Return torch's message about an operation that it refuses; None for other errors.

    torch's error may be the cause of an error that names the method.
    """
    while error is not None:
        if isinstance(error, RuntimeError) and "use_deterministic_algorithms" in str(error):
            return str(error).partition(", but you set")[0].partition("\n")[0]
        error = error.__cause__
    return None


def device_count() -> int:
    """Return the number of GPUs that this process may use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def device_memory() -> int | None:
    """Return the bytes of the smallest GPU that this process may use; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    devices = range(torch.cuda.device_count())
    return min(torch.cuda.get_device_properties(device).total_memory for device in devices)


def usable_memory(total: int | None, resources: Resources) -> int | None:
    """Return the bytes of a GPU that a process of a run may use; None without a limit.

    Args:
        total: Memory of the GPU in bytes; None if it is not known.
        resources: Resources of the run.
    """
    if total is None or not resources.gpus:
        return None
    return int(total * USABLE_SHARE * min(resources.gpus, 1.0))


def disable_cudnn_attention() -> None:
    """Turn cuDNN's attention off.

    On H100 and later it is torch's first choice, and it makes a plan for every new shape of a
    batch. If batches differ in length, that takes tens of milliseconds again and again.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def is_half(tensor: Tensor) -> bool:
    """Whether matrix products with `tensor` are in bf16 or fp16 here."""
    return product_dtype(tensor) in (torch.bfloat16, torch.float16)


def product_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype of matrix products with `tensor`: autocast's if it is on, or its own."""
    device = tensor.device.type
    if tensor.dtype == torch.float64 or not torch.amp.is_autocast_available(device):
        return tensor.dtype  # autocast leaves float64 as it is
    if not torch.is_autocast_enabled(device):
        return tensor.dtype
    return torch.get_autocast_dtype(device)


def max_cached_tokens(model: Any, tokens: int) -> int:
    """Return how many tokens' keys and values can be in memory at once.

    Call it inside the autocast that the model runs under, if there is one.

    Args:
        model: The model, which is in memory already.
        tokens: The number that is wanted.

    Returns:
        `tokens`, or on a GPU a smaller number if its free memory holds no more; at least 1.
    """
    parameter = next(model.parameters())
    device = parameter.device
    if device.type != "cuda":
        return tokens
    free, total = torch.cuda.mem_get_info(device)
    # Memory that torch has reserved and does not use is free for this process.
    available = free + torch.cuda.memory_reserved(device)
    allowed_share = torch.cuda.get_per_process_memory_fraction(device)
    available = min(available, int(allowed_share * total))
    available -= torch.cuda.memory_allocated(device)
    dtype = product_dtype(parameter)
    if dtype != parameter.dtype:  # autocast keeps a copy of each matrix
        matrices = [weight for weight in model.parameters() if weight.ndim > 1]
        available -= sum(weight.numel() for weight in matrices) * dtype.itemsize
    most = int(CACHE_SHARE * available / cached_bytes_per_token(model))
    return max(min(tokens, most), 1)


def kept_tokens(model: Any) -> int:
    """Return how many tokens' keys and values fit into `KEPT_BYTES` of a CPU's memory.

    The result is 0 on a GPU, where reading a text again costs little, and memory is short.
    """
    parameter = next(model.parameters())
    if parameter.device.type != "cpu":
        return 0
    return KEPT_BYTES // cached_bytes_per_token(model)


def cached_bytes_per_token(model: Any) -> int:
    """Return the bytes of the keys and values of one token, over all layers.

    Call it inside the autocast that the model runs under, if there is one.
    """
    values = _cached_values_per_token(model.config.get_text_config())
    return values * product_dtype(next(model.parameters())).itemsize


def _cached_values_per_token(config: Any) -> int:
    """Return how many numbers are in the keys and values of one token, over all layers.

    A recurrent model, such as Mamba, has neither. Its state counts as one hidden state each.
    """
    heads = getattr(config, "num_attention_heads", None)
    if heads is None:
        return int(2 * config.num_hidden_layers * config.hidden_size)
    head_size = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return int(2 * config.num_hidden_layers * head_size * kv_heads)
