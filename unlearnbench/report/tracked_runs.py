"""The runs that a tracker gets: a record and its rows of the table, as names, texts and numbers.

Every metric of a model is a number of the sweep's table. The record adds what the table does not
have: settings, times, memory, and the numbers of each optimizer step.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from unlearnbench.analysis.best_settings import Panel
from unlearnbench.analysis.results import Results
from unlearnbench.analysis.yardstick import memorization_column
from unlearnbench.api.benchmark import SplitKey, split_label
from unlearnbench.api.metric import MetricColumn
from unlearnbench.api.tracker import AnswerTable, MetricPoint, TrackedData, TrackedRun
from unlearnbench.base.hashing import content_hash
from unlearnbench.base.redaction import redact
from unlearnbench.config.schema import SweepConfig
from unlearnbench.config.unit import Unit
from unlearnbench.report.answer_table import AnswerTables, last_epoch
from unlearnbench.results.attack_variants import is_choice, trial_of
from unlearnbench.results.records import Record
from unlearnbench.results.setting_value import SettingValue, free_name
from unlearnbench.results.table import Table, TableRow

LONGEST = 500
"""Most characters of a parameter or tag that every store accepts."""
AT_A_GLANCE = "at_a_glance"
"""Group of the metrics that charts open on. MLflow sorts groups alphabetically, and this one comes
before `best`."""
BEST = "best"
"""Group of the numbers of a run's best epoch."""
SCORES = "forgotten", "private", "kept"
"""Columns of the scores in the table. The score Lasting has no column."""
_KIND_NAMES = {"fine-tuned": "start model", "retain": "retain model"}


@dataclass(frozen=True)
class SweepFacts:
    """What all runs of a sweep share, and whether their names need model and split."""

    name: str
    folder: Path
    benchmark: str
    """Name of the benchmark: `tofu`."""
    has_many_models: bool = False
    has_many_splits: bool = False
    keeps_texts: bool = True
    """Whether records have the answers of models."""

    @classmethod
    def of(cls, config: SweepConfig, folder: Path) -> SweepFacts:
        """Return the facts that a sweep's configuration states."""
        return cls(
            name=config.name,
            folder=folder,
            benchmark=config.data.source,
            has_many_models=len(config.models) > 1,
            has_many_splits=len(config.split_keys) > 1,
            keeps_texts=config.keep_texts,
        )

    def data(self, split: SplitKey, fingerprint: str) -> TrackedData:
        """Describe the rows of a split."""
        return TrackedData(f"{self.benchmark} {split_label(split)}", fingerprint, self.benchmark)


class _Point(NamedTuple):
    """A point of a metric, before undefined values are left out."""

    name: str
    value: float | None
    step: int


@dataclass(frozen=True)
class RowsOfRun:
    """The rows of the table that are logged for one record."""

    plain: tuple[TableRow, ...] = ()
    """Rows of its evaluated epochs."""
    attacked: tuple[TableRow, ...] = ()
    """Rows of its evaluations under attacks."""
    start: tuple[TableRow, ...] = ()
    """Rows of the start model, whose utility decides which epochs may be the best."""
    chooses: bool = False
    """Whether the sweep has a rule (`select`, `tune`). If so, only runs of a choice have a best
    epoch."""
    chosen_epoch: int | None = None
    """The epoch that was chosen, if the run reports a choice."""


def chosen_epochs(results: Results) -> dict[str, int] | None:
    """Return the chosen epoch of each run that reports a choice of `select` or `tune`.

    Returns:
        None for a sweep without such a rule.
    """
    if results.choice_plan is None:
        return None
    epoch_of_run: dict[str, int] = {}
    for panel in results.panels:
        for best in panel.best:
            if best.choice is not None and best.setting is not None:
                for row in best.setting.rows:
                    epoch_of_run[row.run_id] = row.epoch
    return epoch_of_run


