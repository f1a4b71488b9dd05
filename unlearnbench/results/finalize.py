"""Every number of every record, computed in one place: records in, one table out.

The numbers of a row depend on the observations of its model, on the observations of the panel's
retain and start model, and on the rules (`rules.py`). *Observations* are what a model's outputs
were for each row of data. A *panel* is one model and split. A *variant* is an evaluation under an
attack at one point, such as `relearning@13`, and is empty for a plain evaluation. An attacked model
is compared with the retain and start model of the same variant.

The key of a row is a hash of all these inputs. If the stored table has a row with this key, its
numbers are taken. If not, all numbers of the row are computed. Therefore the table depends neither
on the order in which models were evaluated, nor on when a metric was added.

A process that writes a record also stores a hash of the inputs of its numbers (`inputs_entry`). If
the inputs are the same today, the recorded numbers are taken and no file is read.

The order of the steps:

1. Find the evaluations of start and retain models that others are compared with (`references_of`).
2. For each result of each record, take recorded or known numbers, or plan to compute them.
3. Compute the planned numbers, in groups that share retain and start model.
4. Sort the rows, and keep the columns that are worth showing.
5. Compute the numbers before attacks, on the rows that the attacks asked (`asked_rows.py`).
6. Write notes on numbers that could not be computed (`finalize_notes.py`) or that have moved.
"""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from unlearnbench.api.benchmark import SplitKey, split_percent
from unlearnbench.api.observations import Evaluation
from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.base.hashing import content_hash
from unlearnbench.config.metric_plan import MetricChoices
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
from unlearnbench.evaluation.start_check import KEY as START_CHECK
from unlearnbench.evaluation.start_check import StartCheck
from unlearnbench.evaluation.summary import values_of
from unlearnbench.evaluation.word_check import KEY as UNCOUNTED
from unlearnbench.results.asked_rows import before_rows
from unlearnbench.results.comparable_records import check_comparable_records
from unlearnbench.results.finalize_notes import FinalizationNotes
from unlearnbench.results.known_faults import was_not_restored
from unlearnbench.results.moved_numbers import MovedNumbers
from unlearnbench.results.records import EpochResult, Record, StoredEvaluations, StoredFile
from unlearnbench.results.rules import OBSERVED_BY, RecordRules, Rules, recorded_metrics, rules_of
from unlearnbench.results.run_settings import run_settings
from unlearnbench.results.setting_value import NO_SETTING, Labels
from unlearnbench.results.stored_table import NOTHING_STORED, StoredTable
from unlearnbench.results.table import (
    Numbers,
    Table,
    TableRow,
    in_order,
    with_shown_columns,
)

NUMBERS = "numbers"
"""Key in the provenance of a record: hash of all inputs of its numbers except its own
observations."""
Observations = StoredFile | Evaluation
"""Observations of a model, in a file of a record or in memory."""


class ReferenceKey(NamedTuple):
    """What a start or retain model is found by, when a model is compared with it."""

    kind: str
    """`fine-tuned` for a start model, or `retain`."""
    model: str
    split: SplitKey
    variant: str


@dataclass(frozen=True, eq=False)
class EvaluatedResult:
    """A result of a record with its observations."""

    record: Record
    result: EpochResult
    observations: Observations | None
    """None if they are not stored, for example of a line of a leaderboard."""

    @property
    def place(self) -> tuple[str, int, str]:
        """Record id, epoch and variant."""
        return self.record.id, self.result.epoch, self.result.variant


References = Mapping[ReferenceKey, EvaluatedResult]
"""Start and retain models, plain and under attacks."""


