"""The page in words: how far the sweep is, what it found, where its numbers come from."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unlearnbench.ranking import UTILITY_SHARE, Best, Setting, best_per_method, start_utility
from unlearnbench.report import Report
from unlearnbench.table import Row

from .palette import rate_text, signed
from .pareto import Panel, position


@dataclass(frozen=True)
class BestRow:
    """A line of the table of best settings; `setting` is None where a method has none."""

    best: Best
    setting: Setting | None
    judged: bool
    """Whether there is a utility to keep: the fine-tuned model's, or a run's at epoch 0."""
    tried: int
    """Settings of the method that were evaluated here."""
    kept: float | None
    """Share of the fine-tuned model's utility."""
    utility_spread: tuple[float, float] | None
    quality_spread: tuple[float, float] | None


def best_rows(rows: Sequence[Row]) -> list[BestRow]:
    """The best of each method, by model and fraction, highest Forget Quality first."""
    tried: dict[tuple[str, float, str], set[tuple[str, float | None]]] = defaultdict(set)
    order: dict[tuple[str, float], int] = {}
    for row in rows:
        order.setdefault((row.model, row.forget_fraction), len(order))
        place = (row.model, row.forget_fraction, row.family)
        tried[place].add((row.method, row.learning_rate))
    lines: list[BestRow] = []
    for best in best_per_method(rows):
        found = best.setting
        utility = None if found is None else found.metrics["model_utility"]
        start = start_utility(rows, best.model, best.forget_fraction)
        lines.append(
            BestRow(
                best=best,
                setting=found,
                judged=start is not None,
                tried=len(tried[best.model, best.forget_fraction, best.family]),
                kept=utility / start if utility is not None and start else None,
                utility_spread=None if found is None else found.spread("model_utility"),
                quality_spread=None if found is None else found.spread("log10_forget_quality"),
            )
        )
    return sorted(
        lines,
        key=lambda r: (
            order[r.best.model, r.best.forget_fraction],
            -_quality(r.setting),
            r.best.family,
        ),
    )


def _quality(setting: Setting | None) -> float:
    value = None if setting is None else setting.metrics["log10_forget_quality"]
    return float("-inf") if value is None else value


def verdict(panel: Panel) -> str:
    """The panel's result in a sentence."""
    found = [b.setting for b in panel.best if b.setting is not None]
    if not panel.trajectories:
        return "No run has been evaluated yet."
    if panel.collapse_below is None:
        return "Without a fine-tuned model there is no best setting: nothing to keep utility of."
    if not found:
        return f"No method keeps {UTILITY_SHARE:.0%} of the fine-tuned model's utility."
    top = max(found, key=_quality)
    utility, quality = position(top) or (0.0, 0.0)
    start_kept, start_quality = panel.start or (None, None)
    return (
        f"{top.method} at {rate_text(top.learning_rate)}, epoch {top.epoch}, forgets most while "
        f"keeping {UTILITY_SHARE:.0%} of utility: log₁₀ Forget Quality "
        f"{_from(quality, start_quality, 1)}, Model Utility {_from(utility, start_kept, 2)}."
    )


def _from(value: float, start: float | None, digits: int) -> str:
    """A value and, in brackets, where it started."""
    before = "" if start is None else f" (start {signed(start, digits)})"
    return signed(value, digits) + before


def status(report: Report) -> str:
    """How many runs there are, and how they ended."""
    done = report.finished
    total = report.planned if report.planned is not None else done + len(report.failures)
    text = f"{done} of {total} runs finished" if done != total else f"{done} runs, all finished"
    collapsed = sum(r.status == "collapsed" for r in report.records)
    stopped = sum(r.status == "stopped" for r in report.records)
    more = [
        f"{len(report.failures)} failed" if report.failures else "",
        f"{collapsed} collapsed, and ended there" if collapsed else "",
        f"{stopped} stopped early by the search" if stopped else "",
        f"{report.strangers} in the folder that the present plan does not name are left out"
        if report.strangers
        else "",
    ]
    return "; ".join([text, *filter(None, more)])


def provenance(report: Report) -> list[tuple[str, str]]:
    """Name and value of everything the records say of their origin, and the time they took."""
    values: dict[str, set[str]] = defaultdict(set)
    for record in report.records:
        for name, value in _flat(record.provenance):
            values[name].add(value)
    seconds = [e for r in report.records for e in r.epochs]
    training = sum(e.training_seconds for e in seconds)
    evaluating = sum(e.evaluation_seconds for e in seconds)
    return [
        ("evaluation profile", report.profile),
        ("records", str(len(report.records))),
        ("training, all runs", _duration(training)),
        ("evaluation, all models", _duration(evaluating)),
        *((name, _several(sorted(found))) for name, found in sorted(values.items())),
    ]


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for name, value in values.items():
        path = f"{prefix}{name}".replace("_", " ")
        if isinstance(value, Mapping):
            pairs += _flat(value, f"{path} · ")
        elif value is not None:
            pairs.append((path, value if isinstance(value, str) else json.dumps(value)))
    return pairs


def _several(values: Sequence[str]) -> str:
    shown = ", ".join(values[:3])
    return shown if len(values) <= 3 else f"{values[0]} … {values[-1]} ({len(values)} values)"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