class RowsByRun:
    """The rows of a table, looked up by record."""

    def __init__(self, table: Table, chosen: Mapping[str, int] | None = None) -> None:
        """Sort the rows of a table by run.

        Args:
            table: All numbers.
            chosen: As `chosen_epochs` returns it. None for a sweep without a rule.
        """
        self._chosen = chosen
        self._plain: dict[str, list[TableRow]] = defaultdict(list)
        self._attacked: dict[str, list[TableRow]] = defaultdict(list)
        self._start: dict[tuple[str, SplitKey], list[TableRow]] = defaultdict(list)
        for row in table.rows:
            self._plain[row.run_id].append(row)
            if row.kind == "fine-tuned":
                self._start[row.panel].append(row)
        for row in table.attacked:
            self._attacked[row.run_id].append(row)

    def of(self, record: Record) -> RowsOfRun:
        """Return the rows of a record. There are none if it has no evaluation."""
        return RowsOfRun(
            plain=tuple(self._plain.get(record.id, ())),
            attacked=tuple(self._attacked.get(record.id, ())),
            start=tuple(self._start.get(record.panel, ())),
            chooses=self._chosen is not None,
            chosen_epoch=None if self._chosen is None else self._chosen.get(record.id),
        )


def tracked_run(
    record: Record,
    rows: RowsOfRun,
    sweep: SweepFacts,
    references: Iterable[Record] = (),
    answers: AnswerTables | None = None,
) -> TrackedRun:
    """Return the run that is logged for a record.

    Undefined and infinite values are left out, because stores do not accept them.

    Args:
        record: Record of a run, a start model or a retain model.
        rows: Its rows of the table.
        sweep: The sweep that the record is part of.
        references: Start and retain models of the sweep, whose answers are compared.
        answers: Makes the table of answers. None if there is to be none.
    """
    location = _location(record)
    parameters = location | _parameters(record.spec, location)
    fingerprint = _data_fingerprint(record)
    ended = milliseconds(record.provenance.get("finished"))
    # The panel has only the run and its start model, so a best setting is a row of the run.
    panel = Panel(*record.panel, (*rows.start, *rows.plain))
    best = _best_row(record, rows, panel)
    compared = _comparison(record, rows, best, references, answers) if sweep.keeps_texts else None
    return TrackedRun(
        id=record.id,
        name=run_name(record, sweep),
        status=record.status,
        parameters=_texts(parameters),
        tags=_texts(location | _tags(record, rows, sweep)),
        points=[
            MetricPoint(point.name, point.value, point.step, ended or 0)
            for point in _points(record, rows, best, panel)
            if point.value is not None and math.isfinite(point.value)
        ],
        artefacts=_artefacts(record, sweep.folder),
        started=milliseconds(record.provenance.get("started")),
        ended=ended,
        answers=None if compared is None else compared.table,
        answers_of="" if compared is None else compared.id,
        data=sweep.data(record.forget_fraction, fingerprint) if fingerprint else None,
    )


def _location(record: Record) -> dict[str, Any]:
    """Return the values by which the runs of a sweep differ, for both parameters and tags."""
    unit = Unit.of_spec(record.spec)
    return {
        "method": record.method,
        "model": record.model,
        "forget_fraction": record.forget_fraction,
        "learning_rate": record.learning_rate,
        "seed": record.seed,
        unit.plural: record.spec.get(unit.plural),
    }


def _tags(record: Record, rows: RowsOfRun, sweep: SweepFacts) -> dict[str, Any]:
    """Return what a reviewer searches and filters runs by. None means that a run lacks a tag."""
    provenance = record.provenance
    first_line_of_error = (record.error or "").strip().partition("\n")[0]
    return {
        "sweep": sweep.name,
        "kind": record.kind,
        "status": record.status,
        "profile": record.profile,
        "evaluation_precision": record.precision,
        "data": _data_fingerprint(record),
        "device": provenance.get("device"),
        "error": first_line_of_error or None,
        "git_commit": (provenance.get("git") or {}).get("commit"),
        "chosen": None if rows.chosen_epoch is None else "yes",
        "answers": None if sweep.keeps_texts else "none: keep_texts is false",
        "unlearnbench.run_id": record.id,
    }


