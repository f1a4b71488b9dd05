"""The runs that a tracker gets: a record and its rows of the table, as names, texts and numbers.

Every metric of a model is a number of the sweep's table. Only what the table does not have comes
from the record: settings, times, memory, and what was reported at each optimizer step.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from unlearnbench.analysis.best_settings import Panel
from unlearnbench.analysis.results import Results
from unlearnbench.api.benchmark import SplitKey, split_label
from unlearnbench.api.metric import MetricColumn
from unlearnbench.api.tracker import MetricPoint, TrackedData, TrackedRun
from unlearnbench.base.hashing import content_hash
from unlearnbench.base.redaction import redact
from unlearnbench.config.schema import SweepConfig
from unlearnbench.config.unit import Unit
from unlearnbench.report.answer_table import AnswerTables, last_epoch
from unlearnbench.results.records import Record
from unlearnbench.results.setting_value import SettingValue, free_name
from unlearnbench.results.table import Table, TableRow

LONGEST = 500
"""Most characters of a parameter or tag that every store accepts."""
AT_A_GLANCE = "at_a_glance"
"""Group of the metrics that charts open on. MLflow sorts groups by the alphabet, and this one comes
before `best`."""
BEST = "best"
"""Group of the numbers of a run's best epoch."""
SCORES = "forgotten", "private", "kept"
"""Columns of the scores that the table has. The score Lasting is no column of it."""
_KIND_NAMES = {"fine-tuned": "start model", "retain": "retain model"}


@dataclass(frozen=True)
class SweepFacts:
    """What all runs of a sweep share, and what tells them apart."""

    name: str
    folder: Path
    benchmark: str
    """Name of the benchmark: `tofu`."""
    has_many_models: bool = False
    has_many_splits: bool = False
    keeps_texts: bool = True

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
    """Of its evaluated epochs."""
    attacked: tuple[TableRow, ...] = ()
    """Of its evaluations under attacks."""
    start: tuple[TableRow, ...] = ()
    """Of the start model of its model and split, which a best epoch is judged by."""
    chooses: bool = False
    """Whether the sweep has a rule (`select`, `tune`). Only the runs of a choice have a best epoch
    then."""
    chosen_epoch: int | None = None
    """The epoch that was chosen, if the run reports a choice."""


def chosen_epochs(results: Results) -> dict[str, int] | None:
    """Return the chosen epoch of each run that reports a choice of `select` or `tune`.

    Returns:
        None for a sweep without such a rule.
    """
    if results.choice_plan is None:
        return None
    return {
        row.run_id: row.epoch
        for panel in results.panels
        for best in panel.best
        if best.choice is not None and best.setting is not None
        for row in best.setting.rows
    }


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
        """Return the rows of a record; none if it has no evaluation."""
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
        record: Of a run, a start model or a retain model.
        rows: Its rows of the table.
        sweep: The sweep that the record is part of.
        references: Start and retain models of the sweep, whose answers are compared.
        answers: Makes the table of answers. None if there is to be none.
    """
    spec = record.spec
    made = record.provenance
    unit = Unit.of_spec(spec)
    location = {
        "method": record.method,
        "model": record.model,
        "forget_fraction": record.forget_fraction,
        "learning_rate": record.learning_rate,
        "seed": record.seed,
        unit.plural: spec.get(unit.plural),
    }
    parameters = location | _parameters(spec, location)
    fingerprint = spec.get("data_fingerprint") or made.get("data")
    tags = location | {
        "sweep": sweep.name,
        "kind": record.kind,
        "status": record.status,
        "profile": record.profile,
        "evaluation_precision": record.precision,
        "data": fingerprint,
        "device": made.get("device"),
        "error": (record.error or "").strip().partition("\n")[0] or None,
        "git_commit": (made.get("git") or {}).get("commit"),
        "chosen": None if rows.chosen_epoch is None else "yes",
        "answers": None if sweep.keeps_texts else "none: keep_texts is false",
        "unlearnbench.run_id": record.id,
    }
    started = milliseconds(made.get("started"))
    ended = milliseconds(made.get("finished"))
    panel = Panel(*record.panel, (*rows.start, *rows.plain))
    best = _best_row(record, rows, panel)
    points = [
        *_at_a_glance(record, rows.plain),
        *_by_epoch(rows.plain),
        *_costs(record),
        *_under_attacks(rows.attacked),
        *_best_epoch(best, panel),
        *_by_step(record),
    ]
    file = sweep.folder / "records" / record.place / "record.json"
    table = None
    answers_of = ""
    # A start or retain model under an attack has no other evaluations.
    epoch = last_epoch(record) if best is None else best.epoch
    if answers is not None and sweep.keeps_texts and epoch is not None:
        compared = [r for r in references if r.panel == record.panel and r.evaluations]
        forget_sets = () if not rows.plain else rows.plain[0].schema.sets("forget")
        table = partial(answers.table, record, epoch, compared, forget_sets)
        answers_of = " ".join([f"{record.id}@{epoch}", *sorted(r.id for r in compared)])
    return TrackedRun(
        id=record.id,
        name=run_name(record, sweep),
        status=record.status,
        parameters=_texts(parameters),
        tags=_texts(tags),
        points=[
            MetricPoint(point.name, point.value, point.step, ended or 0)
            for point in points
            if point.value is not None and math.isfinite(point.value)
        ],
        artefacts={file.name: lambda: redact(file.read_text("utf-8"))} if file.is_file() else {},
        started=started,
        ended=ended,
        answers=table,
        answers_of=answers_of,
        data=sweep.data(record.forget_fraction, fingerprint) if fingerprint else None,
    )


def _parameters(spec: Mapping[str, Any], taken: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run by name, without two settings of one name.

    Args:
        spec: Of a record.
        taken: Parameters of other names.
    """
    model: Mapping[str, Any] = spec.get("model") or {}
    setting = SettingValue.of(spec.get("method") or {})
    # Section, key in the section, name of the parameter, value.
    settings = [
        *(("model", key, key, model.get(key)) for key in ("base", "dtype")),
        *(("model.lora", k, f"lora_{k}", v) for k, v in (model.get("lora") or {}).items()),
        *(("training", k, k, v) for k, v in (spec.get("training") or {}).items()),
        *(("method", name, name, value) for name, value in setting.own.items()),
        *(("retain", k, f"retain_{k}", v) for k, v in (setting.retain or {}).items()),
    ]
    parameters: dict[str, Any] = {}
    for section, key, name, value in settings:
        free = free_name(name, {*taken, *parameters}, section, key)
        parameters[free] = value
    return parameters


