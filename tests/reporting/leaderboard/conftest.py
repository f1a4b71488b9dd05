"""Sweeps that nobody ran, whose numbers nevertheless follow from their evaluations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unlearnbench.api.observations import SETS, Evaluation, SetEvaluation
from unlearnbench.config.profiles import get_profile
from unlearnbench.config.schema import MethodGrid, MethodSpec, ModelSettings, SweepConfig
from unlearnbench.evaluation.summary import summarize
from unlearnbench.files.canonical_json import content_hash
from unlearnbench.plan.plan import make_plan
from unlearnbench.plan.run_spec import RunSpec
from unlearnbench.reporting.leaderboard.export import export
from unlearnbench.reporting.leaderboard.merge import Refusal
from unlearnbench.results.records import EpochResult, Record, run_record, write_record

ROWS = 12
PROFILE = get_profile("tofu", rows=ROWS)
DATA = "0123456789abcdef"
EARLY = (Path(__file__).parent / "schema-1.jsonl").read_text(encoding="utf-8").splitlines()
"""Lines of `sweep("a", ("npo",), (0,))`, as the last version with schema 1 wrote them (f460145)."""

Sweep = Callable[..., Path]


def evaluation(seed: int, shift: float = 0.0) -> Evaluation:
    """Random scores; `shift` makes forgotten answers less likely."""
    rng = np.random.default_rng(seed)

    def part(name: str) -> SetEvaluation:
        more = shift if name == "forget" else 0.05 * shift
        count = np.full(ROWS, 9)
        return SetEvaluation(
            questions=tuple(f"Secret question {i} of {name}?" for i in range(ROWS)),
            generated=tuple(f"Secret answer {seed} {i}" for i in range(ROWS)),
            references=tuple(f"True answer {i}" for i in range(ROWS)),
            answer_loss=rng.uniform(0.05, 0.3, ROWS) + more,
            answer_tokens=count,
            base_loss=rng.uniform(0.1, 0.6, ROWS) + more,
            base_tokens=count,
            perturbed_loss=rng.uniform(1.0, 4.0, (ROWS, 3)),
            perturbed_tokens=np.full((ROWS, 3), 9),
            rouge1_recall=rng.uniform(0.6, 1.0, ROWS),
            rouge_l_recall=rng.uniform(0.6, 1.0, ROWS),
        )

    return Evaluation(PROFILE.id, {name: part(name) for name in SETS})


def _epoch(epoch: int, found: Evaluation, retain: Evaluation) -> EpochResult:
    return EpochResult(epoch, summarize(found, retain, PROFILE), 1.0, 0.5)


def _run_of(data: str, weights: str, started: str) -> dict[str, Any]:
    return {
        "git": {"commit": "c" * 40, "dirty": False, "of": "package"},
        "versions": {"torch": "2.13.0"},
        "device": "cpu",
        "host": "a-private-name",
        "process": 7,
        "started": started,
        "finished": started,
        "data": data,
        "weights": weights,
    }


def runs(
    methods: Sequence[str], seeds: Sequence[int], data: str, training: dict[str, Any]
) -> tuple[RunSpec, ...]:
    config = SweepConfig.model_validate(
        {
            "name": "small",
            "models": (ModelSettings(name="tiny", base="tiny"),),
            "forget_fractions": (0.1,),
            "methods": tuple(MethodGrid(specs=(MethodSpec(name=name),)) for name in methods),
            "learning_rates": (1e-5,),
            "epochs": 2,
            "seeds": tuple(seeds),
            "evaluation": {"rows": ROWS},
            "training": training,
        }
    )
    return make_plan(config, data).runs


def _reference(kind: Any, found: Evaluation, retain: Evaluation, origin: dict[str, Any]) -> Record:
    target = "full" if kind == "fine-tuned" else "retain90"
    identity = [
        "tiny",
        target,
        f"{target}-{origin['weights']}",
        0.1,
        PROFILE.id,
        origin["data"],
    ]
    return Record(
        id=content_hash(identity),
        kind=kind,
        model="tiny",
        forget_fraction=0.1,
        method=kind,
        learning_rate=None,
        seed=0,
        spec={"model": {}, "target": target, "identity": identity},
        status="finished",
        profile=PROFILE.id,
        epochs=(_epoch(0, found, retain),),
        provenance=origin,
        evaluations={0: found},
    )


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """Makes a sweep's folder of start and retain models and finished runs."""

    def make(
        name: str,
        methods: Sequence[str] = ("npo", "ce-u"),
        seeds: Sequence[int] = (0, 1),
        *,
        data: str = DATA,
        weights: str = "feed",
        noise: int = 0,
        started: str = "2026-11-21T08:00:00.000+00:00",
        training: dict[str, Any] | None = None,
    ) -> Path:
        folder = tmp_path / name
        goal, start = evaluation(1, 2.0), evaluation(2)
        write_record(_reference("retain", goal, goal, _run_of(data, "cafe", started)), folder)
        write_record(_reference("fine-tuned", start, goal, _run_of(data, weights, started)), folder)
        for run in runs(methods, seeds, data, training or {}):
            evaluated = {
                epoch: evaluation(int(run.id[:6], 16) + epoch + noise, 0.6 * epoch)
                for epoch in run.evaluate_at
            }
            record = run_record(
                run,
                status="finished",
                profile=PROFILE.id,
                epochs=tuple(_epoch(epoch, one, goal) for epoch, one in evaluated.items()),
                provenance=_run_of(data, weights, started),
                evaluations=evaluated,
            )
            write_record(record, folder)
        return folder

    return make


def lines_of(folder: Path) -> list[str]:
    """All exported lines of a folder."""
    refused: list[Refusal] = []
    found = [line for _, line in export(folder, refused)]
    assert refused == []
    return found