def _data_fingerprint(record: Record) -> str | None:
    """Return the fingerprint of the rows that a run was trained on; None if it is not known."""
    fingerprint: str | None = record.spec.get("data_fingerprint") or record.provenance.get("data")
    return fingerprint


def _points(
    record: Record, rows: RowsOfRun, best: TableRow | None, panel: Panel
) -> Iterator[_Point]:
    """Yield all metrics of a run, undefined ones included."""
    yield from _at_a_glance(record, rows.plain)
    yield from _by_epoch(rows.plain)
    yield from _costs(record)
    yield from _under_attacks(rows)
    yield from _best_epoch(best, panel)
    yield from _by_step(record)


def _artefacts(record: Record, folder: Path) -> dict[str, Callable[[], str]]:
    """Return the files of a run as functions that read them: its record, without secrets."""
    file = folder / "records" / record.place / "record.json"
    if not file.is_file():
        return {}
    return {file.name: lambda: redact(file.read_text("utf-8"))}


class _Comparison(NamedTuple):
    """The answers of a run's model, beside those of start and retain model."""

    table: Callable[[], AnswerTable]
    """Makes the table. Reading answers takes time, and a run may be logged already."""
    id: str
    """Names the models and the epoch. If it changes, the table has to be logged again."""


def _comparison(
    record: Record,
    rows: RowsOfRun,
    best: TableRow | None,
    references: Iterable[Record],
    answers: AnswerTables | None,
) -> _Comparison | None:
    """Compare the answers of a run's best epoch, or of its last one if no epoch is the best.

    Returns:
        None without `answers`, or if the record has no evaluation. A start or retain model under
        an attack has none.
    """
    epoch = last_epoch(record) if best is None else best.epoch
    if answers is None or epoch is None:
        return None
    compared = [
        reference
        for reference in references
        if reference.panel == record.panel and reference.evaluations
    ]
    forget_sets = rows.plain[0].schema.sets("forget") if rows.plain else ()
    table = partial(answers.table, record, epoch, compared, forget_sets)
    ids = sorted(reference.id for reference in compared)
    return _Comparison(table, " ".join([f"{record.id}@{epoch}", *ids]))


class _Parameter(NamedTuple):
    """A setting of a run, before it gets a name that no other parameter has."""

    section: str
    """Section of the configuration."""
    key: str
    """Key in the section."""
    name: str
    """Name of the parameter, if it is free."""
    value: Any


