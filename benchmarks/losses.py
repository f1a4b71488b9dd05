"""Time each loss against library functions over full logits: python -m benchmarks.losses

Output layer and loss, forward and backward. Memory is beyond inputs and their gradients. The error
of either way is the largest of a gradient's entries, relative to the largest entry, against float64
on a few tokens.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import psutil
import torch
from torch import Tensor

from unlearnbench.losses.lm_head import Projection
from unlearnbench.losses.predictions import Predictions, Reference

from .plain_losses import PlainPredictions
from .timer import DEVICE, Work, begin, end, in_turn, options_of, peak_bytes

Primitive = Callable[[Predictions, Reference], Tensor]
Size = tuple[int, int, int]
"""Tokens, hidden size, vocabulary."""

PRIMITIVES: dict[str, Primitive] = {
    "CE-U": lambda p, _: p.mean_tokens(p.unlearning_cross_entropy),
    "cross entropy": lambda p, _: p.mean_tokens(p.cross_entropy()),
    "General CE-U, scores by token": lambda p, _: p.mean_tokens(
        p.unified_cross_entropy(torch.linspace(0, 1, len(p.labels)).to(p.labels.device))
    ),
    "sequence log-probability": lambda p, _: p.mean_sequences(p.sequence_logprob.square()),
    "KL": lambda p, r: p.mean_tokens(p.kl_from(r)),
    "reverse KL": lambda p, r: p.mean_tokens(p.kl_from(r, reverse=True)),
    "entropy": lambda p, _: p.mean_tokens(p.entropy),
    "margin": lambda p, _: p.mean_tokens(p.margin.square()),
}
WAYS: Mapping[str, type[Predictions]] = {"usual": PlainPredictions, "ours": Predictions}
CHECKED = 64
"""Tokens on which errors are measured."""
SEQUENCE = 32
"""Tokens of a sequence."""
FULL_MATRICES = 8
"""Matrices [tokens, vocabulary] that the usual way may allocate at once; they have to fit."""
AGREE = {"float32": 1e-3, "bfloat16": 1e-1}
"""Largest error of our gradients that rounding explains."""


def size_of(text: str) -> Size:
    """Read `tokens x hidden x vocabulary`, as in `2048x1024x32000`."""
    tokens, hidden, vocabulary = (int(number) for number in text.split("x"))
    return tokens, hidden, vocabulary


def fitting(size: Size, memory: int) -> Size:
    """Halve the tokens until the full matrices fit into `memory` bytes."""
    tokens, hidden, vocabulary = size
    while tokens > SEQUENCE and FULL_MATRICES * tokens * vocabulary * 4 > memory:
        tokens //= 2
    return tokens, hidden, vocabulary


class Case:
    """Hidden states, output layers and labels of one size."""

    def __init__(self, size: Size, dtype: str) -> None:
        tokens, hidden, vocabulary = size
        generator = torch.Generator(DEVICE).manual_seed(0)

        def draw(*shape: int, scale: float = 1.0) -> Tensor:
            values = torch.randn(*shape, generator=generator, device=DEVICE)
            return values.mul_(scale).to(getattr(torch, dtype))

        # Logits of standard deviation 3: some labels are sure, most are not.
        self.hidden = draw(tokens, hidden).requires_grad_()
        self.weight = draw(vocabulary, hidden, scale=3 / hidden**0.5).requires_grad_()
        self.other = draw(tokens, hidden)
        self.labels = torch.randint(vocabulary, (tokens,), generator=generator, device=DEVICE)

    def step(self, name: str, way: str) -> Work:
        """The loss and its gradients."""

        def work() -> None:
            self.hidden.grad = self.weight.grad = None
            self._value(name, WAYS[way], self.hidden, self.weight, self.other).backward()

        return work

    def _value(
        self, name: str, kind: type[Predictions], hidden: Tensor, weight: Tensor, other: Tensor
    ) -> Tensor:
        count = len(hidden)
        rows = torch.arange(count, device=DEVICE) // SEQUENCE
        many = int(rows[-1]) + 1
        part = kind(hidden, Projection(weight), self.labels[:count], rows, many, count, many)
        start = torch.zeros(count, device=DEVICE)
        reference = Reference(start, rows, many, other, Projection(weight.detach()))
        return PRIMITIVES[name](part, reference)

    def error(self, name: str, way: str) -> float:
        """Largest error of a gradient's entry, relative to the largest entry, against float64."""
        gradients: list[tuple[Tensor, ...]] = []
        for kind, dtype in ((WAYS[way], self.hidden.dtype), (PlainPredictions, torch.float64)):
            inputs = (self.hidden[:CHECKED], self.weight)
            hidden, weight = (t.detach().to(dtype).requires_grad_() for t in inputs)
            loss = self._value(name, kind, hidden, weight, self.other[:CHECKED].to(dtype))
            gradients.append(torch.autograd.grad(loss, (hidden, weight)))
        pairs = zip(*gradients, strict=True)
        return max(float((a.double() - b).abs().max() / b.abs().max()) for a, b in pairs)


def step_of(size: Size, dtype: str, name: str, way: str) -> Work:
    """The work whose memory is measured; imports, thread pools and kernels are not counted."""
    Case((SEQUENCE, 16, 64), dtype).step(name, way)()
    case = Case(size, dtype)
    case.hidden.grad, case.weight.grad = (torch.zeros_like(t) for t in (case.hidden, case.weight))
    return case.step(name, way)


def main(words: list[str] | None = None) -> int:
    """Measure each loss at each size."""
    parser = options_of(__doc__)
    parser.add_argument("--sizes", nargs="+", default=["2048x1024x32000"], help="TxHxV")
    parser.add_argument("--dtype", choices=[*AGREE], default="float32")
    parser.add_argument("--names", nargs="+", choices=[*PRIMITIVES], default=[*PRIMITIVES])
    options = begin(parser, words)
    on_gpu = DEVICE.type == "cuda"
    memory = torch.cuda.mem_get_info()[0] if on_gpu else psutil.virtual_memory().available
    results: list[dict[str, Any]] = []
    for size in (fitting(size_of(text), memory) for text in options.sizes):
        case, tiny = Case(size, options.dtype), size[0] * size[2] < 1e6
        for name in options.names:
            seconds = in_turn({way: case.step(name, way) for way in WAYS}, options.repeats)
            order = (step_of, size, options.dtype, name)
            result = {
                "name": name,
                "size": size,
                "seconds": seconds,
                "ratio": seconds["ours"]["median"] / seconds["usual"]["median"],
                "peak_bytes": {way: peak_bytes(*order, way, here=tiny) for way in WAYS},
                "error": {way: case.error(name, way) for way in WAYS},
            }
            results.append(result)
    agree = all(each["error"]["ours"] < AGREE[options.dtype] for each in results)
    return end(options, agree, results=results)


if __name__ == "__main__":
    sys.exit(main())
