"""The map from final hidden states to logits, usable without its model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Projection:
    """A model's map from final hidden states h to logits: cap · tanh((h Wᵀ + b) · scale / cap).

    Symbols: N tokens, H hidden size, V vocabulary entries.
    """

    weight: Tensor | None
    """[V, H] W; None if the hidden states are logits already."""
    bias: Tensor | None = None
    """[V] b"""
    scale: float = 1.0
    cap: float | None = None
    """Largest absolute logit. None: the logits are (h Wᵀ + b) · scale, without tanh."""

    def detach(self) -> Projection:
        """Return the same map without gradients of its weights."""
        weight = None if self.weight is None else self.weight.detach()
        bias = None if self.bias is None else self.bias.detach()
        return Projection(weight, bias, self.scale, self.cap)

    def is_same(self, other: Projection) -> bool:
        """Whether both maps read the same weight in memory."""
        if self.weight is None or other.weight is None:
            return self.weight is other.weight
        return self.weight.data_ptr() == other.weight.data_ptr()

    def __call__(self, hidden: Tensor, compute: torch.dtype | None = None) -> Tensor:
        """Compute the logits [N, V] of hidden states [N, H], all at once, in fp32 or fp64.

        Args:
            hidden: Final hidden states [N, H], or logits [N, V] if there is no weight.
            compute: A half precision that only the matrix product uses. With None or any other
                dtype, the product has the weight's dtype, or autocast's.
        """
        if self.weight is None:
            logits = hidden
        elif compute in (torch.bfloat16, torch.float16):
            logits = at_least_fp32(hidden.to(compute) @ self.weight.to(compute).T)
            if self.bias is not None:
                logits.add_(self.bias)
        else:
            logits = torch.nn.functional.linear(
                hidden.to(self.weight.dtype), self.weight, self.bias
            )
        logits = at_least_fp32(logits)
        if self.scale != 1:
            logits = logits * self.scale
        if not self.cap:
            return logits
        return self.cap * torch.tanh(logits / self.cap)


def at_least_fp32(tensor: Tensor) -> Tensor:
    """Convert a tensor to fp32 unless it is fp64.

    A log-softmax over 100k entries loses digits in bf16.
    """
    return tensor if tensor.dtype == torch.float64 else tensor.float()
