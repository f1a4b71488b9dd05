"""The words for results: verdicts, conclusions and rules, each worded once for all views."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from unlearnbench.analysis.best_settings import (
    UTILITY_SHARE,
    Panel,
    Setting,
    Start,
    is_evidence,
    p_value,
)
from unlearnbench.analysis.over_questions import KEPT_SHARE
from unlearnbench.analysis.under_attack import UnderAttack, worst_of_level
from unlearnbench.api.benchmark import Headline, HeadlineMetric
from unlearnbench.base.console import aligned
from unlearnbench.base.number_text import float_text
from unlearnbench.evaluation.word_check import MOST_ANSWERS
from unlearnbench.results.attack_variants import step_of
from unlearnbench.stats.ks_test import SIGNIFICANCE
from unlearnbench.stats.paired_test import POWER, PairedTest
from unlearnbench.stats.t_interval import ENOUGH_SEEDS, Interval

if TYPE_CHECKING:
    from unlearnbench.analysis.compare import PanelComparison, Side
    from unlearnbench.analysis.lasting import AttackedPanel, AttackedSetting
    from unlearnbench.analysis.order_confidence import (
        OrderConfidence,
        PanelOrder,
        RankedMethod,
        Rivals,
    )
    from unlearnbench.analysis.over_questions import Ends, OverQuestions
    from unlearnbench.api.metric import MetricColumn
    from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
    from unlearnbench.results.outcomes import RunOutcome
    from unlearnbench.results.table import TableRow

NAMED = 4
"""Most methods that a sentence names."""


def rate_of(setting: Setting) -> str:
    """`npo at learning rate 1e-05`."""
    rate = setting.learning_rate
    return setting.method + ("" if rate is None else f" at learning rate {float_text(rate)}")


def setting_name(setting: Setting) -> str:
    """`npo at learning rate 1e-05, epoch 3`."""
    return f"{rate_of(setting)}, {setting.when}"


def variant_label(variant: str) -> str:
    """`relearning, 13 steps` for `relearning@13`; `logit-lens, 50` for `logit-lens@50`."""
    attack, _, point = variant.partition("@")
    step = step_of(variant)
    if step is not None:
        return f"{attack}, {counted(step, 'step')}"
    return f"{attack}, {point}" if point else attack


def counted(count: int, noun: str) -> str:
    """`1 seed`, `3 seeds`."""
    return f"{count} {noun}{'s' * (count != 1)}"


def quality_text(metric: HeadlineMetric, value: float) -> str:
    """Number of what is forgotten, in a sentence: `p = 0.82`, or `0.123` where no test is behind.

    value  by the headline, so that of a test it is the logarithm of p
    """
    return f"p = {p_value(value)}" if metric.test else metric.text(value)


def share_kept(headline: Headline, share: float = UTILITY_SHARE) -> str:
    """The condition of every best setting."""
    return f"at least {100 * share:g} % of the start model's {headline.kept.plain_short}"


def best_rule(headline: Headline, share: float = UTILITY_SHARE, value: str = "") -> str:
    """The rule behind every best setting, see `Panel.best`; with the best value in brackets."""
    forgotten = headline.forgotten
    return (
        f"the {forgotten.best_word} {forgotten.name}{value and f' ({value})'} among settings that "
        f"keep {share_kept(headline, share)}"
    )


def _named(methods: Sequence[str]) -> str:
    more = len(methods) - NAMED
    return ", ".join(methods[:NAMED]) + (f" and {more} more" if more > 0 else "")


def without_retain_model(schema: BenchmarkSchema) -> str:
    """Return a sentence on what numbers leave open without a retain model; empty if there is one.

    Every view that shows numbers of a sweep has it.
    """
    if schema.has_retain:
        return ""
    if not schema.could_have_retain:
        return "This benchmark has no retain model, so over-forgetting cannot be seen."
    return (
        "Without a retain model, which never saw the forget rows, it is not known how much a model "
        f"should forget: {schema.headline.forgotten.plain_label} 1 is not the aim, and "
        "over-forgetting cannot be seen. Name a base model to close this gap (`base` in YAML, "
        "`--base` of `configs new`): a retain model is trained from it."
    )


def missing_for_privacy(schema: BenchmarkSchema) -> str:
    """Return a sentence on what is missing to answer what is private.

    Empty if nothing is, and of benchmarks that can never answer it.
    """
    unknown = "Whether what is left is private is not known"
    if "holdout" in schema.absent:
        also = "" if schema.has_retain else ", and a retain model"
        return (
            f"{unknown}: this needs rows like the forget rows that no model has seen (`holdout` in "
            f"the section `data` of YAML, `--holdout-rows` of commands){also}."
        )
    if schema.could_have_retain and schema.sets("holdout"):
        return (
            f"{unknown}: this needs a retain model, because holdout rows may differ from the "
            "forget rows in themselves, so that no number of a membership attack is an aim."
        )
    return ""


def best_lines(panel: Panel, most: int) -> list[str]:
    """The `most` best methods as a table, with the start and the retain model.

    Empty without a best setting.
    """
    start, headline, forgotten = panel.start, panel.headline, panel.headline.forgotten
    bests = [
        (best, place)
        for best, place in zip(panel.best, panel.places, strict=True)
        if best.setting is not None
    ]
    if start.fault or not bests:
        return []

    def cells(kept: float | None, quality: float | None) -> list[str]:
        p = [] if forgotten.test is None else ["-" if quality is None else p_value(quality)]
        return [headline.kept.text(kept), forgotten.text(quality), *p]

    numbers = [headline.kept.plain_short, forgotten.plain_short, *(["p"] if forgotten.test else [])]
    rows = [["method", "rate", str(panel.unit), *numbers, "seeds", "place"]]
    for best, place in bests[:most]:
        setting = best.setting
        if setting is None:
            continue
        rate = "-" if setting.learning_rate is None else float_text(setting.learning_rate)
        shown = cells(setting.kept, setting.forgotten)
        seeds = str(len(setting.rows))
        shown_place = "-" if place is None else str(place)
        rows.append([setting.method, rate, str(setting.epoch), *shown, seeds, shown_place])
    rows.append(["start model", "-", "0", *cells(start.utility, start.quality), "-", "-"])
    retain = panel.row("retain")
    if retain is not None:
        rows.append(["retain model", "-", "-", *cells(retain.kept, retain.forgotten), "-", "-"])
    if all(row[-2] in ("1", "-") for row in rows[1:]):
        rows = [row[:-2] for row in rows]
    right = [False, *[True] * (len(rows[0]) - 1)]
    lines = [best_heading(panel), *(f"  {line}" for line in aligned(rows, right))]
    unranked = [best for best in panel.best if best.choice is not None and best.why_not]
    return [*lines, *(f"  {best.method}: {best.why_not}" for best in unranked)]


def stopped_text(starts: Sequence[Start], count: int, folder: Path) -> str:
    """The error with which a sweep stops before its first run.

    Args:
        starts: The start models that have not learned their rows.
        count: Number of start models of the sweep.
        folder: Of the sweep.
    """
    of_count = "the start model" if count == 1 else f"{len(starts)} of {count} start models"
    lines = [f"nothing was swept, because {of_count} cannot show what a method does"]
    lines += [f"{start.place}: {start.fault}" for start in starts]
    lines.append(
        f"prepared models and evaluations are kept (`unlearnbench report {folder}` shows them); "
        "--force sweeps all the same"
    )
    return "\n".join(lines)


def best_heading(panel: Panel) -> str:
    """The title of a table of best settings, with the rule behind them."""
    if not panel.choices:
        return f"best of {panel.place}: {best_rule(panel.headline)}"
    return f"choices of {panel.place}, made on {seeds_of_choice(panel)}, on the other seeds"


def seeds_of_choice(panel: Panel) -> str:
    """The seeds that `select` or `tune` has chosen on: `seed 0`, or `seeds 0, 1`."""
    seeds = sorted({seed for choice in panel.choices for seed in choice.chosen_on})
    return f"seed{'s' * (len(seeds) != 1)} {', '.join(map(str, seeds))}"


def best_found(panel: Panel, leader: RankedMethod | None, lost: Sequence[RunOutcome] = ()) -> str:
    """The best method of a panel, what it has forgotten and kept; or why there is none.

    leader  the method whose best setting has forgotten most; None if none keeps its utility
    lost    runs of the panel that failed or collapsed
    """
    start, headline = panel.start, panel.headline
    kept, forgotten = headline.kept.plain_short, headline.forgotten
    evaluated = [row for row in panel.rows if is_evidence(row) and row.epoch > 0]
    if start.fault:
        forced = " Its runs were made all the same, as with --force." if start.stops else ""
        return f"No result: {start.fault}.{forced}"
    if not evaluated:
        return _none_evaluated(lost, panel)
    if start.utility is None:
        return f"No best setting: the start model, the reference of {kept}, was not evaluated."
    if all(row.forgotten is None for row in evaluated):
        lacking = ""
        if start.quality is None:
            model = "retain" if panel.rows[0].schema.has_retain else "start"
            lacking = f", which needs an evaluated {model} model"
        return f"No best setting: no run has a {forgotten.name}{lacking}."
    best = None if leader is None else leader.best
    if leader is None or best is None:
        return _no_choice_ranked(panel) if panel.choices else _none_keeps(panel, start.utility)
    quality, utility = best.forgotten or 0.0, best.kept or 0.0
    what = "choice" if leader.chosen_on else "setting"
    if start.quality is not None and start.unmoved(quality):
        return (
            f"No method forgot: no {what} that keeps {share_kept(headline)} has a "
            f"{forgotten.better} {forgotten.name} than the start model "
            f"({quality_text(forgotten, start.quality)}). Try higher rates, or more "
            f"{panel.unit.plural}."
        )
    test = forgotten.test
    passes = test is None or quality > math.log10(test.level)
    lead = f"{setting_name(best)}, is recommended: it has"
    if leader.chosen_on:
        seeds = ", ".join(map(str, leader.chosen_on))
        chosen = f"chosen on seed{'s' * (len(leader.chosen_on) != 1)} {seeds}"
        lead = f"{setting_name(best)}, {chosen}, is recommended: on the other seeds it has"
    if not passes:
        lead = f"No method forgot enough: {lead.replace('is recommended:', 'comes closest:')}"
    value = quality_text(forgotten, quality)
    text = f"{lead} {best_rule(headline, value=value)}"
    if leader.chosen_on:
        text = (
            f"{lead} the {forgotten.best_word} {forgotten.name} ({value}) among choices that keep "
            f"{share_kept(headline)}"
        )
    lines = [f"{text}."]
    if start.utility:
        share = f"{100 * utility / start.utility:.0f} %"
        lines.append(
            f"Its {kept} is {utility:.3f}, {share} of the start model's {start.utility:.3f}."
        )
    ends = best.spread(forgotten.column)
    if test is not None and not passes:
        lines.append(
            f"Up to p = {test.level:g} the test still distinguishes a model from one that never "
            "saw the forget set."
        )
    elif ends is not None:
        low, high = (p_value(end) if test else forgotten.text(end) for end in ends)
        name = "p" if test else forgotten.name
        lines.append(f"Over its {leader.seeds} seeds, {name} is between {low} and {high}.")
    return " ".join(lines)


def _none_keeps(panel: Panel, utility: float) -> str:
    """Say that no setting keeps enough, and which one keeps most."""
    headline = panel.headline
    trained = [setting for setting in panel.settings if setting.epoch]
    able = [setting for setting in trained if setting.forgotten is not None]
    having = "" if len(able) == len(trained) else f" with a {headline.forgotten.name}"
    kept = headline.kept.plain_short
    text = f"No setting{having} keeps {share_kept(headline)} ({utility:.2f})."
    lost = dict.fromkeys(setting.why_not for setting in trained if setting.why_not)
    if lost:
        text += f" Settings whose seeds ended early have no mean: {_named(list(lost))}."
    known = [(item.kept, item) for item in able or trained if item.kept is not None]
    if not known:
        return f"{text} None of them has a number for {kept}."
    most, setting = max(known, key=itemgetter(0))
    return f"{text} {setting_name(setting)}, has the highest {kept}: {most:.2f}."


def _no_choice_ranked(panel: Panel) -> str:
    """Say why no method has a choice that can be ranked; methods of one reason together."""
    methods_of_reason: dict[str, list[str]] = {}
    for best in panel.best:
        methods_of_reason.setdefault(best.why_not, []).append(best.name)
    reasons = [f"{reason} ({_named(names)})" for reason, names in methods_of_reason.items()]
    return f"No method has a place: {'; '.join(reasons)}."


def _none_evaluated(lost: Sequence[RunOutcome], panel: Panel) -> str:
    """Say why no run of a panel has a number that counts."""
    if not lost:
        return "No run has been evaluated yet."
    ends = Counter(item.status for item in lost)
    counts = " and ".join(f"{count} {status}" for status, count in sorted(ends.items()))
    example = f"{lost[0].title}: {lost[0].reason or 'no reason is recorded'}"
    # A failed run may have been evaluated before. It says nothing, because it is tried again.
    was_evaluated = any(row.kind == "run" and row.epoch > 0 for row in panel.rows)
    event = "ended with a result" if was_evaluated else "reached its first evaluation"
    text = f"No result: no run has {event} ({counts}). The first: {example}."
    return f"{text} Try lower rates." if ends["collapsed"] else text


def doubts(order: PanelOrder, ahead: Sequence[str] = ()) -> Iterator[str]:
    """How sure the leading method's lead is: rivals, seeds, and what the test can detect.

    Args:
        order: Order of a panel's methods.
        ahead: Methods that forget significantly more than the leading one at equal utility.
    """
    leader = order.leader
    if leader is None or leader.best is None:
        return
    if order.rivals is not None:
        yield from _against_rivals(order.rivals, ahead)
    without = [method for method in order.methods if method.best is None]
    if by_rule := [item.method for item in without if not (item.chosen_on or item.lost)]:
        yield f"No setting keeps {share_kept(leader.best.headline)}: {_named(by_rule)}."
    for method in without:
        if method.chosen_on or method.lost:
            yield f"{method.method} has no place: {method.why_not}."
    seeds = "one seed" if leader.seeds == 1 else counted(leader.seeds, "seed")
    few = f": use at least {ENOUGH_SEEDS} to rank methods" if leader.seeds < ENOUGH_SEEDS else ""
    yield f"Based on {seeds}{few}."
    if order.sensitivity is not None:
        yield order.sensitivity.summary


def _against_rivals(rivals: Rivals, ahead: Sequence[str]) -> Iterator[str]:
    """Say which methods the leading one beats, and against which nothing is decided.

    Args:
        rivals: Tests of the leading method.
        ahead: Methods that forget significantly more at equal utility.
    """
    runner_up = rivals.runner_up
    reason = rivals.untested.get(runner_up)
    if reason is not None:
        reason = _within_a_sentence(reason)
        yield (
            f"Undecided: {rivals.leader} is not comparable with {runner_up}, the runner-up: "
            f"{reason}."
        )
    if ahead:
        yield f"At equal utility it forgets significantly less than {listed_names(ahead)}."

    def marked(names: Iterable[str]) -> str:
        """List methods, and say which of them is the runner-up."""
        return listed_names(
            [f"{name} (the runner-up)" if name == runner_up else name for name in names]
        )

    undecided = [name for name in rivals.same if name not in ahead]
    if undecided:
        yield (
            f"Undecided against {marked(undecided)}: at equal utility, the difference may be "
            "chance."
        )
    # Their test is over questions. Whether other seeds give the same, no test can say.
    unknown = [name for name in rivals.apart if name in rivals.few_seeds]
    if unknown:
        yield (
            f"Undecided against {marked(unknown)}: at equal utility, the difference is more than "
            f"chance over questions, but with fewer than {ENOUGH_SEEDS} seeds it may be chance "
            "over seeds."
        )
    behind = [name for name in rivals.apart if name not in rivals.few_seeds]
    if behind:
        yield f"At equal utility it forgets significantly more than {listed_names(behind)}."
    others = [name for name in rivals.untested if name != runner_up]
    if others:
        yield f"No comparison at equal utility was possible with {listed_names(others)}."


def listed_names(names: Sequence[str]) -> str:
    """`a, b and c`; of more than `NAMED`, the first ones and a count."""
    if len(names) > NAMED or len(names) < 2:
        return _named(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _within_a_sentence(reason: str) -> str:
    """Begin a reason with a small letter, unless it begins with the name of a method."""
    first, _, rest = reason.partition(" ")
    return f"{first.lower()} {rest}" if first in ("No", "The", "One") else reason


def order_sentences(order: PanelOrder) -> tuple[str, ...]:
    """`doubts`, the methods of one place, and differences in training."""
    places = [method.place for method in order.methods if method.place is not None]
    shared = [
        " and ".join(item.method for item in order.methods if item.place == location)
        for location, count in Counter(places).items()
        if count > 1
    ]
    lines = [*doubts(order), *_without_order(order)]
    if shared:
        lines.append(f"Tied (the difference is within seed noise): {'; '.join(shared)}.")
    return (*lines, *(f"Trained differently: {clause}." for clause in order.unequal))


def _without_order(order: PanelOrder) -> Iterator[str]:
    """Name the methods with too few seeds for a place, by their number of seeds."""
    methods_of_count: dict[int, list[str]] = {}
    for method in order.methods:
        if method.best is not None and method.place is None:
            methods_of_count.setdefault(method.seeds, []).append(method.method)
    for count, methods in sorted(methods_of_count.items()):
        seeds = {1: "One seed", 2: "Two seeds"}.get(count, "Too few seeds")
        yield f"{seeds}: no order ({_named(methods)})."


def ranks_summary(claims: OrderConfidence) -> str:
    """The data behind the ranks."""
    count = len(claims.panels)
    source = f"{count} panels (models × splits)"
    if count < 2:
        source = "one panel: they hold for this model and split only"
    ranked = [item.method for item in claims.ranks if item.mean is not None]
    others = [item.method for item in claims.ranks if item.mean is None]
    text = f"Ranks of {counted(len(ranked), 'method')} by their best settings, from {source}."
    without: dict[str, list[RankedMethod]] = {}
    for panel in claims.panels:
        for method in panel.methods:
            if method.best is None:
                without.setdefault(method.method, []).append(method)
    by_rule: list[str] = []
    unplaced: list[str] = []
    for name in ranked:
        lacking = without.get(name, [])
        panel_count = f" ({len(lacking)} of {count})" if count > 1 else ""
        # A choice may have no numbers yet, and a seed that ended early leaves no mean.
        if any(method.chosen_on or method.lost for method in lacking):
            unplaced.append(name + panel_count)
        elif lacking:
            by_rule.append(name + panel_count)
    if by_rule:
        text += f" Last because no setting keeps its utility: {', '.join(by_rule)}."
    if unplaced:
        text += f" Last without a place: {', '.join(unplaced)}."
    if others:
        text += f" Left out because not run on every panel: {', '.join(others)}."
    return text


# Attacks


def share_given_back(attacked: AttackedSetting) -> str:
    """Return `42 % [31, 53 %]`, the share that is given back with its interval or range."""
    share, interval = 1 - (attacked.lasting or 0.0), attacked.lasting_interval
    if interval is None:
        return f"{_percent(share)} % (one seed, no interval)"
    ends = f"{_percent(1 - interval.high)}, {_percent(1 - interval.low)} %"
    if interval.is_range:
        return f"{_percent(share)} % (min-max {ends})"
    over = " over questions" if interval.over == "questions" else ""
    return f"{_percent(share)} % [{ends}{over}]"


def _percent(share: float) -> int:
    """Return a share in per cent, cut at 0 and 100: an interval of few seeds reaches beyond."""
    return round(100 * max(0.0, min(1.0, share)))


def _lasts(item: AttackedSetting, *, is_leader: bool = False) -> str:
    """Return a sentence on what comes back of a setting under its worst attack.

    Args:
        item: The setting.
        is_leader: Whether the sentence before was about the same setting, so that no name is
            needed.
    """
    name = "It" if is_leader else f"{setting_name(item.setting)},"
    worst = item.worst
    if item.bypassed_by:
        verb = "runs" if len(item.bypassed_by) == 1 else "run"
        return (
            f"{name} is bypassed, not robust: it leaves the weights as they are, and "
            f"{' and '.join(item.bypassed_by)} {verb} the model without it."
        )
    if worst is None:
        return f"{name} is not scored: {item.why_not}."
    of_what = "it removed" if is_leader else f"{name} removed"
    returned = (
        f"Under {variant_label(worst.variant)}, {share_given_back(item)} of what {of_what} "
        f"comes back{_how_sure(item)}"
    )
    return f"{returned}: {_numbers_of(worst)}."


def _how_sure(item: AttackedSetting) -> str:
    if item.comes_back:
        return ""
    return ", next to nothing" if item.gives_little else ", not more than by chance"


def _numbers_of(under: UnderAttack) -> str:
    """Return the numbers of a setting before an attack and under it, with both other models'."""
    values = under.before, under.after, under.retain.before, under.retain.after, under.start.before
    before, after, retain_before, retain_after, start = (
        "undefined" if value is None else f"{value:.3f}" for value in values
    )
    measured = under.measured
    label = "the number" if measured is None else measured.after.label.lower()
    of_samples = measured is not None and measured.before != measured.after
    link = "and" if of_samples else "to"
    models = f"start model: {start}"
    if under.floor is None:
        models = (
            f"retain model, which never saw these rows: {retain_before} {link} {retain_after}; "
            f"{models}"
        )
    if measured is not None and of_samples:
        # Of samples, which are compared with the greedy answer.
        return (
            f"{measured.before.label.lower()} of the greedy answer is {before}, and {label} is "
            f"{after} ({models})"
        )
    return f"{label} goes from {before} to {after} ({models})"


