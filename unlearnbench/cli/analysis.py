"""`unlearnbench analysis meta`: which metrics can be trusted, from records of many models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from unlearnbench.base.console import Console
from unlearnbench.base.errors import RecordError
from unlearnbench.cli.command import argument, command, new_group, option
from unlearnbench.cli.options import Json, Plugins, register_plugins, sweep_folder

if TYPE_CHECKING:
    from unlearnbench.analysis.meta_evaluation import MetaEvaluation, MetricQuality
    from unlearnbench.analysis.results import Results

app = new_group("Analyse the records of sweeps.")


@command(app, "meta")
def meta(
    folders: Annotated[list[str], argument("FOLDER", "A sweep's folder.")],
    relearning: Annotated[
        str | None, option("VARIANT", "Attack behind R.", default="relearning, last step")
    ] = None,
    quantization: Annotated[
        str | None, option("VARIANT", "Attack behind Q.", default="quantization, NF4 or the last")
    ] = None,
    out: Annotated[
        str | None, option("FILE", "Figure to write: .svg, .png, .pdf or .html.")
    ] = None,
    plugins: Plugins = None,
    as_json: Json = False,
) -> None:
    r"""Find out which metrics tell models that know the forget rows from models that do not.

    Faithfulness is the area under the ROC curve that separates start models, which know the rows,
    from retain models. R is the robustness to relearning, and Q is the robustness to quantization.
    You need several models, prepared with several seeds, in one sweep or in several sweeps.

    Examples:
      unlearnbench analysis meta runs/seeds --out metrics.html
      unlearnbench analysis meta runs/one runs/other --json
    """
    register_plugins(plugins)
    from unlearnbench.analysis.meta_evaluation import attacked_runs, chosen_variant, meta_evaluation
    from unlearnbench.analysis.results import Results

    # A folder that is named twice is read once.
    sweeps = [Results.read(sweep_folder(folder)) for folder in dict.fromkeys(folders)]
    _check_same_rules(sweeps)
    rows = [row for sweep in sweeps for row in sweep.rows]
    runs = [run for sweep in sweeps for run in attacked_runs(sweep)]
    # Two sweeps may have recorded the same run.
    attacked = {(run.row.run_id, run.variant): run for run in runs}.values()
    variants = tuple(dict.fromkeys(run.variant for run in attacked))
    evaluations = meta_evaluation(
        rows,
        attacked,
        relearning=chosen_variant(relearning, "relearning", variants),
        quantization=chosen_variant(quantization, "quantization", variants),
    )

    console = Console()
    if as_json:
        console.print_json({"splits": [_document(evaluation) for evaluation in evaluations]})
    else:
        for evaluation in evaluations:
            _print(evaluation, console)
    warnings = [line for evaluation in evaluations for line in evaluation.warnings()]
    for line in dict.fromkeys(warnings):
        console.warn(line)
    if out:
        from unlearnbench.report.figures import meta_evaluation as draw
        from unlearnbench.report.figures import save

        save(draw(evaluations), Path(out))
        console.note(f"figure  {out}")


def _check_same_rules(sweeps: Sequence[Results]) -> None:
    """Check that all sweeps have the same evaluation rules and benchmark.

    Raises:
        RecordError: If they do not.
    """
    rules = {f"{sweep.profile}, {sweep.schema.name or 'tofu'}" for sweep in sweeps if sweep.rows}
    if len(rules) > 1:
        raise RecordError(
            "sweeps of different evaluation rules or benchmarks do not compare: "
            f"{'; '.join(sorted(rules))}; give those of one"
        )


def _print(evaluation: MetaEvaluation, console: Console) -> None:
    """Print the metrics of one split as a table, and why numbers or metrics are missing."""
    from unlearnbench.api.benchmark import split_percent

    known = f"{len(evaluation.known)} models that know the rows"
    unknown = f"{len(evaluation.unknown)} that do not"
    split = split_percent(evaluation.forget_fraction)
    title = f"{split}: {known}, {unknown}; a control is about other rows"
    columns = (
        *("metric", "knows", "faithfulness", "95 % interval", "beyond chance", "threshold"),
        *("accuracy", "Q", "runs", "R", "runs", "overall"),
    )
    lines = [_cells(metric) for metric in (*evaluation.metrics, *evaluation.controls)]
    console.table(columns, lines, title)
    _print_reasons("Q", {metric.quantization.reason for metric in evaluation.metrics}, console)
    _print_reasons("R", {metric.relearning.reason for metric in evaluation.metrics}, console)
    console.print()
    labels_of_reason: dict[str, list[str]] = {}
    for label, reason in evaluation.left_out:
        labels_of_reason.setdefault(reason, []).append(label)
    for reason, labels in labels_of_reason.items():
        console.paragraph(f"Left out, {reason}: {'; '.join(labels)}.")


def _print_reasons(column: str, reasons: set[str], console: Console) -> None:
    """Print why a column lacks numbers. The reason of a number that exists is empty."""
    for reason in sorted(reasons - {""}):
        console.paragraph(f"No {column}: {reason}.")


def _cells(metric: MetricQuality) -> tuple[Any, ...]:
    """Return a line of the table: how good a metric is, and its robustness to both attacks."""
    quantization, relearning = metric.quantization, metric.relearning
    control = " (control)" if metric.control else ""
    return (
        f"{metric.column.label}{control}",
        metric.knows,
        round(metric.faithfulness, 3),
        f"{metric.low:.2f} to {metric.high:.2f}",
        "yes" if metric.separates else "no",
        round(metric.threshold, 4),
        round(metric.accuracy, 3),
        _rounded(quantization.value),
        quantization.runs,
        _rounded(relearning.value),
        relearning.runs,
        _rounded(metric.overall),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _document(evaluation: MetaEvaluation) -> dict[str, Any]:
    """Return the metrics of one split as JSON."""
    metrics: list[dict[str, Any]] = []
    for metric in (*evaluation.metrics, *evaluation.controls):
        derived = {
            "robustness": metric.robustness,
            "overall": metric.overall,
            "separates": metric.separates,
        }
        metrics.append({**asdict(metric), **derived})
    return {
        "split": evaluation.forget_fraction,
        "known": [row.run_id for row in evaluation.known],
        "unknown": [row.run_id for row in evaluation.unknown],
        "metrics": metrics,
        "left_out": dict(evaluation.left_out),
        "warnings": list(evaluation.warnings()),
    }
