"""What happened, in two lines of Markdown: what MLflow shows as a run's description. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from unlearnbench.console import duration
from unlearnbench.entries import best_epoch, first_line
from unlearnbench.outcomes import tally
from unlearnbench.ranking import UTILITY_SHARE, Setting, best_per_method
from unlearnbench.records import EpochResult, Record
from unlearnbench.report import Report
from unlearnbench.starts import start_of
from unlearnbench.table import Row

LONGEST = 240
"""Characters that are quoted of an error."""
_BREAK = "  \n"
"""Markdown's line break."""


def describe_run(record: Record, start: float | None) -> str:
    """What became of a run, and what it took; `start` as in `entries.best_epoch`."""
    return _BREAK.join([_outcome(record, start), _effort(record)])


def _outcome(record: Record, start: float | None) -> str:
    last = record.epochs[-1] if record.epochs else None
    reached = f"epoch {last.epoch}" if last else "the first evaluation"
    if record.status == "failed":
        error = quoted(first_line(record.error) or "no message")
        return f"Failed {'after' if last else 'before'} {reached}: {error}"
    if last is None:
        if record.status == "collapsed":
            return f"Collapsed: {quoted(first_line(record.error) or 'no message')}"
        return "Nothing was evaluated."
    if record.kind != "run":
        return f"The {record.kind} model: {_numbers(last, None)}."
    best = best_epoch(record, start)
    told = _best(best, start) if best else f"at epoch {last.epoch} {_numbers(last, start)}"
    if best is None and start is not None:
        told = f"no epoch keeps {UTILITY_SHARE:.0%} of the start's Model Utility; {told}"
    ended = {
        "collapsed": f"Collapsed at epoch {last.epoch}: ",
        "stopped": f"Stopped by the search after epoch {last.epoch}: ",
    }.get(record.status, "")
    sentence = ended + told
    early = f". Ended early: {record.ended}" if record.ended else ""
    return f"{sentence[0].upper()}{sentence[1:]}{early}."


def _best(best: Setting, start: float | None) -> str:
    numbers = _values(best.metrics["model_utility"], best.metrics["log10_forget_quality"], start)
    return f"best at epoch {best.epoch}: {numbers}"


def _numbers(one: EpochResult, start: float | None) -> str:
    metrics = one.metrics
    return _values(metrics.get("model_utility"), metrics.get("log10_forget_quality"), start)


def _values(utility: float | None, quality: float | None, start: float | None) -> str:
    told = "no Model Utility" if utility is None else f"Model Utility {utility:.3f}"
    if utility is not None and start:
        told += f" ({utility / start:.0%} of the start's)"
    return told + ("" if quality is None else f", log10 Forget Quality {quality:.2f}")


def _effort(record: Record) -> str:
    training = sum(one.training_seconds for one in record.epochs)
    evaluation = sum(one.evaluation_seconds for one in record.epochs)
    told = [f"{duration(training)} of training and {duration(evaluation)} of evaluation"]
    if device := record.provenance.get("device"):
        told.append(f"on {quoted(str(device))}")
    text = " ".join(told)
    if (memory := record.provenance.get("peak_memory_mib")) is not None:
        text += f", {memory} MiB at most"
    if interruptions := record.provenance.get("interruptions"):
        times = len(interruptions)
        text += f", interrupted {'once' if times == 1 else f'{times} times'}"
    return f"{text}."


def describe_sweep(report: Report) -> str:
    """How many runs became what and how long they took, and the best of each panel."""
    runs = [record for record in report.records if record.kind == "run"]
    lines = [f"{_counts(runs, report.planned)}."]
    lines += [f"{line}." for line in _leaders(report.rows)]
    return _BREAK.join([*([report.description, ""] if report.description else []), *lines])


def _counts(runs: Sequence[Record], planned: int | None) -> str:
    work = duration(sum(run.seconds for run in runs))
    return f"{tally((run.status for run in runs), planned)}; {work} of work in all"


def _leaders(rows: Sequence[Row]) -> Iterator[str]:
    """The best method of each model and forget fraction."""
    best = best_per_method(rows)
    for (model, fraction), group in groupby(best, key=lambda b: (b.model, b.forget_fraction)):
        place = f"{quoted(model)}, forget {100 * fraction:g} %"
        settings = [one.setting for one in group if one.setting is not None]
        start = start_of(rows, model, fraction)
        if start.fault:
            yield f"{place}: no result: {start.fault}"
            continue
        if start.utility is None:
            yield f"{place}: no best without the fine-tuned model's Model Utility"
            continue
        if not settings:
            yield f"{place}: no method keeps {UTILITY_SHARE:.0%} of the start's Model Utility"
            continue
        top = max(settings, key=_merit)
        rate = "" if top.learning_rate is None else f" at rate {top.learning_rate:g}"
        quality = top.metrics["log10_forget_quality"]
        nobody = ", nobody forgot" if start.unmoved(quality) else ""
        yield f"{place}: {quoted(top.method)}{rate}, {_best(top, None)} (of {_seeds(top)}){nobody}"


def _merit(setting: Setting) -> tuple[float, float]:
    quality, utility = (setting.metrics[n] for n in ("log10_forget_quality", "model_utility"))
    return quality or 0.0, utility or 0.0


def _seeds(setting: Setting) -> str:
    many = len(setting.rows)
    return f"{many} seed{'s' * (many != 1)}"


def quoted(text: str) -> str:
    """Text from data as Markdown's code: it neither formats, links nor loads anything."""
    plain = re.sub(r"\s+", " ", text.replace("`", "'")).strip()
    return f"`{plain[:LONGEST]}`" if plain else "` `"
