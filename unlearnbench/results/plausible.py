"""Check the numbers and texts of a record; other values mean that its file is damaged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from unlearnbench.api.benchmark import is_split_name
from unlearnbench.files.bounded import shortened, text_problem

KINDS = ("run", "fine-tuned", "retain")
STATUSES = ("finished", "collapsed", "failed", "stopped")
_TEXTS = ("id", "model", "method", "profile")
_SECONDS = ("training_seconds", "evaluation_seconds")


def check_record(document: Mapping[str, Any]) -> None:
    """Check what `record.json` holds. Raises: ValueError that names key, value and rule."""
    for key in _TEXTS:
        value = document[key]
        _check(key, value, isinstance(value, str) and not text_problem(value), "a text")
    for key, options in (("kind", KINDS), ("status", STATUSES)):
        _check(key, document[key], document[key] in options, f"one of {', '.join(options)}")
    for key in ("spec", "provenance", "evaluations", "attacked_evaluations"):
        _check(key, document[key], isinstance(document[key], Mapping), "an object")
    for key in ("epochs", "attacked", "steps"):
        _check(key, document[key], isinstance(document[key], list), "a list")
    error, rate = document["error"], document["learning_rate"]
    _check("error", error, error is None or isinstance(error, str), "a text or null")
    split = document["forget_fraction"]
    possible = is_split_name(split) or (_number(split) and 0 < split < 1)
    _check("forget_fraction", split, possible, "between 0 and 1, or the name of a split")
    _check("learning_rate", rate, rate is None or _number(rate, above=0), "above 0, or null")
    _check("seed", document["seed"], _count(document["seed"]), "a whole number of at least 0")
    for epoch in (*document["epochs"], *document["attacked"]):
        _check("epoch", epoch["epoch"], _count(epoch["epoch"]), "a whole number of at least 0")
        for key in _SECONDS:
            possible = _number(epoch[key]) and 0 <= epoch[key] < math.inf
            _check(key, epoch[key], possible, "seconds of at least 0")
        _check_numbers("metrics", epoch["metrics"].values())
    for step in document["steps"]:
        for key in ("step", "epoch"):
            _check(key, step[key], _count(step[key]), "a whole number of at least 0")
        values = (step["learning_rate"], step["loss"], step["grad_norm"])
        _check_numbers("steps", (*values, *step["terms"].values()))


def _check_numbers(key: str, values: Iterable[Any]) -> None:
    """Check values that are None for a collapsed model."""
    for value in values:
        _check(key, value, value is None or _number(value), "a number or null")


def _check(key: str, value: Any, possible: bool, rule: str) -> None:
    if not possible:
        raise ValueError(f"{key} is {shortened(value)}, and must be {rule}")


def _number(value: Any, *, above: float | None = None) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return above is None or above < value < math.inf


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
