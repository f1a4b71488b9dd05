"""Plain numbers of models on the rows that an attack asked: what the models knew before the attack.

An attack may leave rows out: not every question has a paraphrase, and a text that is continued has
no second turn. Its numbers are then means over some rows, while the plain numbers of the table are
means over all rows. The difference of the two would contain the difference between the rows.

`before_rows` computes the plain numbers again if that matters:

1. For each model and attack, find an evaluation that asked the rows that the attack asks this
   model (`_AttackedPanel`). The model itself need not have been attacked.
2. Find the places of these rows in the model's plain evaluation (`_AskedPlaces`).
3. Compute the metrics from the plain observations at these places (`_numbers_before`).
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from unlearnbench.api.benchmark import SplitKey
from unlearnbench.api.metric import UNDER_ATTACK, Metric
from unlearnbench.api.observations import Evaluation, IntArray
from unlearnbench.base.errors import PluginError
from unlearnbench.results.asked_places import asked_places, row_count
from unlearnbench.results.attack_variants import (
    asked_part,
    asks_all_models_alike,
    is_before_attack,
    leaves_greedy,
    may_leave_rows_out,
)
from unlearnbench.results.code_digest import code_digest, plugin_code_digest
from unlearnbench.results.greedy_counterparts import MeasureOnSet, greedy_measures
from unlearnbench.results.table import Numbers, TableRow

Observed = Callable[[TableRow], Evaluation | None]
"""Reads the observations that the numbers of a row come from; None if there are none."""
NOTHING_KNOWN: Mapping[str, Numbers] = {}
PlacesOfSets = Mapping[str, IntArray | None]
"""By evaluation set, the places of the rows that were asked; None if they cannot be told."""
_OWN_FILES = ("asked_places.py", "asked_rows.py", "greedy_counterparts.py")
"""Files of this folder that decide which rows were asked, and which metrics are computed."""


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
        observed: Reads the observations of any of these rows.
        known: Numbers of an earlier call by `TableRow.key`, which are not computed again.

    Returns:
        A row for each model, epoch and variant whose numbers before the attack may differ from the
        plain row's (`_AttackedPanel.comparisons`). `variant` is the attack's. A number is None if
        it is not known on the rows that were asked: the metric is no mean over the rows of one
        set, or there are no observations.

    Raises:
        DamagedError: If a file cannot be read.
    """
    panels = _attacked_panels(plain, attacked)
    asked = _AskedPlaces(observed)
    rows_before: list[TableRow] = []
    for row in plain:
        if row.panel not in panels:
            continue
        # All points of an attack ask the same rows, so their numbers are computed once.
        numbers_of_attack: dict[str, Numbers] = {}
        for comparison in panels[row.panel].comparisons(row):
            key = _key(comparison)
            attack = comparison.kind.attack
            if attack not in numbers_of_attack:
                numbers = known.get(key)
                if numbers is None:
                    numbers = _numbers_before(comparison, asked, observed)
                numbers_of_attack[attack] = _defined(numbers)
            numbers = numbers_of_attack[attack]
            rows_before.append(replace(row, variant=comparison.variant, metrics=numbers, key=key))
    return tuple(rows_before)


def _defined(numbers: Numbers) -> Numbers:
    """Leave out undefined numbers. A stored row has a gap for each column that it lacks."""
    return Numbers({column: value for column, value in numbers.items() if value is not None})


@dataclass(frozen=True)
class _VariantKind:
    """What the attack of a variant declares. To look it up for each row would take long."""

    attack: str
    """Its name, see `asked_part`."""
    may_leave_rows_out: bool
    asks_all_models_alike: bool
    leaves_greedy: bool

    @classmethod
    def of(cls, variant: str, attacked: Sequence[TableRow]) -> "_VariantKind":
        """Look up the attack of a variant. `attacked` has all rows under attacks."""
        return cls(
            asked_part(variant),
            may_leave_rows_out(variant),
            asks_all_models_alike(variant),
            leaves_greedy(variant, attacked),
        )


@dataclass(frozen=True)
class _Comparison:
    """One model, before an attack and under it, whose numbers before have to be computed."""

    plain: TableRow
    """The model's plain numbers, on all rows."""
    variant: str
    kind: _VariantKind
    asking: TableRow
    """Row of an evaluation under the attack that asked the rows that this model is asked. It may be
    another model's."""
    counterparts: Mapping[str, MeasureOnSet]
    """By column, metrics of greedy answers that `plain` lacks, see `_missing_counterparts`."""


