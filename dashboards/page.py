"""The report as one HTML file that opens from disk: no request leaves it, whatever it shows.

Plotly is in it once. Small data stands in it as JSON; what is looked at later (curves, losses,
answers) is deflated, and the browser inflates it when its section comes into view.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import yaml
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from unlearnbench.ranking import UTILITY_SHARE
from unlearnbench.report import Report
from unlearnbench.table import METRICS, Row

from .drawing import Look, draw
from .held import first_look
from .later import collect
from .palette import PALETTE, percent, rate_text, signed
from .pareto import COLLAPSE_SHARE, Panel, panels
from .summary import best_rows, provenance, status, verdict
from .training import steps_drawn
from .trajectories import GROUPS

SCRIPTS = (
    *("core.js", "panels.js", "curves.js", "table.js"),
    *("reader.js", "ratios.js", "words.js", "answers.js"),
)
STYLES = ("page.css", "views.css")
MAX_BYTES = 7_900_000
"""Of the whole page; answers that would go beyond are left out, and counted."""
_REST_BYTES = 200_000
"""Of the page without Plotly, data, and what is inflated later."""
TABLE_COLUMNS = (
    *("kind", "method", "model", "forget_fraction", "learning_rate", "seed", "epoch"),
    *METRICS,
    *("status", "run_id", "family"),
)


def build(report: Report) -> str:
    """The whole page."""
    look = Look.of(report.rows)
    shown = panels(report.rows, published=_is_papers_benchmark(report))
    environment = Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    data = _json(_data(report, shown, look))
    spent = _REST_BYTES + sum(len(text.encode()) for text in (get_plotlyjs(), data))
    return environment.get_template("page.html.j2").render(
        report=report,
        status=status(report),
        panels=[{"panel": p, "verdict": verdict(p), "notes": _notes(p)} for p in shown],
        best=best_rows(report.rows),
        share=UTILITY_SHARE,
        collapse_share=COLLAPSE_SHARE,
        max_steps=steps_drawn(report.records),
        provenance=provenance(report),
        config=yaml.safe_dump(dict(report.config), sort_keys=False, allow_unicode=True)
        if report.config
        else "",
        css=Markup("\n".join(_template(name) for name in STYLES)),
        plotly=Markup(get_plotlyjs()),
        scripts=Markup("\n".join(_template(name) for name in SCRIPTS)),
        data=data,
        more=_deflated(collect(report, shown, look, MAX_BYTES - spent)),
        version=version("unlearnbench"),
        percent=percent,
        rate=rate_text,
        signed=signed,
    )


def _template(name: str) -> str:
    return (files(__package__ or "dashboards") / "templates" / name).read_text(encoding="utf-8")


def _is_papers_benchmark(report: Report) -> bool:
    """Whether the paper's points can stand beside these: TOFU's data and TOFU's rules."""
    sources = [r.spec.get("data", {}).get("source") for r in report.records if r.kind == "run"]
    return bool(sources) and set(sources) == {"tofu"} and report.profile.startswith("tofu")


def _data(report: Report, shown: Sequence[Panel], look: Look) -> dict[str, Any]:
    """What the page needs at once."""
    rates = {r.learning_rate for r in report.rows if r.kind == "run"}
    return {
        "palette": [list(pair) for pair in PALETTE],
        "families": look.colours,
        "rates": {rate_text(r): look.dashes[r] for r in sorted(rates, key=lambda r: r or 0.0)},
        "panels": [
            {
                "model": p.model,
                "fraction": p.forget_fraction,
                "figure": draw(p, look).to_plotly_json(),
                "low": min(
                    (s.metrics["log10_forget_quality"] or 0.0 for s in p.below), default=None
                ),
            }
            for p in shown
        ],
        "columns": list(TABLE_COLUMNS),
        "rows": [_cells(row) for row in report.rows],
        "groups": GROUPS,
        "first": first_look(report.rows),
    }


def _cells(row: Row) -> list[Any]:
    values = vars(row) | dict(row.metrics)
    return [_six(values[name]) for name in TABLE_COLUMNS]


def _six(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _finite(value: Any) -> Any:
    """JSON knows neither NaN nor infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value


def _dumps(value: Any) -> str:
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _json(value: Any) -> Markup:
    """JSON that no text in it can break out of: `<` never stands in it as such."""
    return Markup(_dumps(value).replace("<", "\\u003c"))


def _deflated(value: Any) -> str:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = packer.compress(_dumps(value).encode()) + packer.flush()
    return base64.b64encode(packed).decode("ascii")


def _notes(panel: Panel) -> list[str]:
    """What a reader has to know of a panel beyond what is drawn."""
    notes: list[str] = []
    if panel.fine_tuned is None:
        notes.append("The fine-tuned model was not evaluated.")
    if panel.retain is None:
        notes.append("The retain model was not evaluated.")
    if panel.questions is not None and panel.floor is not None:
        notes.append(
            f"n = {panel.questions} forget questions; log₁₀ Forget Quality cannot fall below "
            f"{signed(panel.floor, 1)}."
        )
    if panel.undrawn:
        what = "evaluation" if panel.undrawn == 1 else "evaluations"
        notes.append(f"Not drawn: {panel.undrawn} {what} without a number.")
    return notes
