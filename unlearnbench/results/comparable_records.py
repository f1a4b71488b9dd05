"""Check that the numbers of records may stand in one table.

Numbers do not compare if they come from different evaluation profiles, if some runs count epochs
and others steps, or if models of one panel were evaluated in different precisions.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from unlearnbench.api.benchmark import SplitKey, split_order, split_percent
from unlearnbench.base.errors import RecordError
from unlearnbench.config.unit import Unit
from unlearnbench.evaluation.precision import distinct_precisions
from unlearnbench.results.records import Record


def check_comparable_records(records: Iterable[Record]) -> None:
    """Check that evaluated records may be compared with each other.

    Messages name the first record of each kind, by id.

    Raises:
        RecordError: If their profiles, units or precisions differ.
    """
    evaluated = [record for record in records if record.epochs]
    evaluated.sort(key=lambda record: record.id)
    _check_profiles(evaluated)
    _check_units(evaluated)
    _check_precisions(evaluated)


def _check_profiles(evaluated: Sequence[Record]) -> None:
    """Raise RecordError if records were evaluated by different profiles."""
    first_ids: dict[str, str] = {}
    for record in evaluated:
        first_ids.setdefault(record.profile, record.id)
    if len(first_ids) > 1:
        listed = ", ".join(
            f"{profile} (record {id_})" for profile, id_ in sorted(first_ids.items())
        )
        raise RecordError(
            f"records of different evaluation rules do not compare: {listed}; "
            "report them from separate folders"
        )


def _check_units(evaluated: Sequence[Record]) -> None:
    """Raise RecordError if some runs count epochs and others steps."""
    first_ids: dict[Unit, str] = {}
    for record in evaluated:
        # A run that trains nothing has a single evaluation, and may be in sweeps of both units.
        is_trained = record.kind == "run" and record.learning_rate is not None
        if is_trained and record.spec.keys() & {"epochs", "steps"}:
            first_ids.setdefault(Unit.of_spec(record.spec), record.id)
    if len(first_ids) > 1:
        listed = " and ".join(
            f"{unit.plural} (record {first_ids[unit]})" for unit in Unit if unit in first_ids
        )
        raise RecordError(
            f"runs by {listed} do not stand in one table, because its numbers are by one of the "
            "two; report them from separate folders"
        )


def _check_precisions(evaluated: Sequence[Record]) -> None:
    """Raise RecordError if models of one panel were evaluated in different precisions."""
    ids_of_panel: dict[tuple[str, SplitKey], dict[str | None, str]] = defaultdict(dict)
    # From the last to the first, so that the first id of a precision is the one that stays.
    for record in reversed(evaluated):
        ids_of_panel[record.panel][record.precision] = record.id
    for panel in sorted(ids_of_panel, key=_panel_order):
        model, split = panel
        id_of_precision = ids_of_panel[panel]
        if distinct_precisions(id_of_precision):
            listed = ", ".join(f"{name} (record {id_})" for name, id_ in id_of_precision.items())
            raise RecordError(
                f"{model}, {split_percent(split)}: records of different precisions do not "
                f"compare: {listed}; report them from separate folders, or as models of two names"
            )


def _panel_order(panel: tuple[str, SplitKey]) -> tuple[object, ...]:
    model, split = panel
    return model, split_order(split)
