"""The dtype of matrix products, which under autocast is not that of the weights."""

import torch
from torch import Tensor


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
