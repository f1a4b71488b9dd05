"""A sweep of one small run, and what it needs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.config.method_specs import method_spec
from unlearnbench.config.plan import make_plan
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import (
    Architecture,
    EvaluationSettings,
    MethodGrid,
    ModelSettings,
    Preparation,
    SweepConfig,
)
from unlearnbench.config.training_settings import TrainingSettings
from unlearnbench.models.rows_loading import fingerprint, load_benchmark
from unlearnbench.results.records import Record

ARCHITECTURE = Architecture(
    vocabulary=400, hidden_size=32, layers=1, heads=2, intermediate_size=32, context=256
)


def config_of(folder: Path, **changes: Any) -> SweepConfig:
    preparation = Preparation(
        epochs=1, base_epochs=1, optimizer="muon", learning_rate=3e-3, batch_size=16
    )
    values: dict[str, Any] = {
        "name": "small",
        "data": Synthetic(authors=4, questions_per_author=3, pretraining_authors=1),
        "models": (
            ModelSettings(
                name="tiny", base="tiny", architecture=ARCHITECTURE, preparation=preparation
            ),
        ),
        "forget_fractions": (0.5,),
        "methods": (MethodGrid(specs=(method_spec("npo", {}),)),),
        "learning_rates": (1e-3,),
        "epochs": 3,
        "training": TrainingSettings(batch_size=4),
        "evaluation": EvaluationSettings(rows=4, max_length=96),
        "output": str(folder / "runs"),
        "cache": str(folder / "cache"),
    }
    return SweepConfig(**{**values, **changes})


def runs_of(config: SweepConfig) -> tuple[RunSpec, ...]:
    data = load_benchmark(config.data, config.split_keys)
    return make_plan(config, {f: fingerprint(data, f) for f in data.splits}).runs


def without_times(record: Record) -> Record:
    epochs = tuple(
        replace(epoch, training_seconds=0.0, evaluation_seconds=0.0) for epoch in record.epochs
    )
    return replace(record, provenance={}, epochs=epochs)
