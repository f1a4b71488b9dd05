"""Tasks of lm-evaluation-harness on a model in memory: HellaSwag, GSM8K, IFEval and any other."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from unlearnbench.base.errors import EvaluationError, did_you_mean
from unlearnbench.base.optional_packages import import_optional
from unlearnbench.stats.mean_interval import interval_of_summary


class TaskScore(NamedTuple):
    """A metric of a task."""

    value: float
    standard_error: float | None
    """None if the harness gives none."""
    rows: int | None
    """Rows that were evaluated; None if the harness does not say it."""
    interval: tuple[float, float] | None
    """95 % interval of the value over rows, see `stats/mean_interval.py`."""


TaskScores = Mapping[str, Mapping[str, TaskScore]]
"""By task and metric."""
_BATCH = 8
"""Rows of a forward pass on a CPU; on a GPU the harness finds out how many fit."""


def task_scores(
    model: Any, tokenizer: Any, tasks: Sequence[str], *, rows: int | None = None
) -> TaskScores:
    """Metrics by task, as lm-evaluation-harness computes and names them, in the model's own dtype.

    model      a causal LM in evaluation mode; each process of a group evaluates all of it
    tasks      names of tasks, groups and tags, and YAML files of one's own tasks
    rows       the first of each task; default: all

    Text is not put into the chat template, and the number of examples is the task's. Where a task
    reads an answer in several ways, a metric has the way in its name: `exact_match,strict-match`.

    Source: EleutherAI/lm-evaluation-harness, package lm-eval.

    Raises: EvaluationError without the package, for unknown tasks, for rows that cannot be read.
    """
    try:
        harness, wrappers, managers = (
            import_optional(f"lm_eval{part}") for part in ("", ".models.huggingface", ".tasks")
        )
    except ImportError:
        raise EvaluationError("--task needs lm-eval: pip install 'unlearnbench[lm-eval]'") from None
    manager = managers.TaskManager()
    for name in tasks:
        if name not in manager.all_tasks and not Path(name).is_file():
            near = did_you_mean(name, manager.all_tasks)
            raise EvaluationError(f"--task {name}: no file, no task of lm-evaluation-harness{near}")
    # It warns that a model in memory ignores its loading options, of which none is given here.
    logging.getLogger(wrappers.__name__).setLevel(logging.ERROR)
    batch = "auto" if model.device.type == "cuda" else _BATCH
    wrapped = wrappers.HFLM(model, tokenizer=tokenizer, batch_size=batch)
    try:
        result = harness.simple_evaluate(
            wrapped, tasks=[*tasks], task_manager=manager, limit=rows, log_samples=False
        )
    except OSError as error:  # of its libraries: no such file, no such dataset, no network
        raise EvaluationError(f"--task {', '.join(tasks)}: {error}") from error
    counts: Mapping[str, Mapping[str, int]] = result.get("n-samples", {})
    scores: dict[str, dict[str, TaskScore]] = {}
    for name, values in result["results"].items():
        # A group has the sum of its tasks' rows.
        rows = values.get("sample_len") or counts.get(name, {}).get("effective")
        scores[name] = _numbers(values, rows)
    return scores


def _numbers(values: Mapping[str, Any], rows: int | None) -> dict[str, TaskScore]:
    numbers: dict[str, TaskScore] = {}
    for key, value in values.items():
        name, comma, way = key.partition(",")
        if comma and not name.endswith("_stderr"):
            error = values.get(f"{name}_stderr,{way}")  # a text where it is not computed
            known = float(error) if isinstance(error, int | float) else None
            interval = None if rows is None else interval_of_summary(float(value), known, rows)
            numbers[key.removesuffix(",none")] = TaskScore(float(value), known, rows, interval)
    return numbers
