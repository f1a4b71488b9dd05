"""The summary of a sweep, for its run in a tracker: the conclusion and the recommended setting.

All sentences and numbers come from the analysis. The page shows the same ones.
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
        results: Results of the sweep.
        introduction: Text that a reader needs besides the conclusion. It may be empty.
    """
    # The conclusion comes first, because MLflow shows only the first lines of a description.
    paragraphs: list[str] = []
    metrics: dict[str, float] = {}
    recommended: list[str] = []
    averaged = ""
    conclusions = {
        (conclusion.model, conclusion.split): conclusion for conclusion in results.conclusions
    }
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
    for order in results.claims.panels:
        if order.panel == panel.panel:
            return None if order.leader is None else order.leader.best
    return None


def _paragraphs(conclusion: Conclusion, setting: Setting | None) -> list[str]:
    """Write the conclusion about a panel in Markdown."""
    title = f"**{conclusion.place}.**"
    if setting is not None:
        kept = setting.headline.kept
        title += f" Recommended setting: **{_title(setting)}**, with {kept.plain_label} "
        title += f"{kept.text(setting.kept)}."
    return [title, *(_escaped(sentence) for sentence in conclusion.sentences)]


def _title(setting: Setting) -> str:
    """Name a setting in a sentence: `npo+nll, learning rate 1e-3, epoch 8`."""
    words = [setting.method]
    if setting.learning_rate is not None:
        words.append(f"learning rate {short_rate(setting.learning_rate)}")
    words.append(setting.when)
    return ", ".join(words)


def _short_title(setting: Setting) -> str:
    """Name a setting so shortly that MLflow's list of tags shows all: `npo+nll 1e-3 epoch 8`."""
    words = [setting.method]
    if setting.learning_rate is not None:
        words.append(short_rate(setting.learning_rate))
    words.append(setting.when)
    return " ".join(words)


def _averaged(setting: Setting) -> str:
    """Say what the numbers of a setting are, beside those of single runs: `mean of 3 seeds`."""
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
    """Return the full name of a metric: `best/epoch`, or `best/tiny-forget-20/epoch`.

    Args:
        name: Name of the metric.
        group: Name of the panel; empty if the sweep has only one.
    """
    return f"{BEST}/{group}/{name}" if group else f"{BEST}/{name}"
