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
"""Scores by task and metric."""
_BATCH = 8
"""Rows of a forward pass on a CPU. On a GPU the harness finds out how many fit."""


def task_scores(
    model: Any, tokenizer: Any, tasks: Sequence[str], *, rows: int | None = None
) -> TaskScores:
    """Compute metrics by task, as lm-evaluation-harness computes and names them.

    The model computes in its own dtype. Text is not put into the chat template, and the number of
    examples is the task's. If a task filters an answer in several ways, the filter is part of the
    metric's name: `exact_match,strict-match`.

    Source: EleutherAI/lm-evaluation-harness, package lm-eval.

    Args:
        model: A causal LM in evaluation mode. Each process of a group evaluates all rows.
        tokenizer: Its tokenizer.
        tasks: Names of tasks, groups and tags, and YAML files of tasks of the user's own.
        rows: How many of the first rows of each task are evaluated; None for all.

    Raises:
        EvaluationError: The package is missing, a task is unknown, or its rows cannot be read.
    """
    try:
        harness = import_optional("lm_eval")
        wrappers = import_optional("lm_eval.models.huggingface")
        managers = import_optional("lm_eval.tasks")
    except ImportError:
        raise EvaluationError("--task needs lm-eval: pip install 'unlearnbench[lm-eval]'") from None
    manager = managers.TaskManager()
    for name in tasks:
        if name not in manager.all_tasks and not Path(name).is_file():
            near = did_you_mean(name, manager.all_tasks)
            raise EvaluationError(f"--task {name}: no file, no task of lm-evaluation-harness{near}")
    # The wrapper warns that a model in memory ignores loading options, although none is given.
    logging.getLogger(wrappers.__name__).setLevel(logging.ERROR)
    batch = "auto" if model.device.type == "cuda" else _BATCH
    wrapped = wrappers.HFLM(model, tokenizer=tokenizer, batch_size=batch)
    try:
        evaluated = harness.simple_evaluate(
            wrapped, tasks=[*tasks], task_manager=manager, limit=rows, log_samples=False
        )
    except OSError as error:  # of its libraries: no such file, no such dataset, no network
        raise EvaluationError(f"--task {', '.join(tasks)}: {error}") from error
    counts: Mapping[str, Mapping[str, int]] = evaluated.get("n-samples", {})
    scores: dict[str, dict[str, TaskScore]] = {}
    for name, values in evaluated["results"].items():
        # A group of tasks has `sample_len`, the sum of its tasks' rows.
        row_count = values.get("sample_len") or counts.get(name, {}).get("effective")
        scores[name] = _scores_of_task(values, row_count)
    return scores


def _scores_of_task(values: Mapping[str, Any], rows: int | None) -> dict[str, TaskScore]:
    """Return the scores of a task by metric.

    Args:
        values: Numbers by metric and filter, such as `acc,none` with its error `acc_stderr,none`,
            among other entries.
        rows: Number of rows, if it is known.
    """
    scores: dict[str, TaskScore] = {}
    for key, value in values.items():
        metric, comma, answer_filter = key.partition(",")
        if not comma or metric.endswith("_stderr"):
            continue
        # The harness writes a text if there is no standard error.
        stated_error = values.get(f"{metric}_stderr,{answer_filter}")
        error = float(stated_error) if isinstance(stated_error, int | float) else None
        interval = None if rows is None else interval_of_summary(float(value), error, rows)
        scores[key.removesuffix(",none")] = TaskScore(float(value), error, rows, interval)
    return scores
