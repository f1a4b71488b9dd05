"""`unlearnbench bench losses`: each primitive against library functions over full logits.

Times include the output layer and the loss, forward and backward. Memory is counted beyond inputs,
outputs and the inputs' gradients. Errors of both ways are against float64, on a few tokens.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psutil
import torch
from torch import Tensor

from unlearnbench.bench.measurement import PrintLine, ResultTable, circumstances, now, size_of
from unlearnbench.bench.peak_in_process import Work, peak_in_process
from unlearnbench.bench.plain_losses import PlainPredictions
from unlearnbench.errors import EvaluationError
from unlearnbench.losses.lm_head import Projection
from unlearnbench.losses.predictions import Predictions, Reference

Primitive = Callable[[Predictions, Reference], Tensor]

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


@dataclass(frozen=True)
class Size:
    """The size of a problem: tokens, hidden size and vocabulary."""

    tokens: int
    hidden: int
    vocabulary: int

    @classmethod
    def parse(cls, text: str) -> Size:
        """Read `tokens x hidden x vocabulary`, as in `2048x1024x32000`."""
        numbers = text.lower().split("x")
        if len(numbers) != 3 or not all(n.isdecimal() and int(n) > 0 for n in numbers):
            raise EvaluationError(
                f"--sizes {text}: a size is TOKENSxHIDDENxVOCABULARY, such as 2048x1024x32000"
            )
        return cls(*(int(n) for n in numbers))

    def __str__(self) -> str:
        return f"{self.tokens} × {self.hidden} × {self.vocabulary}"

    def fitting(self, memory: int, itemsize: int) -> Size:
        """Halve the tokens until the matrices fit into `memory` bytes."""
        matrix = self.tokens * self.vocabulary * max(itemsize, 4)
        if self.tokens <= SEQUENCE or FULL_MATRICES * matrix <= memory:
            return self
        return Size(self.tokens // 2, self.hidden, self.vocabulary).fitting(memory, itemsize)


def bench_losses(
    sizes: Sequence[Size], dtype: str, names: Sequence[str], repeats: int, print_line: PrintLine
) -> dict[str, Any]:
    """Measure each primitive at each size, both ways in turn; returns the result for JSON."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    results: list[dict[str, Any]] = []
    for requested in sizes:
        size = requested.fitting(_memory(device), getattr(torch, dtype).itemsize)
        print_line(
            f"{size}, {dtype}"
            + (f" (of {requested.tokens} tokens: memory)" if size != requested else "")
        )
        inputs = _Inputs(size, dtype, device)
        for name in names:
            seconds: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(repeats + 1):  # the first is warm-up
                for way in WAYS:
                    seconds[way].append(inputs.timed(name, way))
            medians = {way: statistics.median(values[1:]) for way, values in seconds.items()}
            how: dict[str, Any] = {"name": name, "size": asdict(size), "dtype": dtype}
            peaks = {way: peak_in_process(loss_of, how | {"way": way}) for way in WAYS}
            ratio = medians["ours"] / medians["usual"]
            result: dict[str, Any] = how | {
                "seconds": seconds,
                "median_seconds": medians,
                "extra_bytes": {w: p and max(p - inputs.gradients, 0) for w, p in peaks.items()},
                "ratio": ratio,
                "error": {way: inputs.error(name, way) for way in WAYS},
            }
            results.append(result)
            print_line(f"  {name}: {medians['ours']:.3g} s, {ratio:.2f}× of the usual way")
    return {
        "bench": "losses",
        **circumstances(),
        "settings": {"repeats": repeats, "dtype": dtype, "sizes": [asdict(s) for s in sizes]},
        "results": results,
    }


