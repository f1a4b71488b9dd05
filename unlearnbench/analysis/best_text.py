"""The best settings of a panel in words: for the terminal, and for the conclusion.

`best_lines` is a table, and `best_found` is the first sentence of a conclusion.

A *panel* is one model and split. Its *headline* is the two numbers that methods are ranked by: what
is kept (utility) and what is forgotten (called quality here). If the latter comes from a
statistical test, it is log₁₀ of the test's p-value, and the sentences show p. The *leader* is the
method whose best setting has forgotten most. A *choice* is a setting that `select` or `tune` has
chosen on some seeds; it is shown with its numbers on the other seeds.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from unlearnbench.analysis.best_settings import Panel
from unlearnbench.analysis.method_order import RankedMethod
from unlearnbench.analysis.settings import Setting, is_evidence
from unlearnbench.analysis.start_model import Start, p_value
from unlearnbench.analysis.wording import (
    best_rule,
    listed_seeds,
    named_first,
    quality_text,
    setting_name,
    share_kept,
)
from unlearnbench.base.console import aligned
from unlearnbench.base.number_text import float_text
from unlearnbench.results.outcomes import RunOutcome

# In the terminal


def best_lines(panel: Panel, most: int) -> list[str]:
    """Return the best methods as a table, with the start and the retain model.

    Args:
        panel: Model and split.
        most: Largest number of methods.

    Returns:
        Lines of text. Empty without a best setting, and if the start model has a fault.
    """
    settings_and_places: list[tuple[Setting, int | None]] = []
    for best, place in zip(panel.best, panel.places, strict=True):
        if best.setting is not None:
            settings_and_places.append((best.setting, place))
    if panel.start.fault or not settings_and_places:
        return []

    rows = [_heads(panel)]
    for setting, place in settings_and_places[:most]:
        rate = "-" if setting.learning_rate is None else float_text(setting.learning_rate)
        numbers = _number_cells(panel, setting.kept, setting.forgotten)
        seeds = str(len(setting.rows))
        shown_place = "-" if place is None else str(place)
        rows.append([setting.method, rate, str(setting.epoch), *numbers, seeds, shown_place])
    start_numbers = _number_cells(panel, panel.start.utility, panel.start.quality)
    rows.append(["start model", "-", "0", *start_numbers, "-", "-"])
    retain = panel.row("retain")
    if retain is not None:
        retain_numbers = _number_cells(panel, retain.kept, retain.forgotten)
        rows.append(["retain model", "-", "-", *retain_numbers, "-", "-"])

    # With one seed there are no places, and the last two columns, seeds and places, say nothing.
    shown_settings = [setting for setting, _ in settings_and_places[:most]]
    has_one_seed = all(len(setting.rows) == 1 for setting in shown_settings)
    if has_one_seed:
        rows = [row[:-2] for row in rows]
    is_right_aligned = [False, *[True] * (len(rows[0]) - 1)]
    lines = [best_heading(panel)]
    lines += [f"  {line}" for line in aligned(rows, is_right_aligned)]
    for best in panel.best:
        if best.choice is not None and best.why_not:
            lines.append(f"  {best.method}: {best.why_not}")
    return lines


def _heads(panel: Panel) -> list[str]:
    """Return the heads of the table's columns."""
    headline = panel.headline
    heads = ["method", "rate", str(panel.unit)]
    heads += [headline.kept.plain_short, headline.forgotten.plain_short]
    if headline.forgotten.test:
        heads.append("p")
    return [*heads, "seeds", "place"]


def _number_cells(panel: Panel, kept: float | None, quality: float | None) -> list[str]:
    """Return the cells of a model's two headline numbers, and of p if one is a test."""
    headline = panel.headline
    cells = [headline.kept.text(kept), headline.forgotten.text(quality)]
    if headline.forgotten.test is not None:
        cells.append("-" if quality is None else p_value(quality))
    return cells


