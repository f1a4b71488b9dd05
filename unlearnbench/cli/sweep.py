"""`unlearnbench quickstart`, `sweep` and `run`: carry out all runs of a configuration, or one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from unlearnbench.base.console import Console
from unlearnbench.base.errors import UnlearnbenchError, shortened
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

SOME_FAILED = 1
"""Exit code where runs failed."""

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

    The sweep stops before its first run if the start model has not learned its rows.

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
    several = load_configs(config, overrides or ())
    for settings in several:
        _check_optimizers(settings)
    codes = [_swept(settings, as_json=as_json, force=force) for settings in several]
    if several[1:]:
        from unlearnbench.report.report import write_across

        page = write_across(Path(several[0].output))
        Console().note(f"page of all benchmarks  {page}")
    return max(codes)


def _swept(settings: SweepConfig, *, as_json: bool, force: bool) -> int:
    """Carry out a sweep and print how it ended."""
    from unlearnbench.analysis.conclusion import read_conclusions
    from unlearnbench.analysis.selection import read_selection
    from unlearnbench.results.outcomes import tally, without_result
    from unlearnbench.sweep import run_sweep

    console = Console()
    result = run_sweep(settings, console, force=force)
    selection = read_selection(result.folder) if settings.select else None
    if as_json:
        summary: dict[str, Any] = {
            "folder": str(result.folder),
            **{s: result.count(s) for s in ("finished", "collapsed", "stopped", "failed")},
            "found": result.found,
            "without_result": [asdict(end) for end in without_result(result.ends)],
            "no_result": list(result.no_result),
            "conclusions": [asdict(conclusion) for conclusion in read_conclusions(result.folder)],
            "report": str(result.report),
            "csv": str(result.csv),
            "mlflow": result.mlflow_command,
            "seconds": result.seconds,
        }
        console.print_json(summary | ({"selection": selection} if selection is not None else {}))
    else:
        if selection is not None:
            _print_selection(selection, settings.headline, console)
        counts = f"{result.found} found, {len(result.ends) - result.found} trained"
        console.print(f"{tally((end.status for end in result.ends), result.total)}; {counts}")
        for end in without_result(result.ends):
            console.print(str(end))
        console.print(f"page    {result.report}\ntable   {result.csv}")
        if settings.tracking.tracker == "mlflow":
            console.print(f"MLflow  {result.mlflow_command}")
    return SOME_FAILED if result.failed else 0


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
    from unlearnbench.base import distributed as group

    group.join_group()
    planned, _ = plan_runs(config, overrides, plugins)
    chosen = _selected(planned, select)
    console = Console()
    if len(chosen) != 1:
        problem = "is more than one run" if chosen else "is none of the runs"
        lines = [f"{i:4}  {r.id}  {r.title}" for i, r in enumerate(planned.runs)]
        choice = f"--select {shortened(select)[1:-1]}" if select else planned.config.name
        raise UnlearnbenchError(
            "\n".join([*lines, f"{choice} {problem}; choose one with --select POSITION or ID"])
        )
    _check_optimizers(planned.config)
    from unlearnbench.results.sweep_folder import claim_folder
    from unlearnbench.runs.run import run_single

    with group.main_process_first():
        folder = claim_folder(planned, extend=True)
    log: Callable[[str], None] = console.note if group.is_main_process() else lambda _: None
    log(f"{chosen[0].id}  {chosen[0].title}")
    target = folder / "records" / chosen[0].id
    repeated = target.is_dir()
    record = run_single(chosen[0], planned.config, folder, log)
    is_main_process = group.is_main_process()
    group.leave_group()
    if not is_main_process:
        return
    rows = _rows_of(record, planned, folder)
    if as_json:
        epochs = [{str(row.unit): row.epoch} | dict(row.metrics) for row in rows]
        shown = {"id": record.id, "status": record.status, "found": repeated, "error": record.error}
        console.print_json(shown | {planned.config.unit.plural: epochs})
        return
    columns = planned.config.headline.columns
    cells = [(row.epoch, *(row.metrics.get(name) for name in columns)) for row in rows]
    console.table((str(planned.config.unit), *columns), cells)
    console.print(f"{record.status}{' (found, trained before)' * repeated}: {target}")
    if record.error:
        console.print(record.error)


def _rows_of(record: Record, planned: Plan, folder: Path) -> list[TableRow]:
    """Return the rows of a run, from a table with the start and retain models of the plan.

    Other runs of the folder take no part, because there may be thousands.
    """
    from unlearnbench.results.finalize import finalize
    from unlearnbench.results.records import read_record, read_records
    from unlearnbench.results.rules import named_metrics, rules_of
    from unlearnbench.results.stored_table import read_table

    if planned.references is None:
        others = [other for other in read_records(folder) if other.kind != "run"]
    else:
        places = [folder / "records" / id_ for id_ in planned.references]
        others = [read_record(place) for place in places if place.is_dir()]
    records = [*(other for other in others if other.panel == record.panel), record]
    metrics = named_metrics(planned.config.model_dump(mode="json"))
    table = finalize(records, rules_of(records, metrics), read_table(folder))
    return [row for row in table.rows if row.run_id == record.id]


def _check_optimizers(config: SweepConfig) -> None:
    """Raise unless the optimisers are installed; on a cluster the workers check."""
    optimizers = {config.training_of(name).optimizer for name in config.method_names} - {"adamw"}
    if config.ray.address is None and optimizers:
        from unlearnbench.training.optimizers import check_optimizer

        for name in sorted(optimizers):
            check_optimizer(name)


def _print_selection(chosen: Mapping[str, Any], headline: Headline, console: Console) -> None:
    """Print the best settings, with their results on seeds that did not choose them."""
    from unlearnbench.analysis.selection import entry_name, owner_of_choices

    when = chosen.get("unit", "epoch")
    columns = (
        *("model", "forget", "method", "learning rate", when),
        *(headline.kept.plain_label, "±", headline.forgotten.plain_short, "±", "on seeds"),
    )
    rows: list[tuple[Any, ...]] = []
    for choice in chosen["choices"]:
        reported = choice["reported"]
        numbers = [reported[metric.column] for metric in (headline.kept, headline.forgotten)]
        values = [value for pair in numbers for value in pair.values()]
        seeds = ", ".join(map(str, reported["seeds"]))
        if choice["why_not"]:
            values, seeds = [None] * 4, choice["why_not"]
        setting = choice["setting"] or entry_name(choice)
        panel, when = (choice["model"], choice["forget_fraction"]), choice["epoch"]
        rows.append((*panel, setting, choice["learning_rate"], when, *values, seeds))
    on = ", ".join(map(str, chosen["chosen_on_seeds"]))
    owner = owner_of_choices(chosen["choices"])
    title = f"best of each {owner}, chosen on seeds {on}, reported on others"
    console.table(columns, rows, title, flowing={"on seeds"}, keys=3)
    console.paragraph(f"rule: {chosen['rule']}")
    console.print()


def _selected(planned: Plan, select: str | None) -> list[RunSpec]:
    runs = list(planned.runs)
    if select is None:
        return runs
    position = int(select) if select.isdecimal() else None
    if position is not None and position < len(runs):
        return [runs[position]]
    return [run for run in runs if run.id.startswith(select)]