@dataclass(frozen=True, eq=False)
class _Inputs:
    """What the numbers of a row are computed from.

    None stands for a model that was not evaluated, or whose observations are not stored.
    """

    own: Observations | None
    retain: Observations | None
    start: Observations | None

    @classmethod
    def of(cls, evaluated: EvaluatedResult, references: References) -> "_Inputs":
        """Look up the models that a result is compared with.

        The retain model and the start model are also compared with themselves.
        """
        record = evaluated.record
        observations_of_kind: dict[str, Observations | None] = {}
        for kind in ("retain", "fine-tuned"):
            key = ReferenceKey(kind, *record.panel, evaluated.result.variant)
            reference = evaluated if record.kind == kind else references.get(key)
            observations_of_kind[kind] = None if reference is None else reference.observations
        return cls(
            own=evaluated.observations,
            retain=observations_of_kind["retain"],
            start=observations_of_kind["fine-tuned"],
        )

    def key(self, rules: RecordRules) -> str:
        """Return the key of the row; empty if the numbers cannot be computed from files alone."""
        models = self.own, self.retain, self.start
        is_in_memory = any(isinstance(model, Evaluation) for model in models)
        if not rules.key or self.own is None or is_in_memory:
            return ""
        digests = " ".join(map(_digest, models))
        return hashlib.sha256(f"{rules.key} {digests}".encode()).hexdigest()[:16]


def _digest(observations: Observations | None) -> str:
    """Return the hash of a file; `-` if there is no model, `in memory` without a file."""
    if observations is None:
        return "-"
    return observations.digest if isinstance(observations, StoredFile) else "in memory"


def table_of(records: Iterable[Record], metrics: MetricChoices | None = None) -> Table:
    """Return the table of some records, see `finalize`.

    Args:
        records: In any order, with the start and retain models that they are compared with.
        metrics: Those that the configuration names now, and their settings. Defaults to those that
            it named when the records were made.
    """
    records = tuple(records)
    return finalize(records, rules_of(records, metrics))


def finalize(records: Iterable[Record], rules: Rules, known: StoredTable = NOTHING_STORED) -> Table:
    """Return the table of some records: a row for each model, evaluated epoch and attack.

    Args:
        records: In any order, with the start and retain models that they are compared with.
        rules: What the numbers are computed by.
        known: An earlier table of these records.

    Raises:
        RecordError: If the records do not compare, see `check_comparable_records`.
    """
    records = tuple(records)
    check_comparable_records(records)
    return _Finalization(records, rules, known).table()


def references_of(records: Iterable[Record]) -> References:
    """Return the start and retain models among some records.

    A key is left out if it has several different models, because nothing says which one counts.
    """
    return {
        key: candidates[0]
        for key, candidates in _candidates(records).items()
        if _count_different(candidates) == 1
    }


def _candidates(records: Iterable[Record]) -> dict[ReferenceKey, list[EvaluatedResult]]:
    """Return all start and retain models by their key."""
    candidates: dict[ReferenceKey, list[EvaluatedResult]] = defaultdict(list)
    for record in records:
        if record.kind == "run":
            continue
        for evaluated in results_of(record):
            key = ReferenceKey(record.kind, *record.panel, evaluated.result.variant)
            candidates[key].append(evaluated)
    return candidates


def _count_different(candidates: Iterable[EvaluatedResult]) -> int:
    """Return the number of models with different observations."""
    identities: set[object] = set()
    for candidate in candidates:
        # Folders of version 0.2 may contain a model twice, with the same observations.
        if isinstance(candidate.observations, StoredFile):
            identities.add(candidate.observations.digest)
        else:
            identities.add(candidate.place)
    return len(identities)


def results_of(record: Record) -> Iterator[EvaluatedResult]:
    """Yield the results of a record with their observations, the plain ones first."""
    for result in record.epochs:
        yield EvaluatedResult(record, result, _observations(record.evaluations, result.epoch))
    for result in record.attacked:
        key = result.epoch, result.variant
        observations = _observations(record.attacked_evaluations, key)
        yield EvaluatedResult(record, result, observations)