def lasting(attacked: AttackedPanel | None, leader: Setting | None) -> str:
    """Return a sentence on what comes back of the leading setting.

    Args:
        attacked: None if no attack was run.
        leader: None if no setting keeps its utility.
    """
    if leader is None:
        return ""
    if attacked is None:
        return (
            "Robustness unknown: no attack was run "
            f"(`--set 'attacks={attack_to_add(leader.learning_rate)}'` adds one)."
        )
    of_leader = attacked.of(leader)
    if of_leader is None or not of_leader.under:
        reason = "it was not attacked" if of_leader is None else of_leader.why_not
        return f"Robustness unknown: {reason}. {_ATTACK_EVERY}"
    if of_leader.not_attacked:
        return f"Robustness unknown: {of_leader.why_not}. {_ATTACK_EVERY}"
    if of_leader.worst is None:
        return f"Robustness unknown: {of_leader.why_not}."
    return _lasts(of_leader, is_leader=True)


def attack_to_add(learning_rate: float | None) -> str:
    """Return `{relearning: {learning_rate: 0.001}}`, an attack for a sweep that has none.

    The attack's default rate is for a model of 7B, and does not move a tiny model. A rate at which
    the model unlearns moves it.
    """
    if learning_rate is None:
        return "[relearning]"
    return f"{{relearning: {{learning_rate: {learning_rate:g}}}}}"