def best_heading(panel: Panel) -> str:
    """Return the title of a table of best settings, with the rule behind them."""
    if not panel.choices:
        return f"best of {panel.place}: {best_rule(panel.headline)}"
    return f"choices of {panel.place}, made on {seeds_of_choice(panel)}, on the other seeds"


def seeds_of_choice(panel: Panel) -> str:
    """Return the seeds that `select` or `tune` has chosen on: `seed 0`, or `seeds 0, 1`."""
    return listed_seeds(sorted({seed for choice in panel.choices for seed in choice.chosen_on}))


def stopped_text(starts: Sequence[Start], count: int, folder: Path, runs: int = 0) -> str:
    """Return the error with which a sweep stops before the first run of a start model that fails.

    Args:
        starts: The start models that have not learned their rows.
        count: Number of start models of the sweep.
        folder: Folder of the sweep.
        runs: Number of runs from other start models that have ended meanwhile.
    """
    done, kept = "nothing was swept", "prepared models and evaluations"
    if runs:
        done = f"the sweep stops after {runs} run{'s' * (runs > 1)}"
        kept = f"runs, {kept}"
    models = "the start model" if count == 1 else f"{len(starts)} of {count} start models"
    lines = [f"{done}, because {models} cannot show what a method does"]
    lines += [f"{start.place}: {start.fault}" for start in starts]
    lines.append(
        f"{kept} are kept (`unlearnbench report {folder}` shows them); --force sweeps all the same"
    )
    return "\n".join(lines)


# In the conclusion


def best_found(panel: Panel, leader: RankedMethod | None, lost: Sequence[RunOutcome] = ()) -> str:
    """Return the best method of a panel, what it has forgotten and kept; or why there is none.

    Args:
        panel: The panel.
        leader: The method whose best setting has forgotten most; None if none keeps its utility.
        lost: Runs of the panel that failed or collapsed.
    """
    reason = _no_numbers(panel, lost)
    if reason:
        return reason
    start = panel.start
    best = None if leader is None else leader.best
    if leader is None or best is None:
        return _no_choice_ranked(panel) if panel.choices else _none_keeps(panel)
    if start.quality is not None and start.unmoved(best.forgotten or 0.0):
        return _none_forgot(panel, leader, start.quality)
    return " ".join(_recommended(panel, leader, best))


def _no_numbers(panel: Panel, lost: Sequence[RunOutcome]) -> str:
    """Say why no setting can be judged; empty if some can."""
    start, headline = panel.start, panel.headline
    if start.fault:
        forced = " Its runs were made all the same, as with --force." if start.stops else ""
        return f"No result: {start.fault}.{forced}"
    evaluated = [row for row in panel.rows if is_evidence(row) and row.epoch > 0]
    if not evaluated:
        return _none_evaluated(lost, panel)
    if start.utility is None:
        kept = headline.kept.plain_short
        return f"No best setting: the start model, the reference of {kept}, was not evaluated."
    if any(row.forgotten is not None for row in evaluated):
        return ""
    lacking = ""
    if start.quality is None:
        model = "retain" if panel.rows[0].schema.has_retain else "start"
        lacking = f", which needs an evaluated {model} model"
    return f"No best setting: no run has a {headline.forgotten.name}{lacking}."


def _none_evaluated(lost: Sequence[RunOutcome], panel: Panel) -> str:
    """Say why no run of a panel has a number that counts."""
    if not lost:
        return "No run has been evaluated yet."
    count_of_status = Counter(run.status for run in lost)
    counts = [f"{count} {status}" for status, count in sorted(count_of_status.items())]
    # A failed run may have been evaluated before. It says nothing, because it is tried again.
    was_evaluated = any(row.kind == "run" and row.epoch > 0 for row in panel.rows)
    event = "ended with a result" if was_evaluated else "reached its first evaluation"
    first = f"{lost[0].title}: {lost[0].reason or 'no reason is recorded'}"
    text = f"No result: no run has {event} ({' and '.join(counts)}). The first: {first}."
    return f"{text} Try lower rates." if count_of_status["collapsed"] else text


