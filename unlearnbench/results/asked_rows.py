"""Plain numbers of models on the rows that an attack asked: what the models knew before it.

An attack may leave rows out: not every question has a paraphrase, and a text that is continued has
no second turn. Its numbers are then of some rows, and the plain numbers of the table are of all
rows. Their difference would contain the difference between the rows.

Rows are told apart by their place in the set and never by their text alone, because two rows may
ask the same question, and texts that are continued may have none.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from unlearnbench.api.benchmark import SplitKey
from unlearnbench.api.metric import UNDER_ATTACK, Measure, Metric
from unlearnbench.api.observations import Evaluation, IntArray, SetEvaluation
from unlearnbench.api.registry import load
from unlearnbench.base.errors import PluginError
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
from unlearnbench.results.attack_variants import (
    asks_all_models_alike,
    attack_of,
    is_before_attack,
    leaves_greedy,
    may_leave_rows_out,
)
from unlearnbench.results.code_digest import code_digest, plugin_code_digest
from unlearnbench.results.table import Numbers, TableRow

Observed = Callable[[TableRow], Evaluation | None]
"""Reads the observations behind a row; None if there are none."""
NOTHING_KNOWN: Mapping[str, Numbers] = {}
Places = Mapping[str, IntArray | None]
"""By set the places of the rows that were asked; None if they cannot be told."""


def before_rows(
    plain: Sequence[TableRow],
    attacked: Sequence[TableRow],
    observed: Observed,
    known: Mapping[str, Numbers] = NOTHING_KNOWN,
) -> tuple[TableRow, ...]:
    """Compute the numbers of models before attacks, on the rows that the attacks asked.

    Args:
        plain: Rows of plain evaluations.
        attacked: Rows of evaluations under attacks.
        observed: Reads the observations behind any of these rows.
        known: Numbers of an earlier call by `TableRow.key`, which are not computed again.

    Returns:
        A row for each model, epoch and variant whose numbers before the attack are not those of
        the plain row: the attack may leave rows out, or it samples, and the greedy answers' metric
        that its samples are compared with is not in the table. There is none if the attack has
        evaluated the model before its first step, as those that train do. `variant` is the
        attack's. A number is None if it is not known on the rows that were asked: the metric is not
        a mean over rows of one set, or there are no observations.

    Raises:
        DamagedError: If a file cannot be read.
    """
    rows_of_panel: dict[tuple[str, SplitKey], list[TableRow]] = defaultdict(list)
    for row in attacked:
        rows_of_panel[row.panel].append(row)
    with_start = {row.panel for row in plain if row.kind == "fine-tuned"}
    panels = {
        panel: _AttackedRows(rows, has_start=panel in with_start)
        for panel, rows in rows_of_panel.items()
    }
    selections = _Selections(observed)
    found: list[TableRow] = []
    for row in plain:
        if row.panel not in panels:
            continue
        panel = panels[row.panel]
        # All points of an attack ask the same rows.
        numbers_of_attack: dict[str, Numbers] = {}
        for variant, asked_row in panel.asked_alike(row).items():
            kind = panel.kinds[variant]
            unreported = _unreported(row) if kind.leaves_greedy else {}
            if not (kind.may_leave_rows_out or unreported) or panel.has_point_before(row, kind):
                continue
            asked = _Asked(asked_row, kind, unreported)
            key = _key(row, asked)
            if kind.attack not in numbers_of_attack:
                numbers = known.get(key)
                if numbers is None:
                    numbers = _numbers_before(row, asked, selections, observed)
                # A stored row has a gap for each column of other rows.
                defined = {name: value for name, value in numbers.items() if value is not None}
                numbers_of_attack[kind.attack] = Numbers(defined)
            numbers = numbers_of_attack[kind.attack]
            found.append(replace(row, variant=variant, metrics=numbers, key=key))
    return tuple(found)


@dataclass(frozen=True)
class _VariantKind:
    """What is declared of a variant's attack; to look it up takes long for each row."""

    attack: str
    may_leave_rows_out: bool
    asks_all_models_alike: bool
    leaves_greedy: bool

    @classmethod
    def of(cls, variant: str, attacked: Sequence[TableRow]) -> "_VariantKind":
        return cls(
            attack_of(variant),
            may_leave_rows_out(variant),
            asks_all_models_alike(variant),
            leaves_greedy(variant, attacked),
        )