_ATTACK_EVERY = "`at: every` of an attack attacks each evaluated epoch."


def attack_sentences(panel: AttackedPanel) -> tuple[str, ...]:
    """List what comes back: most, then of each method's best setting; and the baseline.

    A method without a best setting, or whose best setting was not attacked, has a sentence that
    says so.
    """
    listed = [*panel.best]
    most = panel.most
    if most is not None and most not in listed:
        listed.append(most)
    listed.sort(
        key=lambda item: (
            item != most,
            item.lasting is None,
            item.lasting or 0.0,
            item.setting.family,
        )
    )
    lines = [_lasts(item) for item in listed]
    lines += [f"{best.name} is not scored: {best.why_not}." for best in panel.without_best]
    return (*lines, _baseline(panel)) if lines else ()


def single_attack_sentences(panel: AttackedPanel, attack: str) -> tuple[str, ...]:
    """List what an attack gives back of a model that was evaluated by itself.

    Args:
        panel: Panel with one setting, see `Results.lasting`.
        attack: Name of the attack.

    Returns:
        The verdict; the change and the retain model's, with intervals over questions.
    """
    (setting,) = panel.settings
    item = setting.only(attack)
    # A model that is judged by itself has no epochs, so that naming one would only puzzle.
    reason = item.why_not.removesuffix(f" at {item.setting.when}")
    under = item.worst or item.most_gained
    if under is None or under.gain is None:
        return (f"{attack}: not scored: {reason or 'a number behind it is undefined'}.",)
    points = sum(point.gain is not None for point in item.under)
    which = f", the worst of {points} points" if points > 1 else ""
    label = f"{variant_label(under.variant)}{which}"
    if item.worst is None:
        verdict = f"{label}: not scored: {reason}."
    elif item.comes_back:
        verdict = (
            f"{label}: it gives back {share_given_back(item)} of what was removed: "
            f"{_numbers_of(under)}."
        )
    else:
        verdict = (
            f"{label}: no sign that anything comes back ({share_given_back(item)} of what was "
            f"removed): {_numbers_of(under)}."
        )
    return verdict, _change(under, points)


