"""Time training steps with and without recorded passes: python -m benchmarks.replays

Two trainers take the same steps in turn. One may record passes as CUDA graphs, the other may not.
First both take steps under deterministic algorithms, after which their weights have to be equal to
the last bit. Then steps are timed as runs take them. On a CPU nothing is recorded.
"""

import gc
import os
import sys
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

import torch

from unlearnbench.config.precision import Precision
from unlearnbench.models.device import cuda_variables, deterministic
from unlearnbench.models.replays import permit_recording
from unlearnbench.training.trainer import Trainer

from .models import SIZES
from .step import EPOCHS, Case, objective_of
from .timer import DEVICE, begin, end, now, options_of, spread

METHODS = ("gradient-difference", "npo+nll")
RATE = 1e-5
EQUAL_STEPS = 20
"""Steps after which weights are compared: shapes come twice before they are recorded."""


class Way:
    """A trainer that takes steps with recordings or without."""

    def __init__(self, case: Case, method: str, *, records: bool) -> None:
        self.records = records
        self.trainer = case.trainer(objective_of(method), RATE)
        self._steps = self._losses()

    def _losses(self) -> Iterator[float]:
        for epoch in range(1, EPOCHS):
            for step in self.trainer.epoch(epoch):
                yield step.loss

    def step(self) -> tuple[float, float]:
        """Take a step; returns its seconds and its loss."""
        permit_recording(self.records)
        start = now()
        loss = next(self._steps)
        return now() - start, loss


def both_ways(case: Case, method: str) -> tuple[Way, Way]:
    """The way without recordings, and the way with them."""
    return Way(case, method, records=False), Way(case, method, records=True)


def difference(first: Trainer, second: Trainer) -> float:
    """The largest difference of two weights."""
    pairs = zip(first.parameters, second.parameters, strict=True)
    return max(float((one.detach() - other.detach()).abs().max()) for one, other in pairs)


def counts(trainer: Trainer) -> dict[str, int]:
    """What was recorded and replayed."""
    replays = trainer.passes.replays
    return {
        "steps": trainer.step,
        "replayed_passes": replays.replayed,
        "recorded_shapes": len(replays.passes),
        "different_shapes": replays.shapes,
    }


def compared(case: Case, method: str) -> dict[str, Any]:
    """Take steps both ways under deterministic algorithms."""
    plain, replayed = both_ways(case, method)
    with deterministic(enabled=True):
        losses = [(plain.step()[1], replayed.step()[1]) for _ in range(EQUAL_STEPS)]
    return {
        "equal_losses": all(one == other for one, other in losses),
        "largest_difference": difference(plain.trainer, replayed.trainer),
        **counts(replayed.trainer),
    }


def are_equal(found: Mapping[str, Any]) -> bool:
    """Whether both ways gave the same bits, and on a GPU the one replayed passes."""
    has_replayed = bool(found["replayed_passes"]) or DEVICE.type == "cpu"
    return has_replayed and found["equal_losses"] and not found["largest_difference"]


def timed(case: Case, method: str, steps: int, warm_up: int) -> dict[str, Any]:
    """Time steps both ways in turn."""
    plain, replayed = both_ways(case, method)
    turns = [(plain.step(), replayed.step()) for _ in range(warm_up + steps)]
    seconds_of_way = {
        "plain": [one[0] for one, _ in turns],
        "replayed": [other[0] for _, other in turns],
    }
    first_loss, last_loss = ([turns[index][way][1] for way in (0, 1)] for index in (0, -1))
    result: dict[str, Any] = {
        # The first steps record, which is a cost of its own.
        "first_seconds": {way: sum(each[:warm_up]) for way, each in seconds_of_way.items()},
        "seconds": {way: spread(each[warm_up:]) for way, each in seconds_of_way.items()},
        "first_losses": first_loss,
        "last_losses": last_loss,
        "largest_difference": difference(plain.trainer, replayed.trainer),
        **counts(replayed.trainer),
    }
    if DEVICE.type == "cuda":
        result["allocated_bytes"] = torch.cuda.max_memory_allocated()
        result["reserved_bytes"] = torch.cuda.max_memory_reserved()
    return result


def main(words: list[str] | None = None) -> int:
    """Measure each method."""
    parser = options_of(__doc__)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--data", default="synthetic", help="a benchmark, or a folder of files")
    parser.add_argument("--batch-size", type=int, default=32, help="rows to forget a step")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--methods", nargs="+", default=METHODS, help="+nll or +kl adds a term")
    parser.add_argument("--warm-up", type=int, default=15, help="steps before those timed")
    parser.set_defaults(repeats=30)
    # cuBLAS reads its variable once.
    os.environ.update(cuda_variables(deterministic=True))
    options = begin(parser, words)
    precision: Precision = options.precision
    case = Case(options.size, options.data, options.batch_size, precision)
    results: list[dict[str, Any]] = []
    for method in options.methods:
        found = {"method": method, "deterministic": compared(case, method)}
        gc.collect()
        found["timed"] = timed(case, method, options.repeats, options.warm_up)
        gc.collect()
        results.append(found)
    permit_recording(True)
    ratios = [
        found["timed"]["seconds"]["plain"]["median"]
        / found["timed"]["seconds"]["replayed"]["median"]
        for found in results
    ]
    parameters = sum(p.numel() for p in case.model.parameters())
    agree = all(are_equal(found["deterministic"]) for found in results)
    return end(options, agree, parameters=parameters, faster=median(ratios), results=results)


if __name__ == "__main__":
    sys.exit(main())