def _observations(evaluations: Mapping[Any, Evaluation], key: Any) -> Observations | None:
    """Return the observations of one evaluation, without reading them if they are in a file.

    Args:
        evaluations: `Record.evaluations`, or `Record.attacked_evaluations`.
        key: Epoch, or epoch and variant.

    Returns:
        None if they are not stored.
    """
    if isinstance(evaluations, StoredEvaluations):
        return evaluations.files.get(key)
    return evaluations.get(key)


def inputs_entry(rules_key: str, record: Record, references: Iterable[Record]) -> dict[str, str]:
    """Return the entry of a new record's provenance that says how its numbers were computed.

    Args:
        rules_key: Key of the rules by which the process that makes the record computes.
        record: The new record.
        references: Records of the start and retain models that it is compared with.
    """
    return {NUMBERS: _inputs_hash(rules_key, record, references_of(references))}


def _inputs_hash(rules_key: str, record: Record, references: References) -> str:
    """Hash the rules, and the observations of the start and retain models of a record.

    Args:
        rules_key: Key of the rules.
        record: The record. Its own observations are not part of the hash.
        references: Start and retain models by key.
    """
    variants = sorted({result.variant for result in (*record.epochs, *record.attacked)})
    digests: list[str] = []
    for variant in variants:
        for kind in ("retain", "fine-tuned"):
            if kind != record.kind:
                reference = references.get(ReferenceKey(kind, *record.panel, variant))
                digests.append("-" if reference is None else _digest(reference.observations))
    return content_hash([rules_key, variants, digests])


@dataclass
class _Row:
    """A row of the table while it is made."""

    evaluated: EvaluatedResult
    rules: RecordRules
    inputs: _Inputs
    key: str
    """See `_Inputs.key`."""
    numbers: Numbers | None = None
    """None until they are computed."""

    @property
    def record(self) -> Record:
        """Record of the model."""
        return self.evaluated.record

    @property
    def result(self) -> EpochResult:
        """The recorded result."""
        return self.evaluated.result

    @property
    def group(self) -> tuple[Any, ...]:
        """Equal for rows that are compared with the same retain and start model."""
        return (*self.record.panel, self.result.variant)

    @property
    def label(self) -> str:
        """`record 5f0c, epoch 3 under noise@1`."""
        under = f" under {self.result.variant}" if self.result.variant else ""
        return f"record {self.record.id}, {self.record.unit.at(self.result.epoch)}{under}"

    def recorded_numbers(self) -> Numbers:
        """Return the recorded numbers, without those of metrics that had other settings."""
        recorded = Numbers.finite(self.result.metrics)
        return self.without_changed_settings(recorded, recorded_metrics(self.record))

    def without_changed_settings(self, numbers: Numbers, before: MetricChoices) -> Numbers:
        """Return numbers without those of metrics whose settings differ from earlier ones."""
        stale = self.columns_of_changed_settings(before, numbers)
        if not stale:
            return numbers
        return Numbers({name: value for name, value in numbers.items() if name not in stale})

    def columns_of_changed_settings(
        self, before: MetricChoices, columns: Collection[str]
    ) -> frozenset[str]:
        """Return the columns of metrics whose settings differ from earlier ones.

        Args:
            before: Earlier metrics with their settings.
            columns: Columns of earlier numbers. Those of a metric that cannot be used here are
                found by its name, since nothing else says which they are.
        """
        now = self.rules.metrics
        if before == now:
            return frozenset()
        names = before.keys() | now.keys()
        changed = {name for name in names if before.get(name, {}) != now.get(name, {})}
        affected = self.rules.schema.plan.affected(changed)
        # A metric `my-metric` has columns such as `my_metric` and `my_metric_forget`. The last
        # underscore keeps `my_metric2` out.
        prefixes = tuple(name.replace("-", "_") + "_" for name in changed)
        computed = self.rules.schema.computed
        affected_by_name = {
            column
            for column in columns
            if column not in computed and f"{column}_".startswith(prefixes)
        }
        return affected | affected_by_name