def start_fault_sentence(attack: str, fault: str) -> str:
    """Return a sentence on why an attack on one model is not scored.

    Args:
        attack: Name of the attack.
        fault: `Start.fault` of the start model. Its first sentence is the reason, and the others
            are advice for a sweep.
    """
    reason = fault.partition(". ")[0].removesuffix(".")
    return f"{attack}: not scored: {reason}."


def unknown_under_attack(*, has_retain: bool, has_start: bool) -> tuple[str, ...]:
    """List what attacks on one model leave unknown without a retain or a start model."""
    lines: list[str] = []
    if not has_retain:
        lines.append(
            "Not known: what the attack teaches a model that never saw the forget rows (--retain)."
        )
    if not has_start:
        lines.append(
            "Not known: how much of the forget rows was removed, and how much utility is kept "
            "(--start)."
        )
    return tuple(lines)


def _change(under: UnderAttack, points: int) -> str:
    """Return a sentence on what a model gains under an attack, beyond the retain model's gain."""
    level = worst_of_level(points)
    questions = under.questions
    ends = None if questions is None else questions.gain_interval(level)
    count = "" if questions is None else f" over {questions.count} questions"
    gain = under.sign * (under.gain or 0.0)
    line = f"Gain{count}: {gain:+.3f}{between(ends, '+.3f')}"
    if under.floor is not None:
        return (
            f"{line}. There is no retain model, so all of it counts as given back: part of it may "
            "be what the attack teaches any model."
        )
    if under.excess is None or under.null is None:
        return f"{line}. It is unknown what a model gains that never saw the rows."
    beyond = None if questions is None else questions.excess_interval(level)
    excess = under.sign * under.excess
    return (
        f"{line}; the retain model's: {under.sign * under.null:+.3f}; beyond it: "
        f"{excess:+.3f}{between(beyond, '+.3f')}."
    )


