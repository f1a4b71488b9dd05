"""A record as MLflow's entries: parameters, metrics by step, tags, answers; without mlflow.

What they are called, and why, is said in MLFLOW.md, which a test compares with what is logged.
"""

from __future__ import annotations

import getpass
import json
import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from unlearnbench.evaluation.result import SETS, Evaluation, SetEvaluation
from unlearnbench.ranking import UTILITY_SHARE, Setting, average_seeds, best_of
from unlearnbench.records import Record
from unlearnbench.table import SET_ORDER, table

LONGEST = 500
"""Characters of a parameter or tag; MLflow's stores differ in what they refuse beyond that."""
BEST = ("model_utility", "log10_forget_quality", "forget_quality")
"""What is repeated of the best epoch, under `best/`."""
ANSWER_COLUMNS = ("set", "question", "answer", "true_answer", "probability", "epoch")


class Value(NamedTuple):
    """One point of a metric."""

    name: str
    value: float
    step: int
    moment: int
    """Milliseconds since 1970."""


def params(record: Record) -> dict[str, str]:
    """What was chosen: place in the sweep, training, the method's hyper-parameters."""
    chosen = _place(record)
    model = record.spec.get("model")
    if isinstance(model, Mapping):
        chosen |= {"base": model.get("base"), "dtype": model.get("dtype")}
        chosen |= {f"lora_{name}": value for name, value in (model.get("lora") or {}).items()}
    if isinstance(training := record.spec.get("training"), Mapping):
        chosen |= training
    method = record.spec.get("method")
    if isinstance(method, Mapping):
        chosen |= method.get("hyperparameters") or {}
        if retain := method.get("retain"):
            chosen |= {"retain_term": retain["term"], "retain_weight": retain["weight"]}
    return _texts(chosen)


def tags(record: Record, sweep: str) -> dict[str, str]:
    """What runs are looked up by."""
    own = _place(record) | {
        "sweep": sweep,
        "kind": record.kind,
        "status": record.status,
        "profile": record.profile,
        "evaluation_precision": record.precision,
        "data": fingerprint(record),
        "device": record.provenance.get("device"),
        "error": first_line(record.error),
        "unlearnbench.run_id": record.id,
    }
    return _texts(own | source_tags(_commit(record)))


def source_tags(commit: str | None) -> dict[str, str]:
    """Columns of MLflow's own pages, and the commit, which they show seven digits of."""
    own = {
        "git_commit": commit,
        "mlflow.source.git.commit": commit,
        "mlflow.source.name": "unlearnbench",
        "mlflow.source.type": "LOCAL",
        "mlflow.user": _user(),
    }
    return _texts(own)


def _place(record: Record) -> dict[str, Any]:
    """Where in the sweep it stands."""
    return {
        "method": record.method,
        "model": record.model,
        "forget_fraction": record.forget_fraction,
        "learning_rate": record.learning_rate,
        "seed": record.seed,
        "epochs": record.spec.get("epochs"),
    }


def fingerprint(record: Record) -> str | None:
    """Hash of the rows that it could see."""
    found = record.spec.get("data_fingerprint") or record.provenance.get("data")
    return None if found is None else str(found)


def first_line(text: str | None) -> str | None:
    """Of an error, whose first line says it; None where there is none."""
    return text.strip().partition("\n")[0] if text and text.strip() else None


def best_epoch(record: Record, start: float | None) -> Setting | None:
    """A run's best epoch by the rule of `best_per_method`; None where none keeps the utility.

    start  Model Utility of the fine-tuned model
    """
    if record.kind != "run" or start is None:
        return None
    return best_of(average_seeds(table([record])), UTILITY_SHARE * start)


def metrics(record: Record, start: float | None = None) -> list[Value]:
    """By epoch, and under `train/` by optimiser step; `start` as in `best_epoch`.

    What is undefined or not finite is left out: stores take no infinity, and draw none.
    """
    moments = _moments(record)
    found = [*_by_epoch(record), *_best(record, start), *_by_step(record)]
    return [
        Value(name, value, step, moments[epoch])
        for name, value, step, epoch in found
        if value is not None and math.isfinite(value)
    ]