def _parameters(spec: Mapping[str, Any], taken: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run by name, without two settings of one name.

    Args:
        spec: Specification of a record.
        taken: Parameters whose names are taken.
    """
    parameters: dict[str, Any] = {}
    for setting in _settings_of(spec):
        taken_names = {*taken, *parameters}
        name = free_name(setting.name, taken_names, setting.section, setting.key)
        parameters[name] = setting.value
    return parameters


def _settings_of(spec: Mapping[str, Any]) -> Iterator[_Parameter]:
    """Yield the settings of model, training, method and retain term."""
    model: Mapping[str, Any] = spec.get("model") or {}
    for key in ("base", "dtype"):
        yield _Parameter("model", key, key, model.get(key))
    for key, value in (model.get("lora") or {}).items():
        yield _Parameter("model.lora", key, f"lora_{key}", value)
    for key, value in (spec.get("training") or {}).items():
        yield _Parameter("training", key, key, value)
    method = SettingValue.of(spec.get("method") or {})
    for key, value in method.own.items():
        yield _Parameter("method", key, key, value)
    for key, value in (method.retain or {}).items():
        yield _Parameter("retain", key, f"retain_{key}", value)


def run_name(record: Record, sweep: SweepFacts) -> str:
    """Return a name that begins with what differs between the runs of a sweep.

    A list of runs is narrow and cuts names at about 25 characters. The learning rate and the seed
    are short and come first, followed by the method: `1e-3 s0 npo+nll`. Model and split follow if
    the sweep has several: `1e-3 s0 npo+nll tiny forget 0.1`. A start or retain model under an
    attack has a record of its own, which names the attack: `retain model under relearning`.
    """
    words: list[str] = []
    if record.kind == "run":
        if record.learning_rate is not None:
            words.append(short_rate(record.learning_rate))
        words += [f"s{record.seed}", record.method]
    else:
        words.append(_KIND_NAMES[record.kind])
        if not record.epochs:
            # Variants look like `relearning@13`: the attack, then the point that was evaluated.
            attacks = {result.variant.partition("@")[0] for result in record.attacked}
            words += [f"under {attack}" for attack in sorted(attacks)]
    if sweep.has_many_models:
        words.append(record.model)
    if sweep.has_many_splits:
        words.append(split_label(record.forget_fraction))
    return " ".join(words)


def short_rate(rate: float) -> str:
    """Write a learning rate as in a paper: `1e-3` for 0.001, `2.5e-5` for 0.000025."""
    # A decimal number keeps exactly the digits of the rate.
    mantissa, _, exponent = f"{Decimal(repr(rate)):e}".partition("e")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}e{int(exponent)}"


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the values as texts of a length that stores accept, without those that are None."""
    return {name: _cut(_text(value)) for name, value in values.items() if value is not None}


def _cut(text: str) -> str:
    """Cut a text that stores refuse. Texts that differ only after the cut stay different."""
    if len(text) <= LONGEST:
        return text
    digest = content_hash(text)[:8]
    return f"{text[: LONGEST - len(digest) - 2]}… {digest}"


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, float) and 1e-12 <= abs(value) < 1:
        # MLflow compares parameters as text: 0.00002 sorts before 0.0001, but 2e-05 after it.
        return f"{Decimal(repr(value)):f}"
    return str(value)


def metric_name(name: str, known: Mapping[str, MetricColumn], sets: Iterable[str] = ()) -> str:
    """Rename `rouge_forget` to `forget/rouge`, because MLflow groups by the part before a slash.

    Args:
        name: A column of the table.
        known: Columns by name.
        sets: Names of evaluation sets. If the metric of a column is not installed here, the set is
            found by the end of the column's name.
    """
    if name in known:
        set_name = known[name].set
    else:
        endings = [ending for ending in sets if name.endswith(f"_{ending}")]
        set_name = max(endings, key=len, default="")
    if not set_name:
        return name
    return f"{set_name}/{name.removesuffix(f'_{set_name}')}"


def variant_group(variant: str) -> str:
    """Return the part before the slash of a metric under an attack: `under.relearning.13`.

    Characters that MLflow refuses in names, such as the @ of a variant, are replaced.
    """
    return "under." + re.sub(r"[^\w.-]", "-", variant.replace("@", "."))


def _by_epoch(rows: Iterable[TableRow]) -> Iterator[_Point]:
    """Yield the numbers of each epoch, such as `forget/rouge`."""
    for row in rows:
        known = row.schema.columns
        sets = {known[column].set for column in row.metrics if column in known} - {""}
        for column, value in row.metrics.items():
            yield _Point(metric_name(column, known, sets), value, row.epoch)


def _under_attacks(rows: RowsOfRun) -> Iterator[_Point]:
    """Yield numbers under attacks, such as `under.relearning.13/rouge_forget`.

    A search has dozens of evaluations. Of its attackers, only the two numbers are logged that
    decide which one counts: what the attack is measured by, and what the model keeps. Numbers of
    the rows on which an attacker is chosen are left out. All of them are in `attacks.csv`.
    """
    # A start or retain model under an attack is a record without plain evaluations.
    measured = memorization_column(rows.plain or rows.attacked, rows.attacked)
    for row in rows.attacked:
        if is_choice(row.variant):
            continue
        is_attacker = trial_of(row.variant) is not None
        for column, value in row.metrics.items():
            if not is_attacker or column in (measured, row.headline.kept.column):
                yield _Point(f"{variant_group(row.variant)}/{column}", value, row.epoch)


