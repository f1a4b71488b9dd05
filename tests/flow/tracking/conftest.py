"""Records, folders, stores and servers for tests of MLflow tracking."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unlearnbench.api.observations import SETS, Evaluation, SetEvaluation
from unlearnbench.config.profiles import TOFU
from unlearnbench.config.resources import TrackingSettings
from unlearnbench.config.schema import MethodGrid, MethodSpec, ModelSettings, SweepConfig
from unlearnbench.report.mlflow import ENVIRONMENT
from unlearnbench.results.records import EpochResult, Record
from unlearnbench.training.step_result import StepResult

from ...factories.marks import WITH_MLFLOW
from ...made_up_numbers import write_with_made_up_numbers


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore warnings of MLflow's libraries."""
    for item in items:
        if Path(__file__).parent in Path(item.path).parents:
            for mark in WITH_MLFLOW:
                item.add_marker(mark)


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    # The code sets these in this process; each test must begin without them.
    for name in (*ENVIRONMENT, "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


def _metrics(utility: float, quality: float | None) -> dict[str, float | None]:
    quality_itself = None if quality is None else 10.0**quality
    columns = [f"{m}_{s}" for m in ("rouge", "probability", "truth_ratio") for s in SETS]
    sets = {name: 0.25 + 0.5 * ("retain" in name) for name in columns}
    summary = {"model_utility": utility, "log10_forget_quality": quality}
    return {**summary, "forget_quality": quality_itself, "ks_statistic": 0.5, "ks_n": 80.0, **sets}


class Kit:
    """Configurations, records, folders and servers."""

    metrics = staticmethod(_metrics)

    @staticmethod
    def config(**tracking: Any) -> SweepConfig:
        return SweepConfig(
            name="small",
            description="A small one.",
            models=(ModelSettings(name="tiny", base="tiny"),),
            forget_fractions=(0.1,),
            methods=(MethodGrid(specs=(MethodSpec(name="npo"),)),),
            tracking=TrackingSettings(**tracking),
        )

    @staticmethod
    def record(record_id: str, **changes: Any) -> Record:
        one, three = np.ones(1), np.full(1, 3)
        texts = ("Who?",), ("Nobody.",), ("Somebody.",)
        pair = np.ones((1, 2)), np.full((1, 2), 3)
        rows = SetEvaluation(*texts, one, three, one, three, *pair, one, one)
        record = Record(
            id=record_id,
            kind="run",
            model="tiny",
            forget_fraction=0.1,
            method="npo+nll",
            learning_rate=1e-4,
            seed=3,
            spec={
                "epochs": 2,
                "data_fingerprint": "d1d1",
                "model": {"base": "tiny", "dtype": "float32", "lora": None},
                "training": {"batch_size": 32, "micro_batch_size": None},
                "method": {
                    "name": "npo",
                    "hyperparameters": {"beta": 0.1},
                    "retain": {"term": "nll", "weight": 1.0},
                },
            },
            status="finished",
            profile=TOFU.id,
            epochs=(
                EpochResult(1, _metrics(0.7, None), 1.0, 2.0),
                EpochResult(2, _metrics(0.6, math.nan), 1.0, 2.0),
            ),
            steps=tuple(
                StepResult(k, 1 + k // 2, 1e-4, 2.0 - k, {"forget": 1.0, "retain": 1.0 - k}, 3.0)
                for k in range(3)
            ),
            provenance={
                "git": {"commit": "c0ffee", "dirty": False},
                "device": "cpu",
                "started": "2026-01-01T00:00:00.000+00:00",
                "finished": "2026-01-01T00:01:00.000+00:00",
                "peak_memory_mib": 264,
                "estimated_memory_mib": 181,
            },
            evaluations={2: Evaluation(profile=TOFU.id, sets=dict.fromkeys(SETS, rows))},
        )
        return dataclasses.replace(record, **changes)

    @staticmethod
    def start_model(utility: float = 0.75) -> Record:
        """The fine-tuned model, from which runs start."""
        return Kit.record(
            "5a5a",
            kind="fine-tuned",
            method="fine-tuned",
            learning_rate=None,
            spec={"model": {"base": "tiny", "dtype": "float32", "lora": None}},
            epochs=(EpochResult(0, _metrics(utility, -9.0), 0.0, 2.0),),
            steps=(),
            provenance={"data": "d1d1", "started": "2026-01-01T00:00:00.000+00:00"},
            evaluations={},
        )

    @staticmethod
    def stored(folder: Path, *records: Record, config: SweepConfig | None = None) -> Path:
        """A sweep's folder with these records."""
        folder.mkdir(exist_ok=True)
        document = {
            "name": "small",
            "config": (config or Kit.config()).model_dump(mode="json"),
            "data": {"0.1": "d1d1"},
            "rows": {"0.1": {"forget": 80, "retain": 720, "forget_perturbed": 400}},
            "runs": [{"id": record.id} for record in records if record.kind == "run"],
        }
        (folder / "plan.json").write_text(json.dumps(document), encoding="utf-8")
        write_with_made_up_numbers(records, folder)
        return folder


class Seen:
    """Content of a store."""

    def __init__(self, uri: str, experiment: str | None = None) -> None:
        from mlflow import MlflowClient

        self.client: Any = MlflowClient(uri)
        found = self.client.search_experiments()
        self.experiments = [e for e in found if e.name == (experiment or e.name) != "Default"]
        ids = [e.experiment_id for e in self.experiments]
        runs = self.client.search_runs(ids) if ids else []
        self.parents = [r for r in runs if "mlflow.parentRunId" not in r.data.tags]
        self.children = {
            r.data.tags["unlearnbench.run_id"]: r
            for r in runs
            if "mlflow.parentRunId" in r.data.tags
        }
        self.runs = len(runs)

    def artifacts(self, run: str, place: str = "") -> set[str]:
        """Paths of its files, those in folders included."""
        found = self.client.list_artifacts(run, place or None)
        inner = [self.artifacts(run, one.path) for one in found if one.is_dir]
        return {one.path for one in found if not one.is_dir}.union(*inner)


@pytest.fixture(scope="session")
def kit() -> type[Kit]:
    """Configurations, records, folders, servers."""
    return Kit


@pytest.fixture(scope="session")
def seen() -> type[Seen]:
    """Reads a store."""
    return Seen