_Point = tuple[str, float | None, int, int]
"""Name, value, step, epoch."""


def metric_name(column: str) -> str:
    """`rouge_forget` of the table as `forget/rouge`: MLflow groups by what precedes the slash."""
    for one in SET_ORDER:
        if column.endswith(f"_{one}"):
            return f"{one}/{column.removesuffix(f'_{one}')}"
    return column


def _by_epoch(record: Record) -> Iterator[_Point]:
    for one in record.epochs:
        k = one.epoch
        for column, value in one.metrics.items():
            yield metric_name(column), value, k, k
        yield "system/training_seconds", one.training_seconds, k, k
        yield "system/evaluation_seconds", one.evaluation_seconds, k, k
    if record.epochs:
        last = record.epochs[-1].epoch
        for name in ("peak_memory_mib", "estimated_memory_mib"):
            yield f"system/{name}", record.provenance.get(name), last, last


def _best(record: Record, start: float | None) -> Iterator[_Point]:
    best = best_epoch(record, start)
    if best is None:
        return
    k = best.epoch
    yield "best/epoch", float(k), k, k
    for name in BEST:
        yield f"best/{name}", best.metrics[name], k, k
    kept = best.metrics["model_utility"]
    if kept is not None and start:
        yield "best/utility_kept", kept / start, k, k


def _by_step(record: Record) -> Iterator[_Point]:
    for one in record.steps:
        own = {"loss": one.loss, "grad_norm": one.grad_norm, "learning_rate": one.learning_rate}
        terms = {f"loss_{term}": value for term, value in one.terms.items()}
        for name, value in (own | {"epoch": float(one.epoch)} | terms | dict(one.reported)).items():
            yield f"train/{name}", value, one.step, one.epoch


class _Moments(dict[int, int]):
    """When an epoch ended; one that was not evaluated, with the first one after it that was."""

    def __missing__(self, epoch: int) -> int:
        later = [k for k in self if k > epoch]
        return self[min(later)] if later else max(self.values(), default=0)


def _moments(record: Record) -> _Moments:
    """Counted back from the end of the run by the seconds of the epochs after each.

    That leaves out what was spent between them, such as an interruption.
    """
    end = milliseconds(record.provenance.get("finished")) or 0
    found = _Moments({0: milliseconds(record.provenance.get("started")) or 0})
    for one in reversed(record.epochs):
        found[one.epoch] = end
        end -= round(1000 * (one.training_seconds + one.evaluation_seconds))
    return found


def answers(record: Record) -> str:
    """What the model says after its last evaluated epoch, as a table that MLflow can show."""
    epoch = max(record.evaluations)
    evaluation: Evaluation = record.evaluations[epoch]
    rows = [
        [*row, epoch]
        for name in SETS
        if name in evaluation.sets
        for row in _rows(name, evaluation.sets[name])
    ]
    return json.dumps({"columns": list(ANSWER_COLUMNS), "data": rows}, ensure_ascii=False)


def _rows(name: str, one: SetEvaluation) -> Iterator[list[Any]]:
    generated = one.generated or ("",) * len(one.questions)
    for i, question in enumerate(one.questions):
        true = one.references[i] if i < len(one.references) else ""
        probability = round(math.exp(-float(one.answer_loss[i])), 6)
        yield [name, question, generated[i], true, probability]


def milliseconds(moment: Any) -> int | None:
    """An ISO date as milliseconds since 1970; None for what is none."""
    try:
        return round(datetime.fromisoformat(moment).timestamp() * 1000)
    except (TypeError, ValueError):
        return None


def _commit(record: Record) -> str | None:
    git = record.provenance.get("git")
    return git.get("commit") if isinstance(git, Mapping) else None


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return None


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: _text(value)[:LONGEST] for name, value in values.items() if value is not None}


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, float) and 1e-12 <= abs(value) < 1:
        # MLflow compares these as text: 0.00002 stands before 0.0001, and 2e-05 after it.
        return f"{Decimal(repr(value)):f}"
    return str(value)
