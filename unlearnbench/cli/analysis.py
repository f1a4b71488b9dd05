"""`unlearnbench analysis meta`: which metrics can be trusted, from records of many models."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from unlearnbench.cli.command import argument, command, new_group, option
from unlearnbench.cli.figures import FIGURE
from unlearnbench.cli.options import Json, Plugins, register_plugins, sweep_folder
from unlearnbench.console import Console
from unlearnbench.errors import RecordError
from unlearnbench.files.outputs import Output, write_file

if TYPE_CHECKING:
    from unlearnbench.analysis.meta_evaluation import MetaEvaluation, MetricQuality
    from unlearnbench.reporting.report import Report

_WIDTH = 96
_COLUMNS = (
    *("split", "metric", "label", "control", "knows", "known", "unknown", "faithfulness", "low"),
    *("high", "threshold", "accuracy", "quantization", "quantization_runs", "relearning"),
    *("relearning_runs", "robustness", "overall"),
)

app = new_group("Analyse the records of sweeps.")


@command(app, "meta", writes=[FIGURE, Output("csv", "the table", suffixes=(".csv",))])
def meta(
    folders: Annotated[list[str], argument("FOLDER", "A sweep's folder.")],
    knows: Annotated[
        list[str] | None,
        option(
            "PATTERN",
            "Runs that know the forget rows, besides start models: METHOD, MODEL:METHOD or a "
            "run's id, with * (repeatable).",
        ),
    ] = None,
    knows_not: Annotated[
        list[str] | None,
        option("PATTERN", "The same for runs that do not, besides retain models (repeatable)."),
    ] = None,
    relearning: Annotated[
        str | None, option("VARIANT", "Attack behind R.", default="relearning, last step")
    ] = None,
    quantization: Annotated[
        str | None, option("VARIANT", "Attack behind Q.", default="quantization, NF4 or the last")
    ] = None,
    out: Annotated[
        str | None, option("FILE", "Figure to write: .svg, .png, .pdf or .html.")
    ] = None,
    csv_file: Annotated[str | None, option("FILE", "Table to write.", "--csv")] = None,
    plugins: Plugins = None,
    as_json: Json = False,
) -> None:
    r"""Find out which metrics tell models that know the forget rows from models that do not.

    Faithfulness is the area under the ROC curve over start models (which know the rows) and
    retain models; R and Q are the robustness to relearning and quantization. Several models
    are needed: of several preparation seeds, in one sweep or in several.

    Examples:
      unlearnbench analysis meta runs/seeds --out metrics.html
      unlearnbench analysis meta runs/one runs/other --csv metrics.csv
      unlearnbench analysis meta runs/mine --knows 'weak:*' --knows-not 'gradient-ascent*'
    """
    register_plugins(plugins)
    from unlearnbench.analysis.meta_evaluation import (
        attacked_runs,
        by_pattern,
        chosen_variant,
        meta_evaluation,
    )
    from unlearnbench.reporting.report import build_report

    reports = [build_report(sweep_folder(folder)) for folder in dict.fromkeys(folders)]
    _refuse_mixed(dict(zip(dict.fromkeys(folders), reports, strict=True)))
    rows = [row for report in reports for row in report.rows]
    runs = [one for report in reports for one in attacked_runs(report.records, report.rows)]
    attacked = {(one.row.run_id, one.variant): one for one in runs}.values()
    variants = tuple(dict.fromkeys(one.variant for one in attacked))
    found = meta_evaluation(
        rows,
        attacked,
        by_pattern(rows, knows or (), knows_not or ()),
        relearning=chosen_variant(relearning, "relearning", variants),
        quantization=chosen_variant(quantization, "quantization", variants),
    )
    console = Console()
    if as_json:
        console.print_json({"splits": [_json(one) for one in found]})
    else:
        for one in found:
            _print(one, console)
    for line in dict.fromkeys(line for one in found for line in one.warnings):
        console.warn(line)
    if csv_file:
        write_file(Path(csv_file), _csv(found), "the table")
        console.note(f"table  {csv_file}")
    if out:
        from unlearnbench.figures import meta_evaluation as draw
        from unlearnbench.figures import save

        save(draw(found), Path(out))
        console.note(f"figure  {out}")


def _refuse_mixed(reports: Mapping[str, Report]) -> None:
    rules = {
        folder: f"{report.profile}, {report.schema.name or 'tofu'}"
        for folder, report in reports.items()
        if report.rows
    }
    if len(set(rules.values())) > 1:
        listed = "; ".join(f"{folder}: {rule}" for folder, rule in rules.items())
        raise RecordError(
            f"sweeps of different evaluation rules or benchmarks do not compare: {listed}; give "
            "those of one"
        )


def _print(found: MetaEvaluation, console: Console) -> None:
    from unlearnbench.api.benchmark import split_percent

    counts = f"{len(found.known)} models that know the rows, {len(found.unknown)} that do not"
    columns = ("metric", "knows", "faithfulness", "95 % interval", "threshold", "accuracy")
    title = f"{split_percent(found.forget_fraction)}: {counts}"
    further = ("Q", "runs", "R", "runs", "overall")
    lines = [(*_cells(one), *_robustness(one)) for one in found.metrics]
    console.table((*columns, *further), lines, title)
    for name, reasons in (
        ("Q", {one.quantization.reason for one in found.metrics}),
        ("R", {one.relearning.reason for one in found.metrics}),
    ):
        for reason in sorted(reasons - {""}):
            console.print(f"No {name}: {reason}.")
    console.print()
    if found.controls:
        lines = [_cells(one) for one in found.controls]
        console.table(columns, lines, "controls, about other rows: 0.5 is expected")
        console.print()
    by_reason: dict[str, list[str]] = {}
    for label, reason in found.left_out:
        by_reason.setdefault(reason, []).append(label)
    for reason, labels in by_reason.items():
        console.print(textwrap.fill(f"Left out, {reason}: {'; '.join(labels)}.", _WIDTH))
    apart = "; ".join(one.column.label for one in found.metrics if one.separates)
    console.print(textwrap.fill(f"Separate the models beyond chance: {apart or 'none'}.", _WIDTH))


def _cells(one: MetricQuality) -> tuple[Any, ...]:
    interval = f"{one.low:.2f} to {one.high:.2f}"
    area, accuracy = round(one.faithfulness, 3), round(one.accuracy, 3)
    return one.column.label, one.knows, area, interval, round(one.threshold, 4), accuracy


def _robustness(one: MetricQuality) -> tuple[Any, ...]:
    values = one.quantization.value, one.relearning.value, one.overall
    q, r, overall = (None if v is None else round(v, 3) for v in values)
    return q, one.quantization.runs, r, one.relearning.runs, overall


def _line(found: MetaEvaluation, one: MetricQuality) -> dict[str, Any]:
    """One metric, by `_COLUMNS`."""
    values = (
        *(found.forget_fraction, one.column.name, one.column.label, one.control, one.knows),
        *(len(one.known), len(one.unknown), one.faithfulness, one.low, one.high, one.threshold),
        *(one.accuracy, one.quantization.value, one.quantization.runs, one.relearning.value),
        *(one.relearning.runs, one.robustness, one.overall),
    )
    return dict(zip(_COLUMNS, values, strict=True))


def _csv(found: Sequence[MetaEvaluation]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_line(one, line) for one in found for line in (*one.metrics, *one.controls))
    return text.getvalue()


def _json(found: MetaEvaluation) -> dict[str, Any]:
    def listed(metrics: Sequence[MetricQuality]) -> list[dict[str, Any]]:
        return [
            _line(found, one)
            | {"values_known": one.known, "values_unknown": one.unknown}
            | {"separates": one.separates}
            | {key: asdict(getattr(one, key)) for key in ("quantization", "relearning")}
            for one in metrics
        ]

    return {
        "split": found.forget_fraction,
        "known": [row.run_id for row in found.known],
        "unknown": [row.run_id for row in found.unknown],
        "metrics": listed(found.metrics),
        "controls": listed(found.controls),
        "left_out": dict(found.left_out),
        "warnings": found.warnings,
    }
