"""A record as a tracker's run: parameters, tags, metric points and answers.

docs/reference/mlflow.md lists all names; a test compares it with what is logged.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from unlearnbench.analysis.best_settings import UTILITY_SHARE, Setting, average_seeds, best_of
from unlearnbench.api.benchmark import split_label
from unlearnbench.api.metric import MetricColumn
from unlearnbench.api.tracker import MetricPoint, TrackedRun
from unlearnbench.base.redaction import redact
from unlearnbench.results.records import Record
from unlearnbench.results.table import schema_of, table

LONGEST = 500
"""Most characters of a parameter or tag that every store accepts."""
ANSWER_COLUMNS = ("set", "question", "answer", "true_answer", "probability", "epoch")


def tracked_run(record: Record, folder: Path, sweep: str, start: float | None) -> TrackedRun:
    """Make the run of a record.

    folder  of the sweep
    sweep   its name
    start   what the fine-tuned model keeps, see `best_epoch`
    """
    artefacts: dict[str, Callable[[], str]] = {}
    if (file := folder / "records" / record.place / "record.json").is_file():
        artefacts["record.json"] = lambda: redact(file.read_text(encoding="utf-8"))
    if record.evaluations:
        artefacts["answers.json"] = lambda: answer_table(record)
    if _first_line(record.error):
        artefacts["error.txt"] = lambda: str(record.error)
    return TrackedRun(
        id=record.id,
        name=_name(record),
        status=record.status,
        parameters=params(record),
        tags=tags(record, sweep),
        points=metrics(record, start),
        artefacts=artefacts,
        started=milliseconds(record.provenance.get("started")),
        ended=milliseconds(record.provenance.get("finished")),
    )


def _name(record: Record) -> str:
    """`ce-u · tiny · forget 0.1 · lr 2e-05 · seed 0`; `retain under relearning · tiny · …`."""
    rate = [] if record.learning_rate is None else [f"lr {record.learning_rate:g}"]
    under = {item.variant.partition("@")[0] for item in record.attacked if not record.epochs}
    method = " under ".join([record.method, *sorted(under)])
    location = [method, record.model, split_label(record.forget_fraction)]
    return " · ".join([*location, *rate, f"seed {record.seed}"])


def params(record: Record) -> dict[str, str]:
    """Parameters: place in the sweep, model, training, the method's hyper-parameters."""
    chosen, spec = _place(record), record.spec
    model: Mapping[str, Any] = spec.get("model") or {}
    method: Mapping[str, Any] = spec.get("method") or {}
    chosen |= {"base": model.get("base"), "dtype": model.get("dtype")}
    chosen |= {f"lora_{name}": value for name, value in (model.get("lora") or {}).items()}
    chosen |= (spec.get("training") or {}) | (method.get("hyperparameters") or {})
    if retain := method.get("retain"):
        chosen |= {"retain_term": retain["term"], "retain_weight": retain["weight"]}
    return _texts(chosen)


def tags(record: Record, sweep: str) -> dict[str, str]:
    """Tags, by which runs are searched."""
    made = record.provenance
    named = _place(record) | {
        "sweep": sweep,
        "kind": record.kind,
        "status": record.status,
        "profile": record.profile,
        "evaluation_precision": record.precision,
        "data": record.spec.get("data_fingerprint") or made.get("data"),
        "device": made.get("device"),
        "error": _first_line(record.error),
        "git_commit": (made.get("git") or {}).get("commit"),
        "unlearnbench.run_id": record.id,
    }
    return _texts(named)


def answer_table(record: Record) -> str:
    """JSON of the answers after the last evaluated epoch, as columns and rows."""
    epoch = max(record.evaluations)
    evaluation = record.evaluations[epoch]
    rows: list[list[Any]] = []
    for name, item in evaluation.sets.items():
        generated = item.generated or ("",) * len(item.questions)
        for i, question in enumerate(item.questions):
            true = item.references[i] if i < len(item.references) else ""
            probability = round(math.exp(-float(item.answer_loss[i])), 6)
            rows.append([name, question, generated[i], true, probability, epoch])
    return json.dumps({"columns": ANSWER_COLUMNS, "data": rows}, ensure_ascii=False)


def _place(record: Record) -> dict[str, Any]:
    """Place of a record in the sweep."""
    return {
        "method": record.method,
        "model": record.model,
        "forget_fraction": record.forget_fraction,
        "learning_rate": record.learning_rate,
        "seed": record.seed,
        "epochs": record.spec.get("epochs"),
    }


