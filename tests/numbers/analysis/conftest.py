"""Records of small sweeps with given utilities and truth ratios."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unlearnbench.analysis.choice_plan import ChoicePlan, PlannedRun
from unlearnbench.analysis.compare import Comparison, NoMatch, compare, match
from unlearnbench.analysis.contender import Contender
from unlearnbench.analysis.named_contender import find_contender
from unlearnbench.analysis.results import Results
from unlearnbench.api.observations import SETS, Evaluation, FloatArray, SetEvaluation
from unlearnbench.config.profiles import TOFU
from unlearnbench.config.search import SelectSettings
from unlearnbench.evaluation.summary import forget_ratios
from unlearnbench.results.records import EpochResult, Record
from unlearnbench.results.table import Numbers, TableRow
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


def record(
    name: str, numbers: Sequence[Mapping[str, Any]], kind: Any = "run", **more: Any
) -> Record:
    """A record with these metrics, epoch by epoch; of a start or retain model before the first."""
    is_run = kind == "run"
    fields: dict[str, Any] = {
        **{"id": name, "kind": kind, "model": "tiny", "forget_fraction": 0.1, "seed": 0},
        **{"method": kind, "learning_rate": 1e-5 if is_run else None, "spec": {}},
        **{"status": "finished", "profile": TOFU.id},
    }
    epochs = enumerate(numbers, start=int(is_run))
    results = tuple(EpochResult(epoch, metrics, 1.0, 1.0) for epoch, metrics in epochs)
    fields |= {"epochs": results} | more
    return Record(**fields)


def reference(kind: Any, utility: float, ratios: FloatArray, **more: Any) -> Record:
    return run(kind, [(utility, ratios)], kind=kind, learning_rate=None, **more)


def run(
    method: str, epochs: Sequence[tuple[float, FloatArray]], kind: Any = "run", **more: Any
) -> Record:
    """A run through these (Model Utility, truth ratios)."""
    numbers: list[Mapping[str, Any]] = []
    for utility, ratios in epochs:
        test = ks_test(ratios, GOAL[: len(ratios)])
        tested = (None, None) if test is None else (test.log10_p, test.statistic)
        of_test = dict(zip(("log10_forget_quality", "ks_statistic"), tested, strict=True))
        numbers.append({"model_utility": utility, "ks_n": float(N), **of_test})
    rate, seed = more.get("learning_rate", 1e-5), more.get("seed", 0)
    name = more.pop("id", f"{method}-{rate}-{seed}-{more.get('model', '')}")
    stored = enumerate((evaluation(ratios) for _, ratios in epochs), start=int(kind == "run"))
    made = {"method": method, "spec": {"method": {"name": method}}, "evaluations": dict(stored)}
    return record(name, numbers, kind, **(made | more))


def choice_plan(
    records: Iterable[Record],
    select: SelectSettings | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    entries: Mapping[str, Mapping[str, Mapping[str, Any]]] | None = None,
) -> ChoicePlan:
    """The plan of these runs, in a sweep that chooses.

    Args:
        records: Runs, and other models, which a plan does not list.
        select: Its rule. Defaults to a choice on seed 0.
        seeds: All seeds of the sweep.
        entries: Trials as in `plan.json`, by run id and entry. Without them it is a plain grid.
    """
    runs: list[PlannedRun] = []
    for record in records:
        if record.kind != "run":
            continue
        spec = {
            **record.spec,
            "method": [record.method, record.spec.get("method")],
            "panel": record.panel,
            "learning_rate": record.learning_rate,
            "epochs": max(record.spec.get("evaluate_at", (1,))),
            "seed": record.seed,
        }
        trial = {"entries": entries[record.id]} if entries and record.id in entries else {}
        runs.append(PlannedRun(record.id, spec, trial))
    rule = SelectSettings(seeds=(0,)) if select is None else select
    return ChoicePlan(rule, tuple(seeds), tuple(runs), entries is not None, name="small")


def choosing(
    records: Sequence[Record],
    select: SelectSettings | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    entries: Mapping[str, Mapping[str, Mapping[str, Any]]] | None = None,
) -> Results:
    """Results of a sweep that chooses, see `choice_plan`."""
    plan = choice_plan(records, select, seeds, entries)
    return Results.of(records, name="small", choice_plan=plan)


def table_row(kind: str, method: str, metrics: Mapping[str, float | None], **more: Any) -> TableRow:
    """A row of one model on one split, after epoch 1 of a run or of a start or retain model."""
    is_run = kind == "run"
    fields: dict[str, Any] = {
        **{"run_id": method, "model": "tiny", "forget_fraction": 0.1, "family": method},
        **{"learning_rate": 1e-5 if is_run else None, "seed": 0},
        **{"epoch": int(is_run), "status": "finished"},
    }
    return TableRow(kind=kind, method=method, metrics=Numbers(metrics), **(fields | more))


def pointed(
    name: str,
    points: Sequence[tuple[float | None, float | None]] = ((0.8, -5.0),),
    kind: Any = "run",
    method: str = "npo",
    rate: float = 1e-5,
    seed: int = 0,
    **hyperparameters: float,
) -> Record:
    """A record with these (Model Utility, log10 Forget Quality), epoch by epoch; no answers."""
    numbers = [{"model_utility": u, "log10_forget_quality": q, "ks_n": 80.0} for u, q in points]
    more: dict[str, Any] = {"method": method, "learning_rate": rate} if kind == "run" else {}
    spec = {"method": {"name": method, "hyperparameters": hyperparameters}}
    return record(name, numbers, kind, seed=seed, spec=spec, **more)


REFERENCES = (reference("fine-tuned", 0.9, off(3.0)), reference("retain", 0.9, GOAL))
NEAR = [run("near", [(0.88, off(1.5, s)), (0.80, off(0.2, s))], seed=s) for s in range(3)]
FAR = [run("far", [(0.88, off(2.5, s)), (0.81, off(1.0, s))], seed=s) for s in range(3)]


def side(name: str, records: Sequence[Record], label: str = "") -> Contender:
    return find_contender(name, label or name, Results.of(records, name=""))


def compared(a: str, b: str, records: Sequence[Record], tolerance: float = 0.02) -> Comparison:
    return compare(side(a, records), side(b, records), tolerance)


def chosen(a: str, b: str, records: Sequence[Record], tolerance: float = 0.02) -> Any:
    found = match(side(a, records), side(b, records), TINY, tolerance)
    if isinstance(found, NoMatch):
        return found.reason
    of_a, of_b = found
    kept = [item.kept or 0.0 for item in found]
    return of_a.epoch, of_b.epoch, abs(kept[0] - kept[1]) <= tolerance


def attacked_by(records: Sequence[Record], by: float, variant: str) -> list[Record]:
    """The runs after their last epoch under an attack that brings them this far back, with the
    retain model under the same attack, which it does not change."""
    attacked: list[Record] = []
    for record in records:
        if not record.epochs or record.kind == "fine-tuned":
            attacked.append(record)
            continue
        last, is_run = record.epochs[-1], record.kind == "run"
        ratios = forget_ratios(record.evaluations[last.epoch]) * np.exp(by * is_run)
        test = ks_test(ratios, GOAL)
        assert test is not None
        numbers = {"log10_forget_quality": test.log10_p, "ks_statistic": test.statistic}
        result = replace(last, metrics={**numbers, "ks_n": float(N)}, variant=variant)
        stored = {**record.attacked_evaluations, (last.epoch, variant): evaluation(ratios)}
        under = replace(record, attacked=(*record.attacked, result), attacked_evaluations=stored)
        if not is_run:  # under an attack it is a record of its own
            name = f"{record.id}-{variant.partition('@')[0]}"
            under = replace(under, id=name, epochs=(), evaluations={})
        attacked += [under] if is_run else [record, under]
    return attacked