class _AttackedRows:
    """Rows of one model and split under attacks."""

    def __init__(self, rows: Sequence[TableRow], *, has_start: bool) -> None:
        self._has_start = has_start
        variants = dict.fromkeys(row.variant for row in rows)
        self.kinds = {variant: _VariantKind.of(variant, rows) for variant in variants}
        self._first_points = {attack_of(item): item for item in variants if is_before_attack(item)}
        self._of_run: dict[tuple[str, int], dict[str, TableRow]] = defaultdict(dict)
        self._of_kind: dict[str, dict[str, TableRow]] = defaultdict(dict)
        self._of_any: dict[str, TableRow] = {}
        for row in rows:
            self._of_run[row.run_id, row.epoch].setdefault(row.variant, row)
            self._of_kind[row.kind].setdefault(row.variant, row)
            self._of_any.setdefault(row.variant, row)
        attacked_runs = {(row.run_id, row.epoch) for row in rows if row.kind == "run"}
        self._only_run = attacked_runs.pop() if len(attacked_runs) == 1 else None
        """The run and epoch that were attacked; None if there are several or none."""

    def _own(self, plain: TableRow) -> Mapping[str, TableRow]:
        """The rows of the same model by variant."""
        if plain.kind == "run":
            return self._of_run.get((plain.run_id, plain.epoch), {})
        # Start and retain models have a record of their own for each attack.
        return self._of_kind.get(plain.kind, {})

    def asked_alike(self, plain: TableRow) -> dict[str, TableRow]:
        """Return by variant a row of an evaluation that asks the rows that this model was asked."""
        own = self._own(plain)
        if plain.kind == "run" and not self._is_start(plain):
            return dict(own)
        # The start model need not be attacked itself.
        others = {
            variant: row
            for variant, row in self._of_any.items()
            if self.kinds[variant].asks_all_models_alike
        }
        if plain.kind == "fine-tuned" and self._only_run is not None:
            # What one model has lost is what the start model knows of the rows that it was asked.
            others |= self._of_run[self._only_run]
        return others | dict(own)

    def _is_start(self, plain: TableRow) -> bool:
        """Whether a run stands for the start model, which has no row of its own."""
        return plain.epoch == 0 and not self._has_start

    def has_point_before(self, plain: TableRow, kind: _VariantKind) -> bool:
        """Whether an attack has evaluated the model before its first step.

        Without a method at inference time, which is gone at this point already if the attack runs
        the bare weights.
        """
        return not plain.at_inference and self._first_points.get(kind.attack) in self._own(plain)


@dataclass(frozen=True)
class _Asked:
    """What a model is asked under an attack."""

    row: TableRow
    """Of an evaluation that asks the same rows."""
    kind: _VariantKind
    unreported: Mapping[str, tuple[Measure, str]]
    """See `_unreported`."""


def _key(plain: TableRow, asked: _Asked) -> str:
    """Return the key of a row; empty if one of the other rows has none."""
    if not plain.key or not asked.row.key:
        return ""
    # The keys of the other rows cover only the metrics of the benchmark.
    unreported = [
        column + _code_of(type(measure.metric))
        for column, (measure, _) in sorted(asked.unreported.items())
    ]
    # The attack may be a plug-in that was not installed before.
    declared = f"{asked.kind.may_leave_rows_out} {asked.kind.asks_all_models_alike}"
    text = " ".join([_own_code(), plain.key, asked.row.key, declared, *unreported])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@lru_cache(maxsize=1)
def _own_code() -> str:
    """Return the digest of this module, which decides which rows were asked."""
    file = Path(__file__)
    return code_digest([(file.name, file.read_bytes())])


@lru_cache(maxsize=64)
def _code_of(metric: type[Metric]) -> str:
    return plugin_code_digest(metric)


def _unreported(row: TableRow) -> dict[str, tuple[Measure, str]]:
    """Return by column the metrics of greedy answers that samples need and a row lacks."""
    unreported: dict[str, tuple[Measure, str]] = {}
    for measure, name in greedy_measures(row.schema).values():
        column = measure.column(name, "forget").name
        if column not in row.metrics:
            unreported[column] = measure, name
    return unreported


def _numbers_before(
    plain: TableRow, asked: _Asked, selections: "_Selections", observed: Observed
) -> Numbers:
    is_whole = not asked.kind.may_leave_rows_out
    evaluation = observed(plain)
    if evaluation is None:
        return Numbers(plain.metrics if is_whole else {})
    places: Places = {name: np.arange(_size(part)) for name, part in evaluation.sets.items()}
    if not is_whole:
        places = selections.places(evaluation, plain, asked)
        is_whole = bool(places) and all(
            of_set is not None and len(of_set) == _size(evaluation.sets[name])
            for name, of_set in places.items()
        )
    measures = asked.unreported if is_whole else {**plain.schema.measures, **asked.unreported}
    numbers: dict[str, float | None] = dict(plain.metrics) if is_whole else {}
    for column, (measure, name) in measures.items():
        of_set = places.get(name)
        if of_set is None or measure.metric.reads & UNDER_ATTACK:
            continue
        with suppress(PluginError):  # The table warns of a metric that fails.
            values = measure.per_example(evaluation.sets[name])
            numbers[column] = None if values is None else measure.number(values[of_set])
    return Numbers.finite(numbers)