class _AttackedPanel:
    """Rows of one model and split under attacks."""

    def __init__(self, rows: Sequence[TableRow], *, has_start: bool) -> None:
        """Index the rows.

        Args:
            rows: All rows under attacks of the model and split.
            has_start: Whether the start model has a plain row.
        """
        self._has_start = has_start
        variants = dict.fromkeys(row.variant for row in rows)
        self._kinds = {variant: _VariantKind.of(variant, rows) for variant in variants}
        self._first_points = {
            asked_part(variant): variant for variant in variants if is_before_attack(variant)
        }
        """By attack that trains, the variant before its first step: `relearning@0`."""

        # By variant, the first row of each run and epoch, of each kind of model, and of any model.
        self._by_run: dict[tuple[str, int], dict[str, TableRow]] = defaultdict(dict)
        self._by_kind: dict[str, dict[str, TableRow]] = defaultdict(dict)
        self._by_variant: dict[str, TableRow] = {}
        for row in rows:
            self._by_run[row.run_id, row.epoch].setdefault(row.variant, row)
            self._by_kind[row.kind].setdefault(row.variant, row)
            self._by_variant.setdefault(row.variant, row)

        attacked_runs = {(row.run_id, row.epoch) for row in rows if row.kind == "run"}
        self._only_run = attacked_runs.pop() if len(attacked_runs) == 1 else None
        """The run and epoch that were attacked; None if there are several or none."""

    def comparisons(self, plain: TableRow) -> Iterator[_Comparison]:
        """Yield a comparison for each variant whose numbers before the attack have to be computed.

        The plain row's numbers do not serve if the attack may leave rows out. They also do not
        serve if it only samples answers, and the plain row lacks the greedy answers' metric that
        samples are compared with. An attack that trains has evaluated the model before its first
        step, so that nothing has to be computed for it.
        """
        for variant, asking in self._asking_rows(plain).items():
            kind = self._kinds[variant]
            if self._has_point_before(plain, kind):
                continue
            counterparts = _missing_counterparts(plain) if kind.leaves_greedy else {}
            if kind.may_leave_rows_out or counterparts:
                yield _Comparison(plain, variant, kind, asking, counterparts)

    def _asking_rows(self, plain: TableRow) -> dict[str, TableRow]:
        """Return, by variant, a row of an evaluation that asked the rows that this model is asked.

        For a run, these are its own rows under attacks. The numbers of retain and start models are
        needed even if they were not attacked themselves. Rows of other models then stand in.
        """
        own = self._own_rows(plain)
        is_start = plain.kind == "fine-tuned"
        # Without a plain row of the start model, a run before its first epoch stands for it.
        stands_for_start = plain.kind == "run" and plain.epoch == 0 and not self._has_start
        if plain.kind == "run" and not stands_for_start:
            return dict(own)
        asking = {
            variant: row
            for variant, row in self._by_variant.items()
            if self._kinds[variant].asks_all_models_alike
        }
        if is_start and self._only_run is not None:
            # The only run that was attacked has lost what the start model knows of the run's rows,
            # even if these rows depend on the run's own answers.
            asking |= self._by_run[self._only_run]
        return asking | dict(own)

    def _own_rows(self, plain: TableRow) -> Mapping[str, TableRow]:
        """Return the rows under attacks of the same model, by variant."""
        if plain.kind == "run":
            return self._by_run.get((plain.run_id, plain.epoch), {})
        # Each attack on a start or retain model has a record of its own, with another id.
        return self._by_kind.get(plain.kind, {})

    def _has_point_before(self, plain: TableRow, kind: _VariantKind) -> bool:
        """Whether an attack has evaluated the model itself before its first step.

        For a method at inference time, the evaluation before the first step may be of another
        model: if the attack runs the bare weights, the method is already gone.
        """
        if plain.at_inference:
            return False
        return self._first_points.get(kind.attack) in self._own_rows(plain)


def _attacked_panels(
    plain: Iterable[TableRow], attacked: Iterable[TableRow]
) -> dict[tuple[str, SplitKey], _AttackedPanel]:
    """Group the rows under attacks by model and split."""
    rows_of_panel: dict[tuple[str, SplitKey], list[TableRow]] = defaultdict(list)
    for row in attacked:
        rows_of_panel[row.panel].append(row)
    with_start = {row.panel for row in plain if row.kind == "fine-tuned"}
    return {
        panel: _AttackedPanel(rows, has_start=panel in with_start)
        for panel, rows in rows_of_panel.items()
    }