def _baseline(panel: AttackedPanel) -> str:
    """The largest gain of the retain model itself, under any attack."""
    if not panel.has_retain:
        return (
            "Without a retain model it is not known what an attack teaches any model: the whole "
            "gain counts as given back, so at most this much comes back."
        )
    gains_by_column: dict[MetricColumn, dict[str, float]] = {}
    for variant, shift in panel.retain.items():
        measured = panel.measured[variant]
        if measured is not None and shift.gain is not None:
            gains = gains_by_column.setdefault(measured.after, {})
            gains[variant] = measured.sign * shift.gain
    if not gains_by_column:
        was_attacked = any(shift.after is not None for shift in panel.retain.values())
        nothing_is_measured = all(measured is None for measured in panel.measured.values())
        known = "What the retain model itself gains is not known"
        if not was_attacked and not nothing_is_measured:
            known = "The retain model was not attacked"
        return f"{known}: without that baseline nothing can be judged."
    lines: list[str] = []
    for column, gains in gains_by_column.items():
        of = "" if column == panel.column else f" by {column.label.lower()}"
        most = max(gains, key=lambda v: gains[v])
        if gains[most] < 0.005:
            lines.append(f"The retain model itself gains nothing{of}, under any attack.")
        else:
            under = variant_label(most)
            lines.append(
                f"The retain model itself gains at most {gains[most]:.2f}{of}, under {under}."
            )
    return " ".join(lines)


