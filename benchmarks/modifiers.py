"""What a modifier costs: the time of a step with it, as a multiple of the plain step's, in turn.

python -m benchmarks.modifiers --size tiny --method npo+nll sam gru salun
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from unlearnbench.api import registry
from unlearnbench.api.modifier import Modifier
from unlearnbench.base.console import Console
from unlearnbench.training.optimizers import TrainerSettings
from unlearnbench.training.reference_model import load_references
from unlearnbench.training.trainer import Trainer

from .models import ARCHITECTURES
from .step import EPOCHS, RATE, Case, objective_of


def steps(case: Case, method: str, modifiers: Sequence[Modifier]) -> Iterator[float]:
    """Seconds of each step of a training."""
    objective = objective_of(method)
    settings = TrainerSettings(EPOCHS, case.batch_size, RATE, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        options: Any = {"seed": 0, "epochs": EPOCHS, "pad": case.pad, "folder": Path(folder)}
        rows = case.rows_of(objective)
        references = load_references(case.started, "start", rows, objective.needs, **options)
    given = (settings, case.pad, references, None, modifiers)
    trainer = Trainer(case.started(), objective, rows, *given)
    for epoch in range(1, EPOCHS):
        each = trainer.epoch(epoch)
        while True:
            begin = time.perf_counter()
            if next(each, None) is None:
                break
            yield time.perf_counter() - begin


def measured(case: Case, method: str, names: Sequence[str], repeats: int) -> dict[str, float]:
    """Median seconds of a step by modifier, `plain` for none; the first step of each warms up."""
    trained = {
        name: steps(case, method, [registry.load("modifiers", name)()] if name != "plain" else [])
        for name in ("plain", *names)
    }
    seconds: dict[str, list[float]] = {name: [] for name in trained}
    for number in range(repeats + 1):
        for name, each in trained.items():
            taken = next(each)
            if number:
                seconds[name].append(taken)
    return {name: statistics.median(values) for name, values in seconds.items()}


def main(words: list[str] | None = None) -> int:
    """Print a line for each modifier."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=registry.names("modifiers"))
    parser.add_argument("--size", choices=ARCHITECTURES, default="tiny")
    parser.add_argument("--method", default="npo+nll")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=7)
    given = parser.parse_args(words)
    case = Case(given.size, "synthetic", given.batch_size)
    found = measured(case, given.method, given.names, given.repeats)
    for name, value in found.items():
        Console().print(f"{name:10} {value:8.3f} s  {value / found['plain']:.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
