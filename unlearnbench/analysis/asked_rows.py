"""Plain numbers of models on the rows that an attack asked.

A prompt attack may leave rows out: not every question has a paraphrase, and a text that is
continued has no second turn. Its numbers are then of some rows, and the plain numbers of the table
are of all rows. Their difference would contain the difference between the rows.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from unlearnbench.analysis.lasting import attack_class, attack_of, greedy_measures
from unlearnbench.api.attack import Attack
from unlearnbench.api.metric import Measure, number
from unlearnbench.api.observations import Evaluation, SetEvaluation
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow


class PlainNumbers:
    """A `lasting.PlainNumber` that reads records' observations if an attack may leave rows out."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._records = {record.id: record for record in records}
        self._asks_all: dict[tuple[object, ...], bool] = {}
        """By `_selection_key`."""
        self._values: dict[tuple[object, ...], float | None] = {}
        """By plain record, epoch, column and `_selection_key`."""

    def __call__(self, plain: TableRow, attacked: TableRow, column: str) -> float | None:
        """Return a number of `plain` on the rows that were asked in `attacked`.

        Returns:
            None if rows were or may have been left out, and the number on the other rows is not
            known: it is not a mean over rows of one set, it is undefined for a row that was asked,
            or the records have no observations.

        Raises:
            DamagedError: If a file cannot be read.
        """
        if column in plain.metrics and self._asks_all_rows(plain, attacked):
            return plain.metrics.get(column)
        key = plain.run_id, plain.epoch, column, _selection_key(attacked)
        if key not in self._values:
            self._values[key] = self._on_asked_rows(plain, attacked, column)
        return self._values[key]

    def _asks_all_rows(self, plain: TableRow, attacked: TableRow) -> bool:
        """Whether the attack is known to have asked all rows of the plain evaluation.

        It is not known of records without observations, such as the lines of a leaderboard.
        """
        kind = attack_class(attack_of(attacked.variant))
        if kind is not None and kind.selects is Attack.selects:
            return True
        key = _selection_key(attacked)
        if key not in self._asks_all:
            whole, asked = self._evaluations(plain, attacked)
            if whole is None or asked is None:
                return False  # the observations of another model may tell
            self._asks_all[key] = all(
                len(part.questions) == len(whole.sets[name].questions)
                for name, part in asked.sets.items()
                if name in whole.sets
            )
        return self._asks_all[key]

    def _on_asked_rows(self, plain: TableRow, attacked: TableRow, column: str) -> float | None:
        measured = plain.schema.measures.get(column) or _greedy_measure(plain.schema, column)
        whole, asked = self._evaluations(plain, attacked)
        if measured is None or whole is None or asked is None:
            return None
        measure, name = measured
        if name not in whole.sets or name not in asked.sets:
            return None
        values = measure.per_example(whole.sets[name])
        places = asked_places(whole.sets[name], asked.sets[name])
        if values is None or places is None:
            return None
        return number(measure.metric.value(values[places]), f"`value` of {measure.name}")

    def _evaluations(
        self, plain: TableRow, attacked: TableRow
    ) -> tuple[Evaluation | None, Evaluation | None]:
        whole = self._records[plain.run_id].evaluations.get(plain.epoch)
        stored = self._records[attacked.run_id].attacked_evaluations
        return whole, stored.get((attacked.epoch, attacked.variant))


def _greedy_measure(schema: BenchmarkSchema, column: str) -> tuple[Measure, str] | None:
    """Return the metric and set of a column that the benchmark does not report.

    Sampled answers are compared with such a number of the greedy answers.
    """
    for measure, name in greedy_measures(schema).values():
        if measure.column(name, "forget").name == column:
            return measure, name
    return None


def _selection_key(attacked: TableRow) -> tuple[object, ...]:
    """Return a key that is equal for evaluations in which an attack asks the same rows."""
    attack = attack_of(attacked.variant)
    kind = attack_class(attack)
    if kind is None or kind.reads_answers:  # rows may be selected by the model's own answers
        return attacked.panel, attack, attacked.run_id, attacked.epoch
    return attacked.panel, attack


def asked_places(whole: SetEvaluation, asked: SetEvaluation) -> Sequence[int] | None:
    """Return the places in `whole` of the rows that were asked; None if they cannot be told apart.

    Both have their rows in the same order. Rows with the same question are told apart by their
    reference, which an attack may shorten at its beginning.
    """
    by_question: dict[str, list[int]] = {}
    for place, question in enumerate(whole.questions):
        by_question.setdefault(question, []).append(place)
    wanted: dict[str, list[int]] = {}
    for place, question in enumerate(asked.questions):
        wanted.setdefault(question, []).append(place)

    places = np.full(len(asked.questions), -1)
    for question, asked_rows in wanted.items():
        candidates = by_question.get(question, [])
        if len(candidates) != len(asked_rows):
            candidates = _by_reference(whole, candidates, asked, asked_rows)
        if len(candidates) != len(asked_rows):
            return None
        places[asked_rows] = candidates
    return [int(place) for place in places]


def _by_reference(
    whole: SetEvaluation, candidates: Sequence[int], asked: SetEvaluation, asked_rows: Sequence[int]
) -> list[int]:
    """Return the candidates whose references end as those of the asked rows, in their order."""
    if not whole.references or not asked.references:
        return []
    remaining = iter(candidates)
    found: list[int] = []
    for row in asked_rows:
        ending = asked.references[row].strip()
        place = next((i for i in remaining if whole.references[i].strip().endswith(ending)), None)
        if place is None:
            return []
        found.append(place)
    return found