# Comparison of two methods


def compare_rule(tolerance: float, headline: Headline, *, chooses: bool = False) -> str:
    """The rule of a comparison, printed below it.

    Args:
        tolerance: Most that equal utilities differ.
        headline: Of the benchmark.
        chooses: Whether the sweep of a side has chosen its setting on some seeds.
    """
    kept = headline.kept.plain_short
    text = (
        f"A side's best setting has {best_rule(headline)}. Both sides must have about the same "
        f"{kept} (within {tolerance:g}): the higher {kept} of the two best settings counts, and "
        "the other method is represented by its best setting with at least that."
    )
    if not chooses:
        return text
    return (
        f"{text} A side whose sweep has chosen its setting on some seeds takes part with this "
        "setting only, on the other seeds."
    )


def verdict(panel: PanelComparison, a: str, b: str, tests: int) -> tuple[str, ...]:
    """The result of one panel: verdict, significance and caveats, a line each.

    tests  number of tested panels, over which p-values are adjusted
    """
    a_side, b_side = panel.a, panel.b
    lacks_test = panel.test is None and panel.headline.forgotten.test is not None
    if a_side is None or b_side is None or lacks_test:
        advice = f" {panel.advice}." if panel.advice else ""
        return (f"{panel.place}: {a} and {b} are not compared. {panel.why_not}.{advice}",)
    sure = (
        _seeds_differ(panel.over_seeds, panel.headline.forgotten)
        if panel.test is None
        else _significance(panel, panel.test, tests)
    )
    caveats = [*_caveats(panel, a_side, b_side)]
    lines = [f"{panel.place}: {_claim(panel, a_side, b_side)}", sure]
    if caveats:
        lines.append(f"Caveats: {'; '.join(caveats)}.")
    return (*lines, *([panel.sensitivity.summary] if panel.sensitivity else []))


