"""Configurations as pages have them, with models and data that take no time.

Data are generated in smaller numbers, `base: tiny` is smaller and hardly trained, few rows are
evaluated, and two epochs or trials stand for more. Everything else is as the page has it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from unlearnbench.config import loader
from unlearnbench.config.schema import SweepConfig

AUTHORS, EPOCHS, ROWS, TRIALS = 20, 2, 8, 2
ARCHITECTURE = (
    "{vocabulary: 400, hidden_size: 32, layers: 2, heads: 2, intermediate_size: 32, context: 512}"
)
PREPARATION = (
    "{epochs: 2, base_epochs: 1, optimizer: muon, learning_rate: 3.0e-3, batch_size: 16, "
    "weight_decay: 0.0, schedule: cosine}"
)
LEARNED = (
    "models.0.architecture={vocabulary: 400, hidden_size: 64, layers: 2, heads: 2, "
    "intermediate_size: 64, context: 512}",
    "models.0.preparation={epochs: 40, base_epochs: 5, optimizer: muon, learning_rate: 3.0e-3, "
    "batch_size: 16, weight_decay: 0.0, schedule: cosine, rehearse_facts: true}",
)
"""Changes for a start model that has learned its rows, so that runs have scores and attacks.

On one idle core its preparation takes about 25 s.
"""
Load = Callable[..., SweepConfig]


def shrinking(load: Load, cache: Path, seeds: int, changes: Sequence[str] = ()) -> Load:
    """Make `load_config` return small configurations of so many seeds, with one cache of models.

    Args:
        load: The plain `load_config`.
        cache: Folder of prepared models.
        seeds: Number of seeds that are left.
        changes: Further overrides, which come last.
    """

    def load_config(name: str, overrides: Sequence[str] = (), *more: Any) -> SweepConfig:
        config = load(name, overrides, *more)
        return load(name, [*overrides, *_changes(config, cache, seeds), *changes], *more)

    return load_config


def shrinking_several(
    load: Load, cache: Path, seeds: int
) -> Callable[..., tuple[SweepConfig, ...]]:
    """The same of `load_configs`; `load` is the plain `load_config`."""
    load_several = loader.load_configs

    def load_configs(name: str, overrides: Sequence[str] = ()) -> tuple[SweepConfig, ...]:
        configs = load_several(name, overrides)
        if len(configs) == 1:
            return (shrinking(load, cache, seeds)(name, overrides),)
        result: list[SweepConfig] = []
        for config in configs:
            own = [
                change if change.startswith("models.") else f"benchmarks.{config.name}.{change}"
                for change in _changes(config, cache, seeds)
            ]
            result.append(load(name, [*overrides, f"benchmark={config.name}", *own]))
        return tuple(result)

    return load_configs


def _changes(config: SweepConfig, cache: Path, seeds: int) -> list[str]:
    # Absolute: the workers of a shared Ray are in another folder.
    changes = [f"output={Path(config.output).absolute()}", f"cache={cache}"]
    # One worker: each takes seconds to import what runs need.
    budget = f"{config.unit.plural}={min(config.budget, EPOCHS)}"
    changes += [budget, "ray.concurrent=1"]
    changes += [f"evaluation.rows={min(config.evaluation.rows or ROWS, ROWS)}"]
    if config.tracking == type(config.tracking)():
        changes.append("tracking.enabled=false")
    smaller = {"authors": AUTHORS, "questions_per_author": 2, "pretraining_authors": 1}
    if config.select is None:
        changes.append(f"seeds={list(config.seeds[:seeds])}")
    if config.search.trials:
        key = "tune" if config.search.kind == "quasi-random" else "search"
        changes.append(f"{key}.trials={min(config.search.trials, TRIALS)}")
    stated = config.data.model_dump()
    changes += [f"data.{k}={min(v, stated[k])}" for k, v in smaller.items() if k in stated]
    for i, model in enumerate(config.models):
        if model.base == "tiny":
            changes.append(f"models.{i}.architecture={ARCHITECTURE}")
            changes.append(f"models.{i}.preparation={PREPARATION}")
    return changes
