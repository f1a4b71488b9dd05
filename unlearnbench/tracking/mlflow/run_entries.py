"""Parameters, tags and answers of a record's run in MLflow; without mlflow.

docs/reference/mlflow.md lists all names; a test compares it with what is logged.
"""

from __future__ import annotations

import getpass
import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from unlearnbench.results.records import Record

LONGEST = 500
"""Most characters of a parameter or tag that all of MLflow's stores accept."""
ANSWER_COLUMNS = ("set", "question", "answer", "true_answer", "probability", "epoch")


def params(record: Record) -> dict[str, str]:
    """Parameters: place in the sweep, model, training, the method's hyper-parameters."""
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
    """Tags, by which runs are searched."""
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
    git = record.provenance.get("git")
    return _texts(own | source_tags(git.get("commit") if isinstance(git, Mapping) else None))


def answer_table(record: Record) -> str:
    """JSON of the answers after the last evaluated epoch, in the format of MLflow's `log_table`."""
    epoch = max(record.evaluations)
    evaluation = record.evaluations[epoch]
    rows: list[list[Any]] = []
    for name, one in evaluation.sets.items():
        generated = one.generated or ("",) * len(one.questions)
        for i, question in enumerate(one.questions):
            true = one.references[i] if i < len(one.references) else ""
            probability = round(math.exp(-float(one.answer_loss[i])), 6)
            rows.append([name, question, generated[i], true, probability, epoch])
    return json.dumps({"columns": ANSWER_COLUMNS, "data": rows}, ensure_ascii=False)


def source_tags(commit: str | None) -> dict[str, str]:
    """Tags that MLflow's own pages show as columns, and the full commit."""
    own = {
        "git_commit": commit,
        "mlflow.source.git.commit": commit,
        "mlflow.source.name": "unlearnbench",
        "mlflow.source.type": "LOCAL",
        "mlflow.user": _user(),
    }
    return _texts(own)


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


def fingerprint(record: Record) -> str | None:
    """Hash of the rows that a record was trained and evaluated on."""
    found = record.spec.get("data_fingerprint") or record.provenance.get("data")
    return None if found is None else str(found)


def first_line(text: str | None) -> str | None:
    """First line of an error text; None if empty."""
    return text.strip().partition("\n")[0] if text and text.strip() else None


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user has no name
        return None


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: _text(value)[:LONGEST] for name, value in values.items() if value is not None}


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, float) and 1e-12 <= abs(value) < 1:
        # MLflow compares parameters as text: 0.00002 sorts before 0.0001, but 2e-05 after it.
        return f"{Decimal(repr(value)):f}"
    return str(value)