def _first_line(text: str | None) -> str | None:
    """First line of an error text; None if empty."""
    return text.strip().partition("\n")[0] if text and text.strip() else None


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: _text(value)[:LONGEST] for name, value in values.items() if value is not None}


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, float) and 1e-12 <= abs(value) < 1:
        # MLflow compares parameters as text: 0.00002 sorts before 0.0001, but 2e-05 after it.
        return f"{Decimal(repr(value)):f}"
    return str(value)


def best_epoch(record: Record, start: float | None) -> Setting | None:
    """A run's best epoch by the rule of `best_per_method`; None if none keeps the utility.

    start  what the fine-tuned model keeps, by the headline (Model Utility)
    """
    if record.kind != "run" or start is None:
        return None
    return best_of(average_seeds(table([record])), UTILITY_SHARE * start)


def metrics(record: Record, start: float | None = None) -> list[MetricPoint]:
    """Metric points by epoch, and under `train/` by optimizer step; `start` as in `best_epoch`.

    Undefined and infinite values are left out, because stores do not accept them.
    """
    result = [*_by_epoch(record), *_under(record), *_best(record, start), *_by_step(record)]
    moment = milliseconds(record.provenance.get("finished")) or 0
    return [
        MetricPoint(name, value, step, moment)
        for name, value, step in result
        if value is not None and math.isfinite(value)
    ]


_Point = tuple[str, float | None, int]
"""Name, value, step."""


def metric_name(name: str, known: Mapping[str, MetricColumn], sets: Iterable[str] = ()) -> str:
    """Rename `rouge_forget` to `forget/rouge`, because MLflow groups by the part before a slash.

    known  columns by name
    sets   names that other columns of a set end with, as those of a metric not installed here
    """
    ends = [item for item in sets if name.endswith(f"_{item}")]
    of_set = known[name].set if name in known else max(ends, key=len, default="")
    return f"{of_set}/{name.removesuffix(f'_{of_set}')}" if of_set else name


def _by_epoch(record: Record) -> Iterator[_Point]:
    known = schema_of([record]).columns
    columns = {name for epoch in record.epochs for name in epoch.metrics}
    sets = {known[name].set for name in columns & known.keys()} - {""}
    for epoch in record.epochs:
        k = epoch.epoch
        for column, value in epoch.metrics.items():
            yield metric_name(column, known, sets), value, k
        yield "system/training_seconds", epoch.training_seconds, k
        yield "system/evaluation_seconds", epoch.evaluation_seconds, k
    if record.epochs:
        last = record.epochs[-1].epoch
        for name in ("peak_memory_mib", "estimated_memory_mib"):
            yield f"system/{name}", record.provenance.get(name), last


def _under(record: Record) -> Iterator[_Point]:
    """Metrics under attacks: `under.relearning.13/rouge_forget`, apart from all plain ones.

    Without characters that MLflow refuses in names, such as the @ of a variant.
    """
    for item in record.attacked:
        group = re.sub(r"[^\w.-]", "-", item.variant.replace("@", "."))
        for column, value in item.metrics.items():
            yield f"under.{group}/{column}", value, item.epoch


def _best(record: Record, start: float | None) -> Iterator[_Point]:
    best = best_epoch(record, start)
    if best is None:
        return
    k = best.epoch
    yield "best/epoch", float(k), k
    test = best.headline.forgotten.test
    for name in (*best.headline.columns[:2], *((test.p_value,) if test else ())):
        yield f"best/{name}", best.metrics.get(name), k
    if best.kept is not None and start:
        yield "best/utility_kept", best.kept / start, k


def _by_step(record: Record) -> Iterator[_Point]:
    for step in record.steps:
        part = {"loss": step.loss, "grad_norm": step.grad_norm, "learning_rate": step.learning_rate}
        terms = {f"loss_{term}": value for term, value in step.terms.items()}
        for name, value in (
            part | {"epoch": float(step.epoch)} | terms | dict(step.reported)
        ).items():
            yield f"train/{name}", value, step.step


def milliseconds(moment: Any) -> int | None:
    """Convert an ISO date to milliseconds since 1970; None if it is not one."""
    try:
        return round(datetime.fromisoformat(moment).timestamp() * 1000)
    except (TypeError, ValueError):
        return None
