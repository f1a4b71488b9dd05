"""Descriptions of runs and sweeps in two lines of Markdown, shown by MLflow. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from unlearnbench.analysis.best_settings import (
    UTILITY_SHARE,
    Setting,
    best_per_method,
    headline_of_rows,
)
from unlearnbench.analysis.start_models import start_of, winner
from unlearnbench.api.benchmark import Headline, split_percent
from unlearnbench.console import format_duration
from unlearnbench.reporting.report import Report
from unlearnbench.results.outcomes import tally
from unlearnbench.results.records import EpochResult, Record
from unlearnbench.results.table import TableRow, table
from unlearnbench.tracking.mlflow.metric_points import best_epoch
from unlearnbench.tracking.mlflow.run_entries import first_line

LONGEST = 240
"""Most characters that are quoted of an error."""
_BREAK = "  \n"
"""Markdown's line break."""


def describe_run(record: Record, start: float | None) -> str:
    """Describe a run's result and effort; `start` as in `metric_points.best_epoch`."""
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
        if record.attacked:  # a record of its own for each attack
            return f"The {record.kind} model under {_attacks(record)}."
        return "No evaluation."
    headline = headline_of_rows(table([record]))
    if record.kind != "run":
        return f"The {record.kind} model: {_numbers(last, headline, None)}."
    best = best_epoch(record, start)
    result = (
        _best(best, start) if best else f"at epoch {last.epoch} {_numbers(last, headline, start)}"
    )
    if best is None and start is not None:
        kept = headline.kept.plain_label
        result = f"no epoch keeps {UTILITY_SHARE:.0%} of the start's {kept}; {result}"
    ended = {
        "collapsed": f"Collapsed at epoch {last.epoch}: ",
        "stopped": f"Stopped by the search after epoch {last.epoch}: ",
    }.get(record.status, "")
    sentence = ended + result
    early = f". Ended early: {record.ended}" if record.ended else ""
    return f"{sentence[0].upper()}{sentence[1:]}{early}."


def _attacks(record: Record) -> str:
    names = dict.fromkeys(one.variant.partition("@")[0] for one in record.attacked)
    return " and ".join(quoted(name) for name in names)


def _best(best: Setting, start: float | None) -> str:
    return f"best at epoch {best.epoch}: {_numbers(best, best.headline, start)}"


def _numbers(one: EpochResult | Setting, headline: Headline, start: float | None) -> str:
    kept, forgotten = headline.kept, headline.forgotten
    utility, quality = (one.metrics.get(metric.column) for metric in (kept, forgotten))
    text = f"no {kept.plain_label}"
    if utility is not None:
        text = f"{kept.plain_label} {utility:.{kept.digits}f}"
        if start:
            text += f" ({utility / start:.0%} of the start's)"
    if quality is not None:
        text += f", {forgotten.plain_label} {quality:.{forgotten.digits}f}"
    return text


def _effort(record: Record) -> str:
    results = (*record.epochs, *record.attacked)
    training = sum(one.training_seconds for one in results)
    evaluation = sum(one.evaluation_seconds for one in results)
    spent = format_duration(training), format_duration(evaluation)
    text = "{} of training and {} of evaluation".format(*spent)
    if device := record.provenance.get("device"):
        text += f" on {quoted(str(device))}"
    if (memory := record.provenance.get("peak_memory_mib")) is not None:
        text += f", {memory} MiB at most"
    if interruptions := record.provenance.get("interruptions"):
        times = len(interruptions)
        text += f", interrupted {'once' if times == 1 else f'{times} times'}"
    return f"{text}."


def describe_sweep(report: Report) -> str:
    """Describe a sweep: runs by status, total time, and the best setting of each panel."""
    runs = [record for record in report.records if record.kind == "run"]
    counts = tally((run.status for run in runs), report.planned)
    work = format_duration(sum(run.seconds for run in runs))
    lines = [report.description, ""] if report.description else []
    lines += [f"{counts}; {work} of work in all."]
    lines += [f"{line}." for line in _leaders(report.rows)]
    return _BREAK.join(lines)


def _leaders(rows: Sequence[TableRow]) -> Iterator[str]:
    """The best method of each model and split."""
    best = best_per_method(rows)
    for (model, fraction), group in groupby(best, key=lambda b: (b.model, b.forget_fraction)):
        place = f"{quoted(model)}, {split_percent(fraction)}"
        top = winner(group)
        start = start_of(rows, model, fraction)
        kept = start.headline.kept.plain_label
        if start.fault:
            yield f"{place}: no result: {start.fault}"
            continue
        if start.utility is None:
            yield f"{place}: no best without the fine-tuned model's {kept}"
            continue
        if top is None or top.setting is None:
            yield f"{place}: no method keeps {UTILITY_SHARE:.0%} of the start's {kept}"
            continue
        best_one, seeds = top.setting, len(top.setting.rows)
        rate = "" if best_one.learning_rate is None else f" at rate {best_one.learning_rate:g}"
        none = ", no method forgot" if start.unmoved(best_one.forgotten) else ""
        of = f"(of {seeds} seed{'s' * (seeds != 1)})"
        yield f"{place}: {quoted(top.method)}{rate}, {_best(best_one, None)} {of}{none}"


def quoted(text: str) -> str:
    """Quote text from data as Markdown code, which formats, links and loads nothing."""
    plain = re.sub(r"\s+", " ", text.replace("`", "'")).strip()
    return f"`{plain[:LONGEST]}`" if plain else "` `"