def _missing_counterparts(plain: TableRow) -> dict[str, MeasureOnSet]:
    """Return the greedy answers' metrics that samples are compared with and the table lacks.

    Args:
        plain: A plain row.

    Returns:
        Metric and set by column: ROUGE on `forget` for `rouge_forget`, if the benchmark does not
        report it.
    """
    missing: dict[str, MeasureOnSet] = {}
    for measure, set_name in greedy_measures(plain.schema).values():
        column = measure.column(set_name, "forget").name
        if column not in plain.metrics:
            missing[column] = measure, set_name
    return missing


def _key(comparison: _Comparison) -> str:
    """Hash everything that the numbers before an attack depend on.

    Returns:
        `TableRow.key` of the new row. Empty if one of the rows that it depends on has none.
    """
    plain, asking, kind = comparison.plain, comparison.asking, comparison.kind
    if not plain.key or not asking.key:
        return ""
    # The attack may be a plug-in that was not installed before.
    declared = f"{kind.may_leave_rows_out} {kind.asks_all_models_alike}"
    # The keys of rows cover only the metrics that the benchmark reports.
    counterparts = [
        column + _code_of(type(measure.metric))
        for column, (measure, _) in sorted(comparison.counterparts.items())
    ]
    text = " ".join([_own_code(), plain.key, asking.key, declared, *counterparts])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@lru_cache(maxsize=1)
def _own_code() -> str:
    """Return the digest of the code that decides what is computed, on which rows."""
    folder = Path(__file__).parent
    return code_digest((name, (folder / name).read_bytes()) for name in _OWN_FILES)


@lru_cache(maxsize=64)
def _code_of(metric: type[Metric]) -> str:
    return plugin_code_digest(metric)


def _numbers_before(comparison: _Comparison, asked: "_AskedPlaces", observed: Observed) -> Numbers:
    """Compute a model's plain numbers on the rows that it is asked under an attack."""
    plain = comparison.plain
    may_leave_rows_out = comparison.kind.may_leave_rows_out
    evaluation = observed(plain)
    if evaluation is None:
        # Without observations, the numbers of all rows are the only ones.
        return Numbers({} if may_leave_rows_out else plain.metrics)

    if may_leave_rows_out:
        places = asked.places(evaluation, comparison)
        asks_all_rows = bool(places) and all(
            of_set is not None and len(of_set) == row_count(evaluation.sets[set_name])
            for set_name, of_set in places.items()
        )
    else:
        places = {
            set_name: np.arange(row_count(of_set)) for set_name, of_set in evaluation.sets.items()
        }
        asks_all_rows = True

    if asks_all_rows:
        numbers: dict[str, float | None] = dict(plain.metrics)
        measures = comparison.counterparts
    else:
        numbers = {}
        measures = {**plain.schema.measures, **comparison.counterparts}
    for column, (measure, set_name) in measures.items():
        of_set = places.get(set_name)
        if of_set is None or measure.metric.reads & UNDER_ATTACK:
            continue
        with suppress(PluginError):  # The table warns of a metric that fails.
            values = measure.per_example(evaluation.sets[set_name])
            numbers[column] = None if values is None else measure.number(values[of_set])
    return Numbers.finite(numbers)


class _AskedPlaces:
    """Places of the rows that attacks ask, found once for all models that are asked alike."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed
        self._known: dict[object, PlacesOfSets] = {}

    def places(self, whole: Evaluation, comparison: _Comparison) -> PlacesOfSets:
        """Return the places in a plain evaluation of the rows that the model is asked.

        Args:
            whole: Plain evaluation of the model.
            comparison: The model and the attack.

        Returns:
            Places by set. Empty if the evaluation under the attack has no observations.
        """
        asking = comparison.asking
        row_counts = tuple((name, row_count(of_set)) for name, of_set in whole.sets.items())
        key: tuple[object, ...] = (comparison.plain.panel, comparison.kind.attack, *row_counts)
        if not comparison.kind.asks_all_models_alike:
            key += (asking.run_id, asking.epoch)
        if key not in self._known:
            evaluation = self._observed(asking)
            if evaluation is None:
                # Not kept as known, since another model's observations may be there.
                return {}
            self._known[key] = {
                name: asked_places(whole.sets[name], of_set)
                for name, of_set in evaluation.sets.items()
                if name in whole.sets
            }
        return self._known[key]


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