def _no_choice_ranked(panel: Panel) -> str:
    """Say why no method has a choice that can be ranked, methods with the same reason together."""
    methods_of_reason: dict[str, list[str]] = defaultdict(list)
    for best in panel.best:
        methods_of_reason[best.why_not].append(best.name)
    reasons = [f"{reason} ({named_first(names)})" for reason, names in methods_of_reason.items()]
    return f"No method has a place: {'; '.join(reasons)}."


def _none_keeps(panel: Panel) -> str:
    """Say that no setting keeps enough, and which one keeps most."""
    headline = panel.headline
    trained = [setting for setting in panel.settings if setting.epoch]
    with_quality = [setting for setting in trained if setting.forgotten is not None]
    condition = "" if len(with_quality) == len(trained) else f" with a {headline.forgotten.name}"
    start_utility = panel.start.utility or 0.0
    text = f"No setting{condition} keeps {share_kept(headline)} ({start_utility:.2f})."
    lost = dict.fromkeys(setting.why_not for setting in trained if setting.why_not)
    if lost:
        text += f" Settings whose seeds ended early have no mean: {named_first(list(lost))}."

    name = headline.kept.plain_short
    candidates = [setting for setting in with_quality or trained if setting.kept is not None]
    if not candidates:
        return f"{text} None of them has a number for {name}."
    most_kept = max(candidates, key=lambda setting: setting.kept or 0.0)
    return f"{text} {setting_name(most_kept)}, has the highest {name}: {most_kept.kept or 0.0:.2f}."


def _none_forgot(panel: Panel, leader: RankedMethod, start_quality: float) -> str:
    """Say that the leading method forgets no more than the start model."""
    headline = panel.headline
    forgotten = headline.forgotten
    candidates = "choice" if leader.chosen_on else "setting"
    return (
        f"No method forgot: no {candidates} that keeps {share_kept(headline)} has a "
        f"{forgotten.better} {forgotten.name} than the start model "
        f"({quality_text(forgotten, start_quality)}). Try higher rates, or more "
        f"{panel.unit.plural}."
    )


def _recommended(panel: Panel, leader: RankedMethod, best: Setting) -> list[str]:
    """Return sentences on the leading method's best setting, or that it only comes closest.

    Args:
        panel: Model and split.
        leader: The leading method.
        best: Its best setting, whose headline numbers are both known.
    """
    headline = panel.headline
    forgotten = headline.forgotten
    kept = headline.kept.plain_short
    quality = best.forgotten or 0.0
    utility = best.kept or 0.0
    test = forgotten.test
    # The number of a test is log₁₀ of its p-value. A small p finds what is left.
    passes_test = test is None or quality > math.log10(test.level)
    value = quality_text(forgotten, quality)

    verb = "is recommended" if passes_test else "comes closest"
    if leader.chosen_on:
        chosen = f"chosen on {listed_seeds(leader.chosen_on)}"
        claim = (
            f"{setting_name(best)}, {chosen}, {verb}: on the other seeds it has the "
            f"{forgotten.best_word} {forgotten.name} ({value}) among choices that keep "
            f"{share_kept(headline)}"
        )
    else:
        claim = f"{setting_name(best)}, {verb}: it has {best_rule(headline, value=value)}"
    sentences = [f"{claim}." if passes_test else f"No method forgot enough: {claim}."]

    start_utility = panel.start.utility
    if start_utility:
        share = f"{100 * utility / start_utility:.0f} %"
        sentences.append(
            f"Its {kept} is {utility:.3f}, {share} of the start model's {start_utility:.3f}."
        )
    ends = best.spread(forgotten.column)
    if test is not None and not passes_test:
        sentences.append(
            f"Up to p = {test.level:g} the test still distinguishes a model from one that never "
            "saw the forget set."
        )
    elif ends is not None:
        name = "p" if test else forgotten.name
        low, high = [p_value(end) if test else forgotten.text(end) for end in ends]
        sentences.append(f"Over its {leader.seeds} seeds, {name} is between {low} and {high}.")
    return sentences
