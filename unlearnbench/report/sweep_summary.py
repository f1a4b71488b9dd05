"""What a sweep has found, for its run in a tracker: the conclusion and the recommended setting.

Sentences and numbers are those of the page: nothing is computed here.
"""

import math
import re
from collections.abc import Iterator

from unlearnbench.analysis.best_settings import Panel
from unlearnbench.analysis.conclusion import Conclusion
from unlearnbench.analysis.results import Results
from unlearnbench.analysis.settings import Setting
from unlearnbench.api.tracker import SweepSummary
from unlearnbench.report.report import INTERACTIVE, PICTURE
from unlearnbench.report.tracked_runs import BEST, SCORES, short_rate


def summary_of(results: Results, introduction: str = "") -> SweepSummary:
    """Summarize a sweep.

    Args:
        results: All of them.
        introduction: What a reader must know besides the conclusion; may be empty.
    """
    # The conclusion comes first, because MLflow shows only the first lines of a description.
    paragraphs: list[str] = []
    metrics: dict[str, float] = {}
    recommended: list[str] = []
    averaged = ""
    conclusions = {(c.model, c.split): c for c in results.conclusions}
    has_many_panels = len(results.panels) > 1
    for panel in results.panels:
        conclusion = conclusions.get(panel.panel)
        if conclusion is None:
            continue
        setting = _recommended(results, panel, conclusion)
        paragraphs += _paragraphs(conclusion, setting)
        if setting is None:
            continue
        if not has_many_panels:
            averaged = _averaged(setting)
        group = _group(panel) if has_many_panels else ""
        for name, value in _numbers(results, panel, setting):
            if value is not None and math.isfinite(value):
                metrics[_metric(name, group)] = value
        place = f" ({panel.place})" if has_many_panels else ""
        recommended.append(_short_title(setting) + place)
    if introduction:
        paragraphs.append(introduction)
    paragraphs.append(
        f"Artifacts: `{PICTURE}` shows utility against forgetting of all settings, `{INTERACTIVE}` "
        "the same with hover texts, `report.html` is the whole page, and `plan.json` and "
        "`config.yaml` have the configuration."
    )
    tags = {"recommended": "; ".join(recommended)} if recommended else {}
    return SweepSummary("\n\n".join(paragraphs), metrics, tags, averaged)


def _recommended(results: Results, panel: Panel, conclusion: Conclusion) -> Setting | None:
    """Return the setting that the conclusion is about; None if no method has forgotten."""
    if not conclusion.has_best:
        return None
    orders = {order.panel: order for order in results.claims.panels}
    order = orders.get(panel.panel)
    leader = None if order is None else order.leader
    return None if leader is None else leader.best


def _paragraphs(conclusion: Conclusion, setting: Setting | None) -> list[str]:
    """Write the conclusion about a panel in Markdown."""
    title = f"**{conclusion.place}.**"
    if setting is not None:
        kept = setting.headline.kept
        title += f" Recommended setting: **{_title(setting)}**, with {kept.plain_label} "
        title += f"{kept.text(setting.kept)}."
    return [title, *(_escaped(sentence) for sentence in conclusion.sentences)]


def _title(setting: Setting) -> str:
    """`npo+nll, learning rate 1e-3, epoch 8`."""
    rate = setting.learning_rate
    parts = [setting.method, None if rate is None else f"learning rate {short_rate(rate)}"]
    return ", ".join(filter(None, [*parts, setting.when]))


def _short_title(setting: Setting) -> str:
    """`npo+nll 1e-3 epoch 8`, which MLflow's list of tags does not cut."""
    rate = setting.learning_rate
    parts = [setting.method, None if rate is None else short_rate(rate), setting.when]
    return " ".join(filter(None, parts))


def _averaged(setting: Setting) -> str:
    """`mean of 3 seeds`: what tells the numbers of a setting from those of a single run."""
    seeds = len(setting.rows)
    return f"mean of {seeds} seeds" if seeds > 1 else "the recommended run"


def _escaped(sentence: str) -> str:
    """Escape what Markdown would read as emphasis, as in the name of a column."""
    return re.sub(r"([*_`<])", r"\\\1", sentence)


def _numbers(
    results: Results, panel: Panel, setting: Setting
) -> Iterator[tuple[str, float | None]]:
    """Yield the numbers of a setting: means over its seeds."""
    yield str(setting.unit), float(setting.epoch)
    for column in dict.fromkeys([*setting.headline.columns[:2], *SCORES]):
        yield column, setting.metrics.get(column)
    yield "utility_kept", panel.share_kept(setting.kept)
    for attacked_panel in results.lasting:
        if attacked_panel.panel == panel.panel:
            attacked = attacked_panel.of(setting)
            yield "lasting", None if attacked is None else attacked.lasting


def _group(panel: Panel) -> str:
    """Name a panel in a metric's name: `tiny-forget-20`."""
    return re.sub(r"[^\w.]+", "-", panel.place).strip("-")


def _metric(name: str, group: str) -> str:
    """Put a panel into a metric's name if the sweep has several: `best/tiny-forget-20/epoch`."""
    return f"{BEST}/{group}/{name}" if group else f"{BEST}/{name}"