class _Selections:
    """The rows that attacks ask, each attack's read once for all models that are asked alike."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed
        self._known: dict[object, Places] = {}

    def places(self, whole: Evaluation, plain: TableRow, asked: _Asked) -> Places:
        """Return the places in `whole`, the evaluation of `plain`, of the rows that were asked."""
        key: tuple[object, ...] = (plain.panel, asked.kind.attack)
        key += tuple((name, _size(part)) for name, part in whole.sets.items())
        if not asked.kind.asks_all_models_alike:
            key += (asked.row.run_id, asked.row.epoch)
        if key not in self._known:
            evaluation = self._observed(asked.row)
            if evaluation is None:
                return {}  # The observations of another model may tell.
            self._known[key] = {
                name: asked_places(whole.sets[name], part)
                for name, part in evaluation.sets.items()
                if name in whole.sets
            }
        return self._known[key]


def asked_places(whole: SetEvaluation, asked: SetEvaluation) -> IntArray | None:
    """Return the places in `whole` of the rows that were asked; None if they cannot be told.

    Records from before places were stored have their rows in the same order. Rows with the same
    question are told apart by their reference, which an attack may shorten at its beginning.
    """
    if asked.places is not None:
        at_places = [whole.questions[i : i + 1] for i in asked.places.tolist()]
        is_of_these_rows = at_places == [(question,) for question in asked.questions]
        return asked.places if is_of_these_rows else None
    if asked.questions == whole.questions:
        return np.arange(_size(whole))
    return _places_by_text(whole, asked)


def _places_by_text(whole: SetEvaluation, asked: SetEvaluation) -> IntArray | None:
    places_of_question: dict[str, list[int]] = defaultdict(list)
    for place, question in enumerate(whole.questions):
        places_of_question[question].append(place)
    rows_of_question: dict[str, list[int]] = defaultdict(list)
    for row, question in enumerate(asked.questions):
        rows_of_question[question].append(row)

    places = np.full(_size(asked), -1, np.int64)
    for question, rows in rows_of_question.items():
        candidates = places_of_question.get(question, [])
        if len(candidates) != len(rows):
            candidates = _places_by_reference(whole, candidates, asked, rows)
        if len(candidates) != len(rows):
            return None
        places[rows] = candidates
    return places if (places >= 0).all() else None


def _places_by_reference(
    whole: SetEvaluation, candidates: Sequence[int], asked: SetEvaluation, rows: Sequence[int]
) -> list[int]:
    """Return the candidates whose references end as those of the asked rows, in their order.

    Empty if a row has no candidate, or if other candidates would do as well.
    """
    if not whole.references or not asked.references:
        return []
    endings = [asked.references[row].strip() for row in rows]
    first = _matched(candidates, endings, whole.references)
    last = _matched(candidates[::-1], endings[::-1], whole.references)[::-1]
    return first if first == last else []


def _matched(
    candidates: Sequence[int], endings: Sequence[str], references: Sequence[str]
) -> list[int]:
    """Give each ending, in order, the next candidate whose reference ends so; empty without one."""
    remaining = iter(candidates)
    found: list[int] = []
    for ending in endings:
        place = next((i for i in remaining if references[i].strip().endswith(ending)), None)
        if place is None:
            return []
        found.append(place)
    return found


def _size(part: SetEvaluation) -> int:
    return len(part.answer_loss)


@dataclass(frozen=True)
class NumbersBefore:
    """Looks up the numbers of models before attacks."""

    rows: Mapping[tuple[str, int, str], TableRow]
    """`before_rows` by run, epoch and variant."""

    @classmethod
    def of(cls, rows: Iterable[TableRow]) -> "NumbersBefore":
        """Index the rows that `before_rows` returns."""
        return cls({(row.run_id, row.epoch, row.variant): row for row in rows})

    def __call__(self, plain: TableRow, variant: str) -> Mapping[str, float | None]:
        """Return the numbers of a plain row on the rows that were asked under a variant."""
        return self.rows.get((plain.run_id, plain.epoch, variant), plain).metrics


def greedy_measures(schema: BenchmarkSchema) -> dict[str, tuple[Measure, str]]:
    """Return the metric and set of greedy answers that each column of samples is compared with.

    The metric may be one that the benchmark does not report. It is computed from the observations
    then.
    """
    counterparts: dict[str, tuple[Measure, str]] = {}
    for measure in schema.plan.measures:
        name = measure.metric.greedy
        if not name or UNDER_ATTACK.isdisjoint(measure.metric.reads):
            continue
        try:
            kind: type[Metric] = load("metrics", name)
            unreported = Measure(name.replace("-", "_"), kind(), measure.sets)
        except (PluginError, ValidationError):  # it is not installed, or needs settings
            continue
        for of_set in schema.sets("forget")[:1]:
            if of_set in measure.sets:
                reported = (
                    item
                    for item in schema.plan.measures
                    if type(item.metric) is kind and of_set in item.sets
                )
                counterpart = next(reported, unreported)
                counterparts[f"{measure.name}_{of_set}"] = counterpart, of_set
    return counterparts


def measure_of(schema: BenchmarkSchema, column: str) -> tuple[Measure, str] | None:
    """Return the metric and set of a column, also of one in `greedy_measures`; None without one."""
    if column in schema.measures:
        return schema.measures[column]
    for measure, name in greedy_measures(schema).values():
        if measure.column(name, "forget").name == column:
            return measure, name
    return None