def _claim(panel: PanelComparison, a: Side, b: Side) -> str:
    """Which side forgets more, with the numbers: of the test, or of the headline without one."""
    first, second = (b, a) if panel.better is b else (a, b)
    kept, metric, test = panel.headline.kept, panel.headline.forgotten, panel.test
    sentence = f"{first.name} forgets more than {second.name}"
    if panel.better is None:
        sentence = f"these runs do not show whether {a.name} or {b.name} forgets more"
    utilities = f"{kept.plain_label} {kept.text(first.utility)} and {kept.text(second.utility)}"
    if panel.equal_utility:
        condition = f"at equal {kept.plain_short} ({utilities})"
    elif panel.better is not None:
        condition = f"and keeps more {kept.plain_short} ({utilities})"
    else:
        keeper = first if first.utility > second.utility else second
        condition = f"({utilities}: {keeper.name} keeps more)"
    if test is None:
        shown = f"{a.name} {metric.text(a.quality)}, {b.name} {metric.text(b.quality)}"
        return f"{sentence} {condition}. {metric.name}: {shown}; {metric.better} is better."
    distances = {a.name: test.distance_a, b.name: test.distance_b}
    return (
        f"{sentence} {condition}. {first.name} is at D = {distances[first.name]:.3f}, "
        f"{second.name} at {distances[second.name]:.3f}; D is the distance of a model's truth "
        "ratios from those of a model that never saw the forget set, 0 at best and 1 at worst."
    )


def _seeds_differ(interval: Interval | None, metric: HeadlineMetric) -> str:
    if interval is None:
        return "One pair of runs gives no interval: run both on at least three seeds."
    return (
        f"The difference of {metric.text(interval.mean)} lies between {metric.text(interval.low)} "
        f"and {metric.text(interval.high)} ({interval.name})."
    )


def _significance(panel: PanelComparison, test: PairedTest, tests: int) -> str:
    low, high = test.low, test.high
    if test.difference < 0:
        low, high = -high, -low
    adjusted = panel.p_adjusted if panel.p_adjusted is not None else test.p_value
    holm = f" (Holm-adjusted over {tests} panels)" if tests > 1 else ""
    text = (
        f"The difference of {abs(test.difference):.3f} has p = {adjusted:.2g}{holm} and a "
        f"{100 * test.level:.0f} % interval from {low:.3f} to {high:.3f}, over {test.n} questions "
        f"and {counted(test.seeds, 'seed')}."
    )
    if panel.better is not None:
        return text
    if low <= 0 <= high and adjusted <= SIGNIFICANCE:
        text += " The answers differ, but the interval contains 0."
    return (
        f"{text} A difference of about {test.detectable:.2f} would be detected in "
        f"{100 * POWER:.0f} % of cases; a smaller one may remain undetected."
    )


def _caveats(panel: PanelComparison, a: Side, b: Side) -> Iterator[str]:
    test = panel.test
    if test is not None and test.seeds < ENOUGH_SEEDS:
        yield (
            f"there {'is' if test.seeds == 1 else 'are'} only {counted(test.seeds, 'seed')}, and "
            "the test generalizes to other questions, not to other seeds"
        )
    by_numbers = [item for item in (a, b) if not item.chosen_on]
    if any(number.tried > 1 for number in by_numbers):
        counts = ", ".join(f"{number.name}: {number.tried}" for number in by_numbers)
        moments = " or ".join(sorted({a.unit.plural, b.unit.plural}))
        yield (
            "settings were chosen by the numbers they are compared on, which favours the method "
            f"with more settings tried ({counts}, as learning rates × hyperparameters × "
            f"{moments}); "
            f"{'p and the interval allow' if test else 'the interval does not allow'} for that"
        )
    for item in (a, b):
        if item.chosen_on:
            seeds = f"seed{'s' * (len(item.chosen_on) > 1)} {', '.join(map(str, item.chosen_on))}"
            yield (
                f"{item.name} was chosen from {item.tried} settings on {seeds}, and is compared on "
                "other seeds, but over the same questions"
            )
    if a.seeds != b.seeds:
        yield "the sides have no seed in common; runs are paired in seed order"
    if panel.unequal:
        yield f"they are trained differently: {', '.join(panel.unequal)}"


