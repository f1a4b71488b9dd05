"""`unlearnbench analysis meta`: which metrics can be trusted, from records of many models."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from unlearnbench.base.console import Console
from unlearnbench.base.errors import RecordError
from unlearnbench.cli.command import argument, command, new_group, option
from unlearnbench.cli.options import Json, Plugins, register_plugins, sweep_folder

if TYPE_CHECKING:
    from unlearnbench.analysis.meta_evaluation import MetaEvaluation, MetricQuality


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

    reports = [Results.read(sweep_folder(folder)) for folder in dict.fromkeys(folders)]
    rules = {f"{r.profile}, {r.schema.name or 'tofu'}" for r in reports if r.rows}
    if len(rules) > 1:
        raise RecordError(
            "sweeps of different evaluation rules or benchmarks do not compare: "
            f"{'; '.join(sorted(rules))}; give those of one"
        )
    rows = [row for report in reports for row in report.rows]
    runs = [run for report in reports for run in attacked_runs(report)]
    attacked = {(run.row.run_id, run.variant): run for run in runs}.values()
    variants = tuple(dict.fromkeys(run.variant for run in attacked))
    results = meta_evaluation(
        rows,
        attacked,
        relearning=chosen_variant(relearning, "relearning", variants),
        quantization=chosen_variant(quantization, "quantization", variants),
    )
    console = Console()
    if as_json:
        console.print_json({"splits": [_json(result) for result in results]})
    else:
        for result in results:
            _print(result, console)
    for line in dict.fromkeys(line for result in results for line in result.warnings()):
        console.warn(line)
    if out:
        from unlearnbench.report.figures import meta_evaluation as draw
        from unlearnbench.report.figures import save

        save(draw(results), Path(out))
        console.note(f"figure  {out}")


def _print(result: MetaEvaluation, console: Console) -> None:
    from unlearnbench.api.benchmark import split_percent

    counts = f"{len(result.known)} models that know the rows, {len(result.unknown)} that do not"
    title = f"{split_percent(result.forget_fraction)}: {counts}; a control is about other rows"
    columns = ("metric", "knows", "faithfulness", "95 % interval", "beyond chance", "threshold")
    further = ("accuracy", "Q", "runs", "R", "runs", "overall")
    lines = [_cells(metric) for metric in (*result.metrics, *result.controls)]
    console.table((*columns, *further), lines, title)
    for name, attack in (("Q", "quantization"), ("R", "relearning")):
        reasons = {getattr(metric, attack).reason for metric in result.metrics}
        for reason in sorted(reasons - {""}):
            console.paragraph(f"No {name}: {reason}.")
    console.print()
    for reason in dict.fromkeys(reason for _, reason in result.left_out):
        labels = "; ".join(label for label, its in result.left_out if its == reason)
        console.paragraph(f"Left out, {reason}: {labels}.")


def _cells(metric: MetricQuality) -> tuple[Any, ...]:
    """The cells of a line: what the metric is worth, then under each of the two attacks."""
    quantization, relearning = metric.quantization, metric.relearning
    return (
        f"{metric.column.label}{' (control)' * metric.control}",
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


def _json(result: MetaEvaluation) -> dict[str, Any]:
    derived = ("robustness", "overall", "separates")
    return {
        "split": result.forget_fraction,
        "known": [row.run_id for row in result.known],
        "unknown": [row.run_id for row in result.unknown],
        "metrics": [
            asdict(metric) | {name: getattr(metric, name) for name in derived}
            for metric in (*result.metrics, *result.controls)
        ],
        "left_out": dict(result.left_out),
        "warnings": [*result.warnings()],
    }