class _Finalization:
    """One call of `finalize`."""

    def __init__(self, records: Sequence[Record], rules: Rules, known: StoredTable) -> None:
        self._records = records
        self._rules = rules
        self._known = known
        self._moved = MovedNumbers()
        """Numbers that differ from the ones shown before, filled by `_note_changes`."""
        self._notes = FinalizationNotes()
        self._rules_keys: set[str] = set()
        """Keys of the rules of all records."""
        self._evaluated: dict[tuple[str, int, str], EvaluatedResult] = {}
        """Results by `EvaluatedResult.place`."""

    def table(self) -> Table:
        """Compute what is not known, and make the table."""
        rows = self._planned_rows()
        due = [row for row in rows if row.numbers is None]
        # Rows of one group follow each other, so that retain and start model are read once.
        for row in sorted(due, key=lambda row: (str(row.group), row.evaluated.place)):
            row.numbers = self._computed(row)

        schema = self._rules.schema
        labelled = _Labelled(self._records, schema)
        table_rows = in_order(map(labelled.row, rows))
        plain = with_shown_columns([row for row in table_rows if not row.variant], schema)
        attacked = with_shown_columns([row for row in table_rows if row.variant], schema)
        self._evaluated = {row.evaluated.place: row.evaluated for row in rows}
        before = before_rows(plain, attacked, self._observed, self._known.by_key)

        rules_key = content_hash(sorted(self._rules_keys))
        moved = self._moved.merged_with(self._known.moved_under(rules_key))
        labels = {column.name: column.label for column in schema.plan.columns}
        # All other steps may add to the notes, so the sentences come last.
        notes = [moved.note(labels), *self._notes.sentences(len(self._records))]
        return Table(
            rows=plain,
            attacked=attacked,
            before=before,
            schema=schema,
            notes=tuple(note for note in notes if note),
            moved=moved,
            metrics=self._rules.metrics,
            rules_key=rules_key,
        )

    def _observed(self, row: TableRow) -> Evaluation | None:
        """Read what was observed for a row; None if nothing is stored, or if it is damaged."""
        evaluated = self._evaluated[row.run_id, row.epoch, row.variant]
        try:
            return _read_reference(evaluated.observations)
        except (UnlearnbenchError, OSError) as error:
            self._notes.unread_before.setdefault(evaluated.place, str(error))
            return None

    def _planned_rows(self) -> list[_Row]:
        """Return the rows of all results, with the numbers that need no computation."""
        references = references_of(self._records)
        self._note_ambiguous_models()
        rows: list[_Row] = []
        for record in self._records:
            rules = self._rules.of(record)
            self._rules_keys.add(rules.key)
            self._notes.unusable_metrics.update(rules.schema.unusable)
            self._compare_observing_code(record, rules)
            if was_not_restored(record):
                self._notes.not_restored.append(record.id)
            stored = record.provenance.get(NUMBERS)
            is_current = bool(
                stored and rules.key and stored == _inputs_hash(rules.key, record, references)
            )
            for evaluated in results_of(record):
                inputs = _Inputs.of(evaluated, references)
                row = _Row(evaluated, rules, inputs, inputs.key(rules))
                row.numbers = self._taken(row, is_current=is_current)
                rows.append(row)
        return rows

    def _taken(self, row: _Row, *, is_current: bool) -> Numbers | None:
        """Return the numbers of a row that need no computation; None if they need one.

        Args:
            row: The row.
            is_current: Whether the numbers were recorded from the same inputs as today's, see
                `inputs_entry`.
        """
        if row.key in self._known.by_key:
            return self._known.by_key[row.key]
        if is_current:
            numbers = Numbers.finite(row.result.metrics)
            if row.evaluated.place in self._known.by_place:
                # Numbers by other rules may have been shown in the meantime.
                self._note_changes(row, numbers)
            return numbers
        if row.key in _computed_here:
            numbers = self._with_unknown_columns(row, _computed_here[row.key])
            self._note_changes(row, numbers)
            return numbers
        if row.rules.obstacle:
            if isinstance(row.inputs.own, StoredFile) and not row.rules.schema.missing:
                self._notes.not_computed.append(f"{row.label}: {row.rules.obstacle}")
            return self._last_numbers(row)
        observations = row.evaluated.observations
        if observations is None:
            if isinstance(row.record.evaluations, StoredEvaluations):
                self._notes.without_observations.append(row.label)
            return row.recorded_numbers()
        if isinstance(observations, Evaluation) and row.result.metrics:
            # This process made the record, with its numbers, by the code that it still runs.
            return row.recorded_numbers()
        return None

    def _with_unknown_columns(self, row: _Row, values: Mapping[str, float | None]) -> Numbers:
        """Return computed numbers with the last ones of metrics whose plug-in is not given now."""
        columns = row.rules.schema.columns
        unknown = {
            name: value for name, value in self._last_numbers(row).items() if name not in columns
        }
        return Numbers.finite({**unknown, **values})

    def _last_numbers(self, row: _Row) -> Numbers:
        """Return the numbers of the stored table, or the recorded ones if it lacks the row.

        The stored table comes first because it may have columns that are newer than the record.
        Numbers of metrics that had other settings are left out.
        """
        shown = self._known.by_place.get(row.evaluated.place)
        if shown is None:
            return row.recorded_numbers()
        return row.without_changed_settings(shown, self._shown_by(row))

    def _shown_by(self, row: _Row) -> MetricChoices:
        """Return the metrics by which the stored table has shown a row, with their settings."""
        metrics = self._known.metrics
        return recorded_metrics(row.record) if metrics is None else metrics

    def _computed(self, row: _Row) -> Numbers:
        """Compute the numbers of a row. If that is impossible, a note says so."""
        schema = row.rules.schema
        try:
            own = _read_own(row.inputs.own)
            values = values_of(
                schema.plan,
                schema.sets("forget"),
                schema.headline.forgotten.name,
                own,
                _read_reference(row.inputs.retain),
                _read_reference(row.inputs.start),
            )
        except (UnlearnbenchError, OSError, LookupError, ValueError) as error:
            if isinstance(row.inputs.own, Evaluation) and not row.result.variant:
                # A model outside a sweep was evaluated in this process and has no recorded numbers.
                raise
            # A damaged file is an error only for commands that need the observations themselves.
            # Sets may be missing from records of other versions.
            self._notes.not_computed.append(f"{row.label}: {error}")
            row.key = ""
            return row.recorded_numbers()
        if row.key and row.record.kind != "run":
            _computed_here[row.key] = values
        numbers = self._with_unknown_columns(row, values)
        self._note_changes(row, numbers)
        self._note_missing_texts(row, own)
        return numbers

    def _note_missing_texts(self, row: _Row, own: Evaluation) -> None:
        """Note metrics that read texts which were not kept, and whose values were not stored."""
        for measure in row.rules.schema.plan.measures:
            for name in measure.sets:
                seen = own.sets.get(name)
                if seen is None or seen.text_values is None or measure.key in seen.text_values:
                    continue
                # A set whose rows are only scored has no generated texts in any sweep.
                was_answered = not np.isnan(seen.rouge_l_recall).all()
                if was_answered and "generated" in measure.lacks(seen):
                    self._notes.metrics_without_texts.add(measure.name)

    def _note_changes(self, row: _Row, numbers: Numbers) -> None:
        """Compare numbers with the ones that were shown before, or recorded if none were shown."""
        before = self._known.by_place.get(row.evaluated.place)
        if before is None:
            before = Numbers.finite(row.result.metrics)
            settings = recorded_metrics(row.record)
        else:
            settings = self._shown_by(row)
        asked_for = row.columns_of_changed_settings(settings, before)
        self._moved.add(before, numbers, asked_for)

    def _note_ambiguous_models(self) -> None:
        """Note the panels that have several different start or retain models."""
        # The largest count over all variants, by kind, model and split.
        counts: dict[tuple[str, str, SplitKey], int] = defaultdict(int)
        for key, candidates in _candidates(self._records).items():
            # Nothing is computed from lines of a leaderboard, so nothing is left out.
            observed = [candidate for candidate in candidates if candidate.observations is not None]
            model_of_kind = (key.kind, key.model, key.split)
            counts[model_of_kind] = max(counts[model_of_kind], _count_different(observed))
        for (kind, model, split), count in counts.items():
            if count > 1:
                name = "start" if kind == "fine-tuned" else kind
                self._notes.ambiguous_models.append(
                    f"{model}, {split_percent(split)}: {count} {name} models in one table, so "
                    "numbers that compare with them are left out; start the sweep again to keep one"
                )

    def _compare_observing_code(self, record: Record, rules: RecordRules) -> None:
        """Note a record whose observations were made by other code of a plug-in than today's."""
        if not record.evaluations and not record.attacked_evaluations:
            return
        stored: Mapping[str, str] = record.provenance.get(OBSERVED_BY, {})
        for name, digest in stored.items():
            if rules.observing.get(name, digest) != digest:
                self._notes.records_observed_by_other_code[name].append(record.id)


