"""The map from final hidden states to logits, usable without its model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Projection:
    """A model's map from final hidden states to logits: cap · tanh((h Wᵀ + b) · scale / cap)."""

    weight: Tensor | None
    """[V, H]; None where the hidden states are logits already."""
    bias: Tensor | None = None
    """[V]"""
    scale: float = 1.0
    cap: float | None = None

    def detach(self) -> Projection:
        """The same map without gradients of its weights."""
        weight = None if self.weight is None else self.weight.detach()
        bias = None if self.bias is None else self.bias.detach()
        return Projection(weight, bias, self.scale, self.cap)

    def is_same(self, other: Projection) -> bool:
        """Whether both maps read the same memory."""
        if self.weight is None or other.weight is None:
            return self.weight is other.weight
        return self.weight.data_ptr() == other.weight.data_ptr()

    def __call__(self, hidden: Tensor, compute: torch.dtype | None = None) -> Tensor:
        """Logits [N, V] of hidden states [N, H], in fp32 at least, all at once.

        compute  half precision for the matrix product alone; default: autocast's
        """
        if self.weight is None:
            logits = hidden
        elif compute in (torch.bfloat16, torch.float16):
            logits = at_least_fp32(hidden.to(compute) @ self.weight.to(compute).T)
            logits = logits if self.bias is None else logits.add_(self.bias)
        else:
            logits = torch.nn.functional.linear(
                hidden.to(self.weight.dtype), self.weight, self.bias
            )
        logits = at_least_fp32(logits)
        logits = logits * self.scale if self.scale != 1 else logits
        return self.cap * torch.tanh(logits / self.cap) if self.cap else logits


def at_least_fp32(tensor: Tensor) -> Tensor:
    """Convert to fp32 unless it is fp64: a log-softmax over 100k entries loses digits in bf16."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
