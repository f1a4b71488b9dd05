"""Records of small sweeps with given utilities and truth ratios."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unlearnbench.analysis.compare import Comparison, compare
from unlearnbench.analysis.equal_utility import Contender, find_contender, match
from unlearnbench.api.observations import SETS, Evaluation, FloatArray, SetEvaluation
from unlearnbench.cli.main import main
from unlearnbench.config.profiles import TOFU
from unlearnbench.evaluation.summary import forget_ratios
from unlearnbench.results.records import EpochResult, Record, write_record
from unlearnbench.results.table import table
from unlearnbench.stats.ks_test import ks_test

N = 40
GOAL = np.exp(np.random.default_rng(0).normal(size=N))
"""Truth ratios of the retain model."""
TINY = ("tiny", 0.1)


def off(by: float, seed: int = 0) -> FloatArray:
    """Truth ratios that are off by this in the logarithm, and a little noise."""
    ratios: FloatArray = GOAL * np.exp(by + np.random.default_rng(seed).normal(0, 0.1, N))
    return ratios


def evaluation(ratios: FloatArray, profile: str = TOFU.id, prefix: str = "Who is") -> Evaluation:
    """An evaluation with these truth ratios on the forget set."""
    n = len(ratios)
    ones, words = np.ones(n, dtype=np.int64), tuple(f"{prefix} author {i}?" for i in range(n))
    loss = 10.0 - np.log(ratios)  # no loss is negative
    rows = SetEvaluation(
        *(words, words, words, loss, ones, loss, ones),
        *(np.full((n, 2), 10.0), np.ones((n, 2), dtype=np.int64), np.ones(n), np.ones(n)),
    )
    return Evaluation(profile, dict.fromkeys(SETS, rows))


def reference(kind: Any, utility: float, ratios: FloatArray, **more: Any) -> Record:
    return run(kind, [(utility, ratios)], kind=kind, learning_rate=None, first=0, **more)


def run(
    method: str, epochs: Sequence[tuple[float, FloatArray]], *, first: int = 1, **more: Any
) -> Record:
    """A run through these (Model Utility, truth ratios)."""
    seed, rate = more.get("seed", 0), more.get("learning_rate", 1e-5)
    results: list[EpochResult] = []
    for k, (utility, ratios) in enumerate(epochs, start=first):
        found = ks_test(ratios, GOAL[: len(ratios)])
        quality = None if found is None else found.log10_p
        metrics = {"model_utility": utility, "log10_forget_quality": quality, "ks_n": float(N)}
        metrics["ks_statistic"] = None if found is None else found.statistic
        results.append(EpochResult(k, metrics, 1.0, 1.0))
    fields: dict[str, Any] = {
        "id": f"{method}-{rate}-{seed}-{more.get('model', '')}",
        "kind": "run",
        "model": "tiny",
        "forget_fraction": 0.1,
        "method": method,
        "learning_rate": rate,
        "seed": seed,
        "spec": {"method": {"name": method}},
        "status": "finished",
        "profile": TOFU.id,
        "epochs": tuple(results),
        "evaluations": {k: evaluation(r) for k, (_, r) in enumerate(epochs, start=first)},
    }
    return Record(**{**fields, **more})


REFERENCES = (reference("fine-tuned", 0.9, off(3.0)), reference("retain", 0.9, GOAL))
NEAR = [run("near", [(0.88, off(1.5, s)), (0.80, off(0.2, s))], seed=s) for s in range(3)]
FAR = [run("far", [(0.88, off(2.5, s)), (0.81, off(1.0, s))], seed=s) for s in range(3)]


def side(name: str, records: Sequence[Record], label: str = "") -> Contender:
    return find_contender(name, label or name, table(records), records)


def compared(a: str, b: str, records: Sequence[Record], tolerance: float = 0.02) -> Comparison:
    return compare(side(a, records), side(b, records), tolerance)


def chosen(a: str, b: str, records: Sequence[Record], tolerance: float = 0.02) -> Any:
    found = match(side(a, records), side(b, records), TINY, tolerance)
    if isinstance(found, str):
        return found
    of_a, of_b, equal_utility = found
    return of_a.epoch, of_b.epoch, equal_utility


def under_attack(records: Sequence[Record], by: float, variant: str) -> list[Record]:
    """The runs after their last epoch under an attack that brings them this far back, with the
    retain model under the same attack, which it does not change."""
    attacked: list[Record] = []
    for record in records:
        if not record.epochs:
            attacked.append(record)
            continue
        last, evaluations = record.epochs[-1], record.evaluations
        ratios = forget_ratios(evaluations[last.epoch])
        if record.kind == "run":
            ratios = ratios * np.exp(by)
        test = ks_test(ratios, GOAL)
        assert test is not None
        numbers = {"log10_forget_quality": test.log10_p, "ks_n": float(N)}
        numbers["ks_statistic"] = test.statistic
        result = replace(last, metrics=numbers, variant=variant)
        found: dict[str, Any] = {"attacked": (*record.attacked, result)}
        found["attacked_evaluations"] = {
            **record.attacked_evaluations,
            (last.epoch, variant): evaluation(ratios),
        }
        if record.kind == "run":
            attacked.append(replace(record, **found))
        elif record.kind == "retain":  # under an attack it is a record of its own
            own: dict[str, Any] = {
                "id": f"{record.id}-{variant.partition('@')[0]}",
                "epochs": (),
                "evaluations": {},
            }
            attacked += [record, replace(record, **found, **own)]
        else:
            attacked.append(record)
    return attacked


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Place of the sweep folders `mine` (all runs), `yours` (the second method's), and `attacked`
    (all runs, and under relearning, which gives back what the first method had hidden)."""
    place = tmp_path_factory.mktemp("compare")
    hidden = under_attack([*REFERENCES, *NEAR], 2.0, "relearning@13")
    lasting = under_attack(FAR, 0.0, "relearning@13")
    sweeps = {
        "mine": (*REFERENCES, *NEAR, *FAR),
        "yours": (*REFERENCES, *FAR),
        "attacked": (*hidden, *lasting),
    }
    for folder, records in sweeps.items():
        for record in records:
            write_record(replace(record, id=record.id.replace(".", "-")), place / folder)
    return place


@pytest.fixture
def cli(folders: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs `compare` where HERE stands for the place of `folders`."""

    def ran(*args: str) -> tuple[int, str, str]:
        code = main(["compare", *(arg.replace("HERE", str(folders)) for arg in args)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return ran
