"""`unlearnbench quickstart`, `sweep` and `run`: carry out all runs of a configuration, or one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from unlearnbench.base.console import Console
from unlearnbench.base.errors import UnlearnbenchError, shortened
from unlearnbench.base.garbage_collection import import_torch
from unlearnbench.cli.command import command, flag, new_group, option
from unlearnbench.cli.options import Config, Json, Overrides, Plugins, register_plugins
from unlearnbench.cli.plan import plan_runs

if TYPE_CHECKING:
    from unlearnbench.api.benchmark import Headline
    from unlearnbench.config.plan import Plan
    from unlearnbench.config.run_spec import RunSpec
    from unlearnbench.config.schema import SweepConfig
    from unlearnbench.results.records import Record
    from unlearnbench.results.table import TableRow
    from unlearnbench.sweep.sweep_state import SweepResult

SOME_FAILED = 1
"""Exit code if runs failed."""

app = new_group()

Force = Annotated[bool, flag("--force", "Sweep also if the start model has not learned its rows.")]


@command(app, "quickstart")
def quickstart(
    force: Force = False,
    overrides: Overrides = None,
    plugins: Plugins = None,
    as_json: Json = False,
) -> int:
    """Sweep some methods on a small generated benchmark, in minutes on a laptop.

    This command is short for `unlearnbench sweep quickstart`. To run all methods, use
    `unlearnbench sweep every_method`.

    Examples:
      unlearnbench quickstart
      unlearnbench quickstart --set seeds=[0] --set output=tried
    """
    return sweep("quickstart", force, overrides, plugins, as_json)


@command(app, "sweep")
def sweep(
    config: Config,
    force: Force = False,
    overrides: Overrides = None,
    plugins: Plugins = None,
    as_json: Json = False,
) -> int:
    """Carry out every run of a config. The same command resumes it and skips finished runs.

    The sweep stops before the first run from a start model that has not learned its rows.

    Results go to the folder output/name: report.html, results.csv, records/, plan.json and
    mlflow.db. A config with several benchmarks writes such a folder for each benchmark, and one
    report.html for all of them.

    Examples:
      unlearnbench sweep tofu_tiny --set data.path=~/tofu
      unlearnbench sweep my.yaml --set methods=[ce-u] --set seeds=[0,1,2]
      unlearnbench sweep my.yaml --set models.0.base=./my-model
      unlearnbench sweep my.yaml --plugin my_method.py
    """
    from unlearnbench.config.loader import load_configs

    register_plugins(plugins)
    configs = load_configs(config, overrides or ())
    for settings in configs:
        _check_optimizers(settings)
    codes = [_sweep_one_benchmark(settings, as_json=as_json, force=force) for settings in configs]
    if len(configs) > 1:
        from unlearnbench.report.report import write_across

        page = write_across(Path(configs[0].output))
        Console().note(f"page of all benchmarks  {page}")
    return max(codes)


def _sweep_one_benchmark(settings: SweepConfig, *, as_json: bool, force: bool) -> int:
    """Carry out a sweep, print how it ended, and return the exit code."""
    import_torch()
    from unlearnbench.analysis.selection import read_selection
    from unlearnbench.sweep.driver import run_sweep

    console = Console()
    result = run_sweep(settings, console, force=force)
    # An earlier sweep in this folder may have selected something, and this one not.
    selection = read_selection(result.folder) if settings.select else None
    if as_json:
        document = _result_document(result)
        if selection is not None:
            document["selection"] = selection
        console.print_json(document)
    else:
        if selection is not None:
            _print_selection(selection, settings.headline, console)
        _print_result(result, settings, console)
    return SOME_FAILED if result.failed else 0


def _result_document(result: SweepResult) -> dict[str, Any]:
    """Return how a sweep ended, as JSON."""
    from unlearnbench.analysis.conclusion import read_conclusions
    from unlearnbench.results.outcomes import without_result

    return {
        "folder": str(result.folder),
        "finished": result.finished,
        "collapsed": result.count("collapsed"),
        "stopped": result.count("stopped"),
        "failed": result.failed,
        "found": result.found,
        "without_result": [asdict(outcome) for outcome in without_result(result.ends)],
        "no_result": list(result.no_result),
        "conclusions": [asdict(conclusion) for conclusion in read_conclusions(result.folder)],
        "report": str(result.report),
        "csv": str(result.csv),
        "mlflow": result.mlflow_command,
        "seconds": result.seconds,
    }


def _print_result(result: SweepResult, settings: SweepConfig, console: Console) -> None:
    """Print how many runs ended how, which have no result, and where the results are."""
    from unlearnbench.results.outcomes import tally, without_result

    by_status = tally((outcome.status for outcome in result.ends), result.total)
    # Some methods train nothing, so these were not all trained.
    run_now = len(result.ends) - result.found
    console.print(f"{by_status}; {result.found} found, {run_now} run now")
    for outcome in without_result(result.ends):
        console.print(str(outcome))
    console.print(f"page    {result.report}\ntable   {result.csv}")
    if settings.tracking.tracker == "mlflow":
        console.print(f"MLflow  {result.mlflow_command}")


@command(app, "run")
def run(
    config: Config,
    select: Annotated[
        str | None, option("RUN", "Position in the list, or start of the run's id.")
    ] = None,
    overrides: Overrides = None,
    plugins: Plugins = None,
    as_json: Json = False,
) -> None:
    """Carry out one run of a config in this process, without Ray.

    If a config has several runs, choose one with --select. Without this option, the command lists
    the runs and ends with exit code 2.

    Examples:
      unlearnbench run quickstart                # list the runs to choose from
      unlearnbench run quickstart --select 3     # the fourth of them
      unlearnbench run quickstart --select 5f0c  # the one with this id
    """
    import_torch()
    from unlearnbench.base import distributed as group

    group.join_group()
    planned, _ = plan_runs(config, overrides, plugins)
    chosen = _only_run(planned, select)
    _check_optimizers(planned.config)
    from unlearnbench.results.sweep_folder import claim_folder
    from unlearnbench.runs.run import run_single

    console = Console()
    with group.main_process_first():
        folder = claim_folder(planned, extend=True)
    log: Callable[[str], None] = console.note if group.is_main_process() else lambda _: None
    log(f"{chosen.id}  {chosen.title}")
    was_recorded = _record_folder(folder, chosen.id).is_dir()
    record = run_single(chosen, planned.config, folder, log)
    is_main_process = group.is_main_process()
    group.leave_group()
    if is_main_process:
        rows = _rows_of(record, planned, folder)
        if as_json:
            console.print_json(_record_document(record, rows, planned, was_recorded=was_recorded))
        else:
            _print_numbers(rows, planned, console)
            state = f"{record.status} (found, trained before)" if was_recorded else record.status
            console.print(f"{state}: {_record_folder(folder, chosen.id)}")
            if record.error:
                console.print(record.error)


def _record_folder(folder: Path, run_id: str) -> Path:
    return folder / "records" / run_id


def _only_run(planned: Plan, select: str | None) -> RunSpec:
    """Return the run that `--select` names, or the only run of a plan.

    Raises:
        UnlearnbenchError: If there are several such runs, or none. The message lists all runs.
    """
    selected = _selected_runs(planned, select)
    if len(selected) == 1:
        return selected[0]
    lines = [f"{place:4}  {run.id}  {run.title}" for place, run in enumerate(planned.runs)]
    problem = "is more than one run" if selected else "is none of the runs"
    subject = f"--select {shortened(select)[1:-1]}" if select else planned.config.name
    lines.append(f"{subject} {problem}; choose one with --select POSITION or ID")
    raise UnlearnbenchError("\n".join(lines))


def _selected_runs(planned: Plan, select: str | None) -> list[RunSpec]:
    """Return the runs at a position, or with ids that begin with a text. None selects all runs."""
    runs = list(planned.runs)
    if select is None:
        return runs
    # Digits are a position if there is one, because an id may consist of digits, too.
    if select.isdecimal() and int(select) < len(runs):
        return [runs[int(select)]]
    return [run for run in runs if run.id.startswith(select)]


def _record_document(
    record: Record, rows: Sequence[TableRow], planned: Plan, *, was_recorded: bool
) -> dict[str, Any]:
    """Return a run and its numbers after each epoch or step, as JSON."""
    return {
        "id": record.id,
        "status": record.status,
        "found": was_recorded,
        "error": record.error,
        planned.config.unit.plural: [
            {str(row.unit): row.epoch, **dict(row.metrics)} for row in rows
        ],
    }


def _print_numbers(rows: Sequence[TableRow], planned: Plan, console: Console) -> None:
    """Print the two headline metrics of a run after each epoch or step."""
    columns = planned.config.headline.columns
    lines = [(row.epoch, *(row.metrics.get(column) for column in columns)) for row in rows]
    console.table((str(planned.config.unit), *columns), lines)


def _rows_of(record: Record, planned: Plan, folder: Path) -> list[TableRow]:
    """Return the rows of a run, from a table with the start and retain models of the plan.

    Other runs of the folder take no part, because there may be thousands.
    """
    from unlearnbench.results.finalize import finalize
    from unlearnbench.results.records import read_record, read_records
    from unlearnbench.results.rules import named_metrics, rules_of
    from unlearnbench.results.stored_table import read_table

    if planned.references is None:
        # The plan of an earlier version does not name its start and retain models.
        others = [other for other in read_records(folder) if other.kind != "run"]
    else:
        places = [_record_folder(folder, id_) for id_ in planned.references]
        others = [read_record(place) for place in places if place.is_dir()]
    records = [*(other for other in others if other.panel == record.panel), record]
    metrics = named_metrics(planned.config.model_dump(mode="json"))
    table = finalize(records, rules_of(records, metrics), read_table(folder))
    return [row for row in table.rows if row.run_id == record.id]


def _check_optimizers(config: SweepConfig) -> None:
    """Check that the optimizers of all methods are installed. On a cluster, the workers check.

    Raises:
        TrainingError: If the package of an optimizer is missing.
    """
    if config.ray.address is not None:
        return
    optimizers = {config.training_of(name).optimizer for name in config.method_names}
    # AdamW is a part of torch.
    optimizers.discard("adamw")
    if optimizers:
        from unlearnbench.training.optimizers import check_optimizer

        for name in sorted(optimizers):
            check_optimizer(name)


def _print_selection(selection: Mapping[str, Any], headline: Headline, console: Console) -> None:
    """Print the best settings, with their results on seeds that did not choose them.

    Args:
        selection: Contents of `selection.json`.
        headline: The two metrics that are printed.
        console: Where to print.
    """
    from unlearnbench.analysis.selection import owner_of_choices
    from unlearnbench.analysis.wording import listed_seeds

    kept, forgotten = headline.kept, headline.forgotten
    columns = (
        "model",
        "forget",
        "method",
        "learning rate",
        selection.get("unit", "epoch"),
        kept.plain_label,
        "±",
        forgotten.plain_short,
        "±",
        "on seeds",
    )
    lines = [_choice_cells(choice, headline) for choice in selection["choices"]]
    seeds = listed_seeds(selection["chosen_on_seeds"])
    owner = owner_of_choices(selection["choices"])
    title = f"best of each {owner}, chosen on {seeds}, reported on others"
    console.table(columns, lines, title, flowing={"on seeds"}, keys=3)
    console.paragraph(f"rule: {selection['rule']}")
    console.print()


def _choice_cells(choice: Mapping[str, Any], headline: Headline) -> tuple[Any, ...]:
    """Return a line of the table of selected settings. The reason replaces numbers of no choice."""
    from unlearnbench.analysis.selection import entry_name

    reported = choice["reported"]
    numbers: list[float | None] = []
    for metric in (headline.kept, headline.forgotten):
        # Mean and standard deviation over the seeds.
        numbers.extend(reported[metric.column].values())
    seeds = ", ".join(str(seed) for seed in reported["seeds"])
    if choice["why_not"]:
        numbers = [None] * len(numbers)
        seeds = choice["why_not"]
    return (
        choice["model"],
        choice["forget_fraction"],
        choice["setting"] or entry_name(choice),
        choice["learning_rate"],
        choice["epoch"],
        *numbers,
        seeds,
    )
