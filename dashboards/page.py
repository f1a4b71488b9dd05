"""The report as one HTML file that opens from disk: no request leaves it, whatever it shows.

Plotly is in it once, deflated. What every section needs stands in it as JSON; what is looked at
later (curves, losses, answers, configurations) is deflated, and inflated when it is asked for.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import yaml
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from unlearnbench.claims import claims
from unlearnbench.intervals import ENOUGH_SEEDS, LEVEL
from unlearnbench.ranking import UTILITY_SHARE
from unlearnbench.report import Report
from unlearnbench.starts import judged
from unlearnbench.table import METRICS, Row

from . import certainty
from .best import caveats, exported, tables
from .drawing import Look, draw
from .held import first_look
from .labels import LARGE, MEDIUM
from .later import collect
from .origin import origin
from .palette import PALETTE, percent, rate_text, signed
from .pareto import COLLAPSE_SHARE, Panel, panels
from .summary import notes, published_note, status, verdict
from .training import steps_drawn
from .trajectories import GROUPS

SCRIPTS = (
    *("core.js", "theme.js", "plots.js", "state.js", "swatches.js", "filters.js", "points.js"),
    *("parts.js", "card.js", "keys.js", "panels.js", "curves.js", "table.js", "copy.js"),
    *("reader.js", "ratios.js", "words.js", "answers.js", "start.js"),
)
STYLES = ("page.css", "views.css")
MAX_BYTES = 7_900_000
"""Of the whole page; answers that would go beyond are left out, and counted."""
_REST_BYTES = 250_000
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
    chosen = tables(report)
    sure = claims(judged(report.rows), report.records)
    ranked = certainty.lines(sure)
    rivals = {(one.model, one.forget_fraction): one.rivals for one in sure.panels}
    environment = Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    data = _json(
        _data(report, shown, look)
        | {"tables": {t.name: exported(t, caveats(t, sure)) for t in chosen}}
    )
    spent = _REST_BYTES + len(_plotly()) + len(data.encode())
    return environment.get_template("page.html.j2").render(
        report=report,
        status=status(report),
        panels=[
            {
                "panel": p,
                "verdict": verdict(p, rivals.get((p.model, p.forget_fraction))).text,
                "fault": p.begins.fault,
                "notes": notes(p),
                "published": published_note(p),
                "height": (LARGE if len(shown) == 1 else MEDIUM)[1] + 70,
            }
            for p in shown
        ],
        questions=sorted({p.questions for p in shown if p.questions is not None}),
        tables=chosen,
        claims=sure,
        ranked=ranked,
        digits=certainty.digits(ranked),
        faulty=[p.begins for p in shown if p.begins.fault],
        collapse_share=COLLAPSE_SHARE,
        utility_share=UTILITY_SHARE,
        max_steps=steps_drawn(report.records),
        origin=origin(report),
        config=yaml.safe_dump(dict(report.config), sort_keys=False, allow_unicode=True)
        if report.config
        else "",
        css=Markup("\n".join(_template(name) for name in STYLES)),
        plotly=_plotly(),
        scripts=Markup("\n".join(_template(name) for name in SCRIPTS)),
        data=data,
        more=_deflated(_dumps(collect(report, shown, look, MAX_BYTES - spent))),
        version=version("unlearnbench"),
        dashes=len(set(look.dashes.values())) > 1 or len(look.dashes) < 3,
        level=round(100 * LEVEL),
        enough_seeds=ENOUGH_SEEDS,
        percent=percent,
        rate=rate_text,
        signed=signed,
        number=_exact,
        text=_rounded,
    )


def _exact(value: float | None) -> str:
    """What a table sorts by."""
    return "" if value is None else repr(value)


def _rounded(value: float | None, digits: int) -> str:
    """What it shows."""
    return "" if value is None else signed(value, digits)


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
        "shapes": look.symbols,
        "links": dict(report.links),
        "rates": {rate_text(r): look.dashes[r] for r in sorted(rates, key=lambda r: r or 0.0)},
        "panels": [
            {
                "model": p.model,
                "fraction": p.forget_fraction,
                "figure": draw(p, look, LARGE if len(shown) == 1 else MEDIUM).to_plotly_json(),
                "low": min(
                    (s.metrics["log10_forget_quality"] or 0.0 for s in p.below), default=None
                ),
            }
            for p in shown
        ],
        "columns": list(TABLE_COLUMNS),
        "rows": [_cells(row) for row in report.rows],
        "groups": GROUPS,
        "first": first_look(judged(report.rows)),
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


@cache
def _plotly() -> str:
    """Plotly's code, a third as long as it stands in its package."""
    return _deflated(get_plotlyjs())


def _deflated(text: str) -> str:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    packed = packer.compress(text.encode()) + packer.flush()
    return base64.b64encode(packed).decode("ascii")
