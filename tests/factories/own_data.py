"""Folders of sweeps on a user's own questions, with and without a retain model or holdout rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.factories.recorder import DATA, Recorder, World
from tests.factories.rows import RowPlan, rows_of
from unlearnbench.config.loader import load_config
from unlearnbench.config.plan import Plan, make_plan
from unlearnbench.config.schema import SweepConfig
from unlearnbench.results.sweep_folder import claim_folder

RELEARNING = {"relearning": {"steps": [1, 4]}}


@dataclass(frozen=True)
class OwnFolder:
    """A folder that has been written."""

    folder: Path
    config: SweepConfig
    plan: Plan


def write_own_data(
    root: Path,
    *,
    has_retain: bool,
    has_holdout: bool,
    attacks: Mapping[str, Any] | None = None,
    seeds: int = 3,
    world_seed: int = 3,
) -> OwnFolder:
    """Write the folder of a sweep with two methods, as a sweep would have written it.

    Args:
        root: Folder of the sweep's folder and of its configuration.
        has_retain: Whether the model has a base. Otherwise it is `fine_tuned` alone.
        has_holdout: Whether there are rows that no model has seen.
        attacks: Section of the configuration. Defaults to relearning.
        seeds: Number of seeds.
        world_seed: Of what the models know.
    """
    data = {"source": "questions", "forget": "forget.jsonl", "retain": "retain.jsonl"}
    if has_holdout:
        data["holdout"] = "holdout.jsonl"
    origin = {"base": "./base"} if has_retain else {"fine_tuned": "./model"}
    document = {
        "name": "mine",
        "data": data,
        "models": [{"name": "mine", **origin}],
        "methods": ["npo", "ce-u"],
        "learning_rates": [2e-5],
        "seeds": list(range(seeds)),
        "epochs": 2,
        "attacks": RELEARNING if attacks is None else attacks,
        "output": str(root),
    }
    path = root / "mine.yaml"
    # JSON is YAML, too.
    path.write_text(json.dumps(document), encoding="utf-8")
    config = load_config(str(path))
    row_plan = RowPlan(has_wrong_answers=False, has_holdout=has_holdout)
    rows = {split: rows_of("questions", split, row_plan) for split in config.split_keys}
    folder = root / "mine"
    recorder = Recorder(config, World(rows, seed=world_seed, start_knows=0.9), folder)
    recorder.write_references()
    plan = replace(make_plan(config, DATA), references=recorder.reference_ids())
    for run in plan.runs:
        recorder.write_run(run)
    claim_folder(plan)
    return OwnFolder(folder, config, plan)
