"""Find the runs that a name on the command line stands for: a method, a setting or a run."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from unlearnbench.analysis.best_settings import Best, Panel
from unlearnbench.analysis.contender import Contender
from unlearnbench.analysis.ended_early import EarlyEnd
from unlearnbench.analysis.results import Results
from unlearnbench.analysis.settings import is_evidence
from unlearnbench.base.errors import RecordError, did_you_mean
from unlearnbench.base.number_text import float_text
from unlearnbench.results.outcomes import outcome
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow


def find_contender(name: str, label: str, results: Results, variant: str = "") -> Contender:
    """Find the runs that a name stands for in a sweep.

    Args:
        name: A method or a setting's label, each with an optional ` lr RATE` (`npo lr 1e-05`), or a
            run's id or the beginning of one.
        label: The side's name in the output.
        results: Of the sweep.
        variant: Attack under which the runs are compared. What a run keeps stays that of its plain
            evaluation.

    Raises:
        RecordError: If there are no such runs. The message lists the methods.
    """
    name = " ".join(name.split())
    runs_by_name = _runs_by_name(results)
    run_ids = runs_by_name.get(name)
    if not run_ids:
        run_ids = _ids_that_begin_with(name, results)
        is_ambiguous_or_unknown = len(run_ids) != 1
        if is_ambiguous_or_unknown:
            raise _not_found(name, label, results, runs_by_name)

    rows = _under(results, variant) if variant else results.rows
    own_rows = tuple(row for row in rows if row.kind == "run" and row.run_id in run_ids)
    if not own_rows:
        raise RecordError(f"{label}: no run of {name!r} was evaluated under {variant}")
    ends = results.ends
    if variant:
        ends = (*ends, *_not_attacked(results, variant))
    is_one_run = name in run_ids or name not in runs_by_name
    if is_one_run:
        # It stands for itself, whatever became of the other seeds of its setting.
        ends = tuple(end for end in ends if end.run_id in run_ids)
    return Contender(
        label,
        own_rows,
        rows,
        records={record.id: record for record in results.records},
        chosen={panel.panel: chosen_for(panel, run_ids) for panel in results.panels},
        variant=variant,
        ends=ends,
    )


def _runs_by_name(results: Results) -> dict[str, set[str]]:
    """List the ids of the runs that each name stands for."""
    runs_by_name: dict[str, set[str]] = defaultdict(set)
    for row in results.rows:
        if row.kind != "run":
            continue
        rate = _rate_suffix(row.learning_rate)
        for name in (row.family, row.method, row.family + rate, row.method + rate, row.run_id):
            runs_by_name[name].add(row.run_id)
    for panel in results.panels:
        for best in panel.best:
            if best.choice is not None and best.label:
                runs_by_name[best.name] |= best.choice.trials | best.choice.runs
    return dict(runs_by_name)


def _rate_suffix(learning_rate: float | None) -> str:
    """Return ` lr 1e-05`; empty for a method at inference time."""
    return "" if learning_rate is None else f" lr {float_text(learning_rate)}"


def _ids_that_begin_with(name: str, results: Results) -> set[str]:
    """Return the ids of evaluated runs that begin with a name; none for an empty name."""
    if not name:
        return set()
    return {row.run_id for row in results.rows if row.kind == "run" and row.run_id.startswith(name)}


def _not_found(
    name: str, label: str, results: Results, known_names: Collection[str]
) -> RecordError:
    """Return the error for a name without a run that was evaluated."""
    lost = [outcome(record) for record in results.without_result if _is_called(record, name)]
    if lost:
        return RecordError(
            f"{label}: no run of {name!r} was evaluated: {'; '.join(map(str, lost))}"
        )
    return RecordError(
        f"{label}: no method, setting or run {name!r}{did_you_mean(name, known_names) or ';'} "
        f"methods: {', '.join(results.families) or 'none was evaluated'}"
    )


def _is_called(record: Record, name: str) -> bool:
    """Whether `name` stands for a run without a row, as in `find_contender`."""
    names = (record.method, record.method + _rate_suffix(record.learning_rate))
    # No id begins with a blank, so an empty name stands for no run.
    return name in names or record.id.startswith(name or " ")


def chosen_for(panel: Panel, run_ids: Collection[str]) -> tuple[Best, ...]:
    """List the choices on a panel that some runs stand for.

    Runs stand for a choice if they report it, or if they are all trials that it was made from. For
    example, `npo lr 1e-05` may be a trial that was not chosen, and is then compared as it is.
    """
    evaluated = {row.run_id for row in panel.rows}
    chosen: list[Best] = []
    for best in panel.best:
        if best.choice is None:
            continue
        trials = best.choice.trials & evaluated
        has_all_trials = bool(trials) and trials <= set(run_ids)
        reports_choice = not best.choice.runs.isdisjoint(run_ids)
        if has_all_trials or reports_choice:
            chosen.append(best)
    return tuple(chosen)


def _under(results: Results, variant: str) -> tuple[TableRow, ...]:
    """Return the rows of a sweep, with the runs under an attack in place of the plain runs.

    What a run keeps stays that of its plain evaluation, because methods are compared as they would
    be published.
    """
    plain = {(row.run_id, row.epoch): row for row in results.rows if row.kind == "run"}
    rows = [row for row in results.rows if row.kind != "run"]
    for row in results.attacked:
        plain_row = plain.get((row.run_id, row.epoch))
        if row.variant == variant and plain_row is not None:
            kept = {row.headline.kept.column: plain_row.kept}
            rows.append(replace(row, metrics={**row.metrics, **kept}))
    return tuple(rows)


def _not_attacked(results: Results, variant: str) -> Iterator[EarlyEnd]:
    """Yield the runs that an attack lacks at an epoch at which it has other runs of their setting.

    A mean over the other seeds would hide them. Failed runs say nothing about their setting.
    """
    attacked = {(row.run_id, row.epoch) for row in results.attacked if row.variant == variant}
    runs = [row for row in results.rows if is_evidence(row)]
    attacked_settings = {
        (*row.place_of_setting, row.epoch) for row in runs if (row.run_id, row.epoch) in attacked
    }
    for row in runs:
        if (row.run_id, row.epoch) in attacked:
            continue
        if (*row.place_of_setting, row.epoch) in attacked_settings:
            yield EarlyEnd(
                row.run_id,
                (*row.panel, row.family, row.learning_rate, row.setting_id),
                row.seed,
                due=frozenset({row.epoch}),
                last=row.epoch - 1,
                text=f"{variant} did not attack seed {row.seed} at {row.when}",
            )


def with_retain_term(name: str, families: Sequence[str]) -> str:
    """Return `npo+nll` for `npo`, also before ` lr RATE`, if the method ran only in that form.

    Args:
        name: As in `find_contender`.
        families: Methods as they ran, each with its retain term. A method whose runs all failed is
            one of them: the numbers of another form would be taken for its own.

    Raises:
        RecordError: If the method ran in several forms. The message names them.
    """
    method, lr, rate = " ".join(name.split()).partition(" lr ")
    forms = [family for family in families if family.partition("+")[0] == method]
    if method in families or not forms:
        return name
    if len(forms) > 1:
        raise RecordError(f"{name!r} ran in several forms: {', '.join(forms)}; name one of them")
    return forms[0] + lr + rate
