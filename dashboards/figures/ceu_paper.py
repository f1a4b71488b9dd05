"""The CE-U paper's figure of six panels, drawn from its published points in the style of the page.

Source: Yang 2025, arXiv:2503.01224, the points as shipped in `published/ceu_figure_points.csv`.
"""

import csv
import re
from collections.abc import Mapping
from importlib.resources import files

import plotly.graph_objects as go

from unlearnbench.evaluation.benchmark_schema import filled_columns
from unlearnbench.results.table import TableRow

from .notebook import pareto

METHODS: Mapping[str, str] = {
    "CE-U": "ce-u",
    "Grad. Ascent": "gradient-ascent",
    "Grad. Diff.": "gradient-difference",
    "KL Min.": "kl-minimization",
    "Pref. Opt.": "idk",
}
"""Names of methods in the paper's figure, and here."""
REFERENCES: Mapping[str, str] = {"Finetune Model": "fine-tuned", "Retain Model": "retain"}
MODELS: Mapping[str, str] = {"llama2-7b": "Llama-2-7B", "phi": "Phi-1.5"}
_RATE = re.compile(r"(?P<name>.+) \(LR=(?P<rate>[0-9.e+-]+)\)")


def build() -> go.Figure:
    """Draw the figure: two models by three forget fractions, with every published point."""
    title = "The CE-U paper's figure, from its published points"
    return pareto(paper_rows()).update_layout(title_text=title)


def paper_rows() -> tuple[TableRow, ...]:
    """Make a table row of each published point, which has no other metrics than the figure's two.

    `epoch` is the point's number in its series.
    """
    source = files(__package__ or "dashboards") / "published" / "ceu_figure_points.csv"
    return tuple(map(_row, csv.DictReader(source.read_text(encoding="utf-8").splitlines())))


def _row(line: Mapping[str, str]) -> TableRow:
    """Make the row of a point, from a line of the CSV file.

    A series is a method (`CE-U`), a method at a learning rate (`CE-U (LR=2e-06)`) or a reference.
    """
    series = line["series"]
    kind = REFERENCES.get(series, "run")
    with_rate = _RATE.fullmatch(series)
    name = with_rate["name"] if with_rate else series
    method = METHODS[name] if kind == "run" else kind
    model = MODELS[line["model"]]
    fraction = float(line["forget_fraction"])
    metrics = dict.fromkeys(filled_columns([])) | {
        "model_utility": float(line["model_utility"]),
        "log10_forget_quality": float(line["log10_forget_quality"]),
    }
    return TableRow(
        run_id=f"{series}, {model}, {fraction:g}",
        kind=kind,
        model=model,
        forget_fraction=fraction,
        method=method,
        family=method,
        learning_rate=float(with_rate["rate"]) if with_rate else None,
        seed=0,
        epoch=int(line["point"]) if kind == "run" else 0,
        status="finished",
        metrics=metrics,
    )