# One model


def between(ends: tuple[float, float] | None, form: str = ".3f") -> str:
    """` [0.120, 0.340]`; empty without an interval."""
    return "" if ends is None else f" [{ends[0]:{form}}, {ends[1]:{form}}]"


def model_sentences(
    row: TableRow, over_questions: OverQuestions, intervals: Mapping[str, Ends], profile: str
) -> tuple[str, ...]:
    """Answer whether a model has forgotten, is private, and keeps the rest, as far as known.

    Args:
        row: The model.
        over_questions: The models that it is compared with, and tests over questions.
        intervals: `OverQuestions.intervals` of the row.
        profile: Id of the evaluation rules.
    """
    lines = (
        " ".join(_forgotten(row, over_questions)),
        _private(row, over_questions),
        _kept(row, over_questions.kept_share(row), intervals, profile),
        _lacking(over_questions),
        missing_for_privacy(row.schema),
    )
    return tuple(line for line in lines if line)


def _forgotten(row: TableRow, over_questions: OverQuestions) -> Iterator[str]:
    if removed := _removed(row):
        yield removed
    test = row.headline.forgotten.test
    if over_questions.retain is not None and test is not None:
        p = row.metrics.get(test.p_value)
        distance = row.metrics.get(test.distance)
        if p is not None and distance is not None:
            answer, verb = "No", "distinguishes"
            if p > test.level:
                answer, verb = "Perhaps", "does not distinguish"
            yield (
                f"Forgotten? {answer}: {test.label} p = {p:.2g} {verb} it from the retain "
                f"model (D = {distance:.3g})."
            )
            if over_questions.sensitivity:
                yield over_questions.sensitivity.summary
    memorization = over_questions.memorization(row)
    if memorization is not None:
        more = "no difference beyond chance"
        if memorization.is_above:
            more = "more is memorised than there"
        elif memorization.is_below:
            more = "less is memorised than there"
        yield (
            f"{memorization.label}: {memorization.value:.3f}, the retain model's "
            f"{memorization.retain:.3f}; difference {memorization.value - memorization.retain:+.3f}"
            f"{between(memorization.interval, '+.3f')}, {more}."
        )


def _removed(row: TableRow) -> str:
    """Say how much is gone without a retain model; empty if there is one, or if it is not known."""
    schema = row.schema
    if schema.has_retain or not schema.could_have_retain or row.forgotten is None:
        return ""
    forgotten = row.headline.forgotten
    return (
        f"Forgotten? {forgotten.plain_label} {forgotten.text(row.forgotten)} of what the start "
        "model knows of the forget rows. Without a retain model, 1 is not the aim, and "
        "over-forgetting cannot be seen."
    )


def _private(row: TableRow, over_questions: OverQuestions) -> str:
    attack = over_questions.strongest_attack(row)
    if attack is None:
        return ""
    whose = "½, chance" if attack.retain is None else f"{attack.retain:.2f}, the retain model's"
    answer = "Not known"
    if attack.interval is not None:
        low, high = attack.interval
        answer = "Perhaps" if low <= attack.aim <= high else "No"
    return (
        f"Private? {answer}: of all membership attacks {attack.label} is farthest off, "
        f"AUC {attack.area:.2f}{between(attack.interval, '.2f')}; the aim is {whose}."
    )


def _kept(row: TableRow, share: float | None, intervals: Mapping[str, Ends], profile: str) -> str:
    kept = row.headline.kept
    if row.kept is None:
        return ""
    if max(row.uncounted.values(), default=0.0) >= MOST_ANSWERS and row.kept == 0:
        return (
            f"Kept? Not known: {kept.plain_label} is 0 because profile {profile.partition('@')[0]} "
            f"does not count the words of the true answers of {', '.join(row.uncounted)}."
        )
    text = f"Kept? {kept.plain_label} {row.kept:.3f}{between(intervals.get(kept.column))}"
    ends = intervals.get(KEPT_SHARE)
    if ends is None or share is None:
        return f"{text}."
    percent, low, high = (f"{100 * value:.0f}" for value in (share, *ends))
    return f"{text}, which is {percent} % [{low}, {high} %] of the start model's."


def _lacking(over_questions: OverQuestions) -> str:
    never_saw = "is it forgotten and private, against a model that never saw the forget rows"
    needed = {
        f"pass --retain to answer: {never_saw}": over_questions.retain,
        "pass --start to answer: how much is kept of the model before unlearning": (
            over_questions.start
        ),
    }
    lacking = "; ".join(text for text, given in needed.items() if given is None)
    return f"Not known: {lacking}." if lacking else ""