_computed_here: dict[str, Mapping[str, float | None]] = {}
"""Numbers of start and retain models that this process has computed, by the keys of their rows.
A sweep makes a table whenever a run ends, and each table has the same start and retain models."""


def _read_own(observations: Observations | None) -> Evaluation:
    """Read the observations of a model, which the caller knows to exist."""
    assert observations is not None, "rows without observations are as recorded"
    return observations.read() if isinstance(observations, StoredFile) else observations


# Rows with the same retain and start model follow each other, so few files are in use at a time.
@lru_cache(maxsize=4)
def _read_file(file: StoredFile) -> Evaluation:
    """Read a file of observations, or return the object that was read from it lately."""
    return file.read()


def _read_reference(observations: Observations | None) -> Evaluation | None:
    """Read the observations of a start or retain model.

    Models that are compared with it get the same object, because the object caches numbers that
    depend on the start or retain model alone.
    """
    return _read_file(observations) if isinstance(observations, StoredFile) else observations


class _Labelled:
    """Makes rows with the names of settings, which depend on all records."""

    def __init__(self, records: Sequence[Record], schema: BenchmarkSchema) -> None:
        self._schema = schema
        self._settings = run_settings(records)
        self._labels = Labels()
        for record in records:
            if record.kind == "run":
                self._labels.add(record.method, self._settings[record.id])

    def row(self, row: _Row) -> TableRow:
        """Return the row of the table."""
        record = row.record
        is_run = record.kind == "run"
        setting = self._settings[record.id] if is_run else NO_SETTING
        return TableRow(
            run_id=record.id,
            kind=record.kind,
            model=record.model,
            forget_fraction=record.forget_fraction,
            method=self._labels.label(record.method, setting) if is_run else record.kind,
            family=record.method if is_run else record.kind,
            learning_rate=record.learning_rate,
            seed=record.seed,
            epoch=row.result.epoch,
            status=record.status,
            metrics=row.numbers or Numbers(),
            schema=self._schema,
            variant=row.result.variant,
            setting=setting,
            uncounted=record.provenance.get(UNCOUNTED, {}),
            start_check=StartCheck.read(record.provenance.get(START_CHECK)),
            at_inference=_acts_at_inference(record),
            key=row.key,
        )


def _acts_at_inference(record: Record) -> bool:
    """Whether a record is of a run whose method leaves the weights as they are."""
    return record.kind == "run" and "method" in record.spec and record.learning_rate is None