def _at_a_glance(record: Record, rows: Iterable[TableRow]) -> Iterator[_Point]:
    """Yield what a reviewer looks at first: utility, forgetting and loss.

    These are the headline's two numbers and the training loss once more, under names that are the
    same for all benchmarks.
    """
    for row in rows:
        yield _Point(f"{AT_A_GLANCE}/utility", row.kept, row.epoch)
        yield _Point(f"{AT_A_GLANCE}/forgetting", row.forgotten, row.epoch)
    for step in record.steps:
        yield _Point(f"{AT_A_GLANCE}/loss", step.loss, step.step)


def _best_row(record: Record, rows: RowsOfRun, panel: Panel) -> TableRow | None:
    """Return the row of a run's best epoch; None if no epoch is the best.

    In a sweep with `select` or `tune`, only runs of a choice have a best epoch, which is the chosen
    one. In any other sweep it is the epoch that all tables call best.

    Args:
        record: Record of the run.
        rows: Rows of the run.
        panel: The run's rows and those of the start model, so that its best setting is one row.
    """
    if record.kind != "run":
        return None
    if rows.chooses:
        for row in rows.plain:
            if row.epoch == rows.chosen_epoch:
                return row
        return None
    for best in panel.best:
        if best.setting is not None:
            return best.setting.rows[0]
    return None


def _best_epoch(best: TableRow | None, panel: Panel) -> Iterator[_Point]:
    """Yield the numbers of a run's best epoch.

    Their step is 0, because MLflow draws a metric of one value as bars, one for each run, only if
    its step is 0. At the step of the epoch it would draw a line of one point.
    """
    if best is None:
        return
    yield _Point(f"{BEST}/{best.unit}", float(best.epoch), 0)
    columns = [*best.headline.columns[:2]]
    test = best.headline.forgotten.test
    if test is not None:
        columns.append(test.p_value)
    columns += SCORES
    # A headline may rank by a score, which would be logged twice.
    for column in dict.fromkeys(columns):
        yield _Point(f"{BEST}/{column}", best.metrics.get(column), 0)
    yield _Point(f"{BEST}/utility_kept", panel.share_kept(best.kept), 0)


def _costs(record: Record) -> Iterator[_Point]:
    """Yield times by epoch, and the memory of the whole run at its last epoch."""
    for result in record.epochs:
        yield _Point("system/training_seconds", result.training_seconds, result.epoch)
        yield _Point("system/evaluation_seconds", result.evaluation_seconds, result.epoch)
    if record.epochs:
        last = record.epochs[-1].epoch
        for name in ("peak_memory_mib", "estimated_memory_mib"):
            yield _Point(f"system/{name}", record.provenance.get(name), last)


def _by_step(record: Record) -> Iterator[_Point]:
    """Yield the numbers of each optimizer step, such as `train/loss_retain`."""
    for step in record.steps:
        values: dict[str, float | None] = {
            "loss": step.loss,
            "grad_norm": step.grad_norm,
            "learning_rate": step.learning_rate,
            "epoch": float(step.epoch),
        }
        values |= {f"loss_{term}": value for term, value in step.terms.items()}
        values |= step.reported
        for name, value in values.items():
            yield _Point(f"train/{name}", value, step.step)


def milliseconds(moment: Any) -> int | None:
    """Convert an ISO date to milliseconds since 1970; None if it is not one."""
    try:
        return round(datetime.fromisoformat(moment).timestamp() * 1000)
    except (TypeError, ValueError):
        return None