def tables(result: dict[str, Any]) -> tuple[ResultTable, ...]:
    """One table for each size."""
    columns = (
        *("primitive", "usual", "ours", "time"),
        *("extra, usual", "ours", "memory", "error, usual", "ours"),
    )
    found: dict[str, list[tuple[str, ...]]] = {}
    for each in result["results"]:
        seconds, extra, error = (each[k] for k in ("median_seconds", "extra_bytes", "error"))
        defined = None not in extra.values() and extra["usual"] > 0
        row = (
            each["name"],
            *(f"{seconds[way]:.3g} s" for way in WAYS),
            f"{each['ratio']:.2f}×",
            *(size_of(extra[way]) for way in WAYS),
            f"{extra['ours'] / extra['usual']:.1%}" if defined else "not known",
            *(f"{error[way]:.0e}" for way in WAYS),
        )
        found.setdefault(f"{Size(**each['size'])}, {each['dtype']}", []).append(row)
    title = "tokens × hidden size × vocabulary: "
    return tuple(ResultTable(columns, rows, title + size) for size, rows in found.items())


def loss_of(how: Mapping[str, Any]) -> Work:
    """Prepare the work whose memory is measured."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    small = _Inputs(Size(SEQUENCE, 16, 64), how["dtype"], device)
    small.timed(how["name"], how["way"])  # imports, thread pools and kernels are not counted
    inputs = _Inputs(Size(**how["size"]), how["dtype"], device)
    return device, lambda: inputs.timed(how["name"], how["way"])


class _Inputs:
    """Hidden states, output layers and labels of one size."""

    def __init__(self, size: Size, dtype: str, device: torch.device) -> None:
        self.size, self.device = size, device
        generator = torch.Generator(device).manual_seed(0)

        def draw(*shape: int, scale: float = 1.0) -> Tensor:
            values = torch.randn(*shape, generator=generator, device=device)
            return values.mul_(scale).to(getattr(torch, dtype))

        # Logits of standard deviation 3: some labels are sure, most are not.
        scale = 3 / size.hidden**0.5
        self.hidden = draw(size.tokens, size.hidden).requires_grad_()
        self.weight = draw(size.vocabulary, size.hidden, scale=scale).requires_grad_()
        self.other = draw(size.tokens, size.hidden)
        self.labels = torch.randint(
            size.vocabulary, (size.tokens,), generator=generator, device=device
        )

    @property
    def gradients(self) -> int:
        """Bytes of the gradients of hidden states and weight."""
        return self.hidden.nbytes + self.weight.nbytes

    def timed(self, name: str, way: str) -> float:
        """Seconds of the loss and its gradients."""
        begin = now(self.device)
        self._value(name, WAYS[way], self.hidden, self.weight, self.other).backward()
        end = now(self.device)
        self.hidden.grad = self.weight.grad = None
        return end - begin

    def _value(
        self, name: str, kind: type[Predictions], hidden: Tensor, weight: Tensor, other: Tensor
    ) -> Tensor:
        count = len(hidden)
        rows = torch.arange(count, device=self.device) // SEQUENCE
        many = int(rows[-1]) + 1
        parts = (hidden, Projection(weight), self.labels[:count], rows, many, count, many)
        start = Projection(weight.detach())
        reference = Reference(torch.zeros(count, device=self.device), rows, many, other, start)
        return PRIMITIVES[name](kind(*parts), reference)

    def error(self, name: str, way: str) -> float:
        """Largest error of a gradient's entry, relative to the largest entry, against float64."""
        count = min(CHECKED, self.size.tokens)
        found: list[list[Tensor]] = []
        for kind, exact in ((WAYS[way], self.hidden.dtype), (PlainPredictions, torch.float64)):
            inputs = (self.hidden[:count], self.weight)
            hidden, weight = (t.detach().to(exact).requires_grad_() for t in inputs)
            other = self.other[:count].to(exact)
            loss = self._value(name, kind, hidden, weight, other)
            found.append([*torch.autograd.grad(loss, (hidden, weight))])
        pairs = zip(*found, strict=True)
        return max(
            float((got.double() - truth).abs().max() / truth.abs().max()) for got, truth in pairs
        )


def _memory(device: torch.device) -> int:
    """Free memory in bytes."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    available: int = psutil.virtual_memory().available
    return available