def run_name(record: Record, sweep: SweepFacts) -> str:
    """Return a name that begins with what differs between the runs of a sweep.

    A list of runs is narrow and cuts names at about 25 characters. The learning rate and the seed
    are short and come first, then the method: `1e-3 s0 npo+nll`. Model and split follow if the
    sweep has several: `1e-3 s0 npo+nll tiny forget 0.1`. A start or retain model under an attack
    has a record of its own, which names the attack: `retain model under relearning`.
    """
    if record.kind == "run":
        rate = record.learning_rate
        parts = [] if rate is None else [short_rate(rate)]
        parts += [f"s{record.seed}", record.method]
    else:
        attacks: set[str] = set()
        if not record.epochs:
            attacks = {result.variant.partition("@")[0] for result in record.attacked}
        parts = [" under ".join([_KIND_NAMES[record.kind], *sorted(attacks)])]
    if sweep.has_many_models:
        parts.append(record.model)
    if sweep.has_many_splits:
        parts.append(split_label(record.forget_fraction))
    return " ".join(parts)


def short_rate(rate: float) -> str:
    """Write a learning rate as in a paper: `1e-3` for 0.001, `2.5e-5` for 0.000025."""
    digits, _, exponent = f"{Decimal(repr(rate)):e}".partition("e")
    mantissa = digits.rstrip("0").rstrip(".") if "." in digits else digits
    return f"{mantissa}e{int(exponent)}"


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: _cut(_text(value)) for name, value in values.items() if value is not None}


def _cut(text: str) -> str:
    """Cut a text that stores refuse; texts that differ only behind the cut stay different."""
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
        sets: Names of evaluation sets, by which the set of a column is found whose metric is not
            installed here.
    """
    if name in known:
        set_name = known[name].set
    else:
        endings = [item for item in sets if name.endswith(f"_{item}")]
        set_name = max(endings, key=len, default="")
    return f"{set_name}/{name.removesuffix(f'_{set_name}')}" if set_name else name


def variant_group(variant: str) -> str:
    """Return the part before the slash of a metric under an attack: `under.relearning.13`.

    Characters that MLflow refuses in names, such as the @ of a variant, are replaced.
    """
    return "under." + re.sub(r"[^\w.-]", "-", variant.replace("@", "."))


def _by_epoch(rows: Iterable[TableRow]) -> Iterator[_Point]:
    for row in rows:
        known = row.schema.columns
        sets = {known[column].set for column in row.metrics.keys() & known.keys()} - {""}
        for column, value in row.metrics.items():
            yield _Point(metric_name(column, known, sets), value, row.epoch)


def _under_attacks(rows: Iterable[TableRow]) -> Iterator[_Point]:
    """Yield numbers under attacks, such as `under.relearning.13/rouge_forget`."""
    for row in rows:
        for column, value in row.metrics.items():
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
    """Return the row of a run's best epoch; None if it has none.

    In a sweep that chooses settings, it is the chosen epoch of the runs that report a choice, and
    other runs have none. Otherwise it is the best of the run by the rule of every table.

    Args:
        record: Of the run.
        rows: Of the run.
        panel: The run's rows and those of the start model, so that its best setting is one row.
    """
    if record.kind != "run":
        return None
    if rows.chooses:
        return next((row for row in rows.plain if row.epoch == rows.chosen_epoch), None)
    settings = [best_setting.setting for best_setting in panel.best]
    return next((setting.rows[0] for setting in settings if setting is not None), None)


def _best_epoch(best: TableRow | None, panel: Panel) -> Iterator[_Point]:
    """Yield the numbers of a run's best epoch.

    Their step is 0, because MLflow draws a metric of one value as bars, one for each run, only if
    its step is 0. At the step of the epoch it would draw a line of one point.
    """
    if best is None:
        return
    yield _Point(f"{BEST}/{best.unit}", float(best.epoch), 0)
    columns = [*best.headline.columns[:2]]
    if test := best.headline.forgotten.test:
        columns.append(test.p_value)
    # A headline may rank by a score.
    for column in dict.fromkeys([*columns, *SCORES]):
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
