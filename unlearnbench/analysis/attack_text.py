"""Attacks in words: what comes back of each method, and what the attack teaches any model.

What comes back is 1 − *lasting*, a share of what the method removed (see `lasting.py`). A *gain* is
a model's number under the attack less its number before it. The *baseline* is the gain of the
retain model, which never saw the forget rows.
"""

from unlearnbench.analysis.lasting import AttackedPanel, AttackedSetting
from unlearnbench.analysis.settings import Setting
from unlearnbench.analysis.under_attack import UnderAttack, worst_of_level
from unlearnbench.analysis.wording import between, setting_name, variant_label
from unlearnbench.api.metric import MetricColumn
from unlearnbench.results.attack_variants import attack_of, is_tuned

_ATTACK_EVERY = "`at: every` of an attack attacks each evaluated epoch."
_NO_GAIN = 0.005
"""Gain that is shown as 0.00, and called none."""


# Of a sweep


def lasting(attacked: AttackedPanel | None, leader: Setting | None) -> str:
    """Return a sentence on what comes back of the leading setting.

    Args:
        attacked: The panel under attacks; None if no attack was run.
        leader: The setting; None if no setting keeps its utility.
    """
    if leader is None:
        return ""
    if attacked is None:
        return (
            "Robustness unknown: no attack was run "
            f"(`--set 'attacks={attack_to_add(leader.learning_rate)}'` adds one)."
        )
    of_leader = attacked.of(leader)
    if of_leader is None:
        return f"Robustness unknown: it was not attacked. {_ATTACK_EVERY}"
    if not of_leader.under or of_leader.not_attacked:
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


def attack_sentences(panel: AttackedPanel) -> tuple[str, ...]:
    """List what comes back: of the least robust setting, of each best setting, of the baseline.

    If a method has no best setting, or its best setting was not attacked, a sentence says so.
    """
    listed = list(panel.best)
    most = panel.most
    if most is not None and most not in listed:
        listed.append(most)

    def position(attacked: AttackedSetting) -> tuple[bool, bool, float, str]:
        """Return a sort key: `most` first, then by lasting; without a score last."""
        lasting = attacked.lasting
        return attacked != most, lasting is None, lasting or 0.0, attacked.setting.family

    listed.sort(key=position)
    lines = [_lasts(attacked) for attacked in listed]
    lines += [f"{best.name} is not scored: {best.why_not}." for best in panel.without_best]
    return (*lines, _baseline(panel)) if lines else ()


def share_given_back(attacked: AttackedSetting) -> str:
    """Return `42 % [31, 53 %]`, the share that is given back with its interval or range."""
    percent = _percent(1 - (attacked.lasting or 0.0))
    interval = attacked.lasting_interval
    if interval is None:
        return f"{percent} % (one seed, no interval)"
    ends = f"{_percent(1 - interval.high)}, {_percent(1 - interval.low)} %"
    if interval.is_range:
        return f"{percent} % (min-max {ends})"
    over = " over questions" if interval.over == "questions" else ""
    return f"{percent} % [{ends}{over}]"


def _percent(share: float) -> int:
    """Return a share in per cent, cut at 0 and 100: an interval of few seeds reaches beyond."""
    return round(100 * max(0.0, min(1.0, share)))


def _lasts(attacked: AttackedSetting, *, is_leader: bool = False) -> str:
    """Return a sentence on what comes back of a setting under its worst attack.

    Args:
        attacked: The setting.
        is_leader: Whether the sentence before was about the same setting, so that no name is
            needed.
    """
    name = "It" if is_leader else f"{setting_name(attacked.setting)},"
    if attacked.bypassed_by:
        verb = "runs" if len(attacked.bypassed_by) == 1 else "run"
        return (
            f"{name} is bypassed, not robust: it leaves the weights as they are, and "
            f"{' and '.join(attacked.bypassed_by)} {verb} the model without it."
        )
    worst = attacked.worst
    if worst is None:
        return f"{name} is not scored: {attacked.why_not}."
    who = "it" if is_leader else name
    return (
        f"Under {worst.label}{_attacker(worst)}, {share_given_back(attacked)} of what {who} "
        f"removed comes back{_how_sure(attacked)}: {_numbers_of(worst)}."
    )


def _attacker(under: UnderAttack, *, has_seeds: bool = True) -> str:
    """Return the attacker that a search chose, its seeds and what it leaves, in brackets.

    Empty without a search. The attacker counts by the utility on the seeds of the choice, so the
    utility on the reported seeds has to be seen.

    Args:
        under: The setting under the attack.
        has_seeds: Whether the model is from a sweep. A model that is judged by itself has no seed.
    """
    tuned = under.tuned
    if tuned is None:
        return ""
    kept = ""
    if tuned.utility_kept is not None:
        kept = f"; the attacked model keeps {100 * tuned.utility_kept:.0f} % of its utility"
    parts = tuned.seeds_text if has_seeds else "chosen on half of the rows, reported on the others"
    return f" ({tuned.settings}; {parts}{kept})"


def _how_sure(attacked: AttackedSetting) -> str:
    """Return what limits the claim that something comes back; empty if nothing does."""
    if attacked.comes_back:
        return ""
    return ", next to nothing" if attacked.gives_little else ", not more than by chance"


def _numbers_of(under: UnderAttack) -> str:
    """Return the numbers of a setting before an attack and under it, with both other models'."""
    before, after = _number(under.before), _number(under.after)
    measured = under.measured
    label = "the number" if measured is None else measured.after.label.lower()
    is_of_samples = measured is not None and measured.is_of_samples
    models = f"start model: {_number(under.start.before)}"
    if under.floor is None:
        link = "and" if is_of_samples else "to"
        retain = f"{_number(under.retain.before)} {link} {_number(under.retain.after)}"
        if under.tuned is not None:
            own = under.tuned.retain_after
            if own is None:
                retain += ", and no attacker could be chosen for it"
            else:
                retain += f", and to {_number(own)} under the attacker chosen for it"
        models = f"retain model, which never saw these rows: {retain}; {models}"
    if measured is not None and is_of_samples:
        # Sampling changes no model, so no number goes from one value to another.
        return (
            f"{measured.before.label.lower()} of the greedy answer is {before}, and {label} is "
            f"{after} ({models})"
        )
    return f"{label} goes from {before} to {after} ({models})"


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"


def _baseline(panel: AttackedPanel) -> str:
    """Return a sentence on the largest gain of the retain model itself, under any attack."""
    if not panel.has_retain:
        return (
            "Without a retain model it is not known what an attack teaches any model: the whole "
            "gain counts as given back, so at most this much comes back."
        )
    gains_of_column = _retain_gains(panel)
    without_attacker = _searches_without_attacker(panel)
    if not gains_of_column and without_attacker:
        return (
            f"No attacker of {' and '.join(without_attacker)} could be chosen for the retain model "
            "itself. Its gain is known only under the attackers of the methods."
        )
    if not gains_of_column:
        was_attacked = any(shift.after is not None for shift in panel.retain.values())
        nothing_is_measured = all(measured is None for measured in panel.measured.values())
        known = "What the retain model itself gains is not known"
        if not was_attacked and not nothing_is_measured:
            known = "The retain model was not attacked"
        return f"{known}: without that baseline nothing can be judged."
    sentences: list[str] = []
    for column, gains in gains_of_column.items():
        by_column = "" if column == panel.column else f" by {column.label.lower()}"
        variant, gain = max(gains.items(), key=lambda variant_and_gain: variant_and_gain[1])
        if gain < _NO_GAIN:
            sentences.append(
                f"The retain model itself gains nothing{by_column}, under {_any_attack(panel)}."
            )
        else:
            sentences.append(
                f"The retain model itself gains at most {gain:.2f}{by_column}, under "
                f"{variant_label(variant)}."
            )
    return " ".join(sentences)


def _any_attack(panel: AttackedPanel) -> str:
    """Return `any attack`. Of a search, only the attacker that was chosen for a model counts."""
    tuned = [variant for variant in panel.variants if is_tuned(variant)]
    with_attacker = [
        attack_of(variant) for variant in tuned if panel.retain[variant].gain is not None
    ]
    without = [attack_of(variant) for variant in tuned if attack_of(variant) not in with_attacker]
    exception = f" except {' and '.join(without)}" if without else ""
    if not with_attacker:
        return f"any attack{exception}"
    chosen = f"the attacker that {' and '.join(with_attacker)} chose for it"
    if len(tuned) == len(panel.attacks):
        return chosen
    return f"any other attack{exception} or {chosen}"


def _searches_without_attacker(panel: AttackedPanel) -> list[str]:
    """Return the attacks for which no attacker could be chosen for the attacked retain model.

    Each attacker may have broken it, although the settings have attackers that count.
    """
    attacks: list[str] = []
    for variant in panel.variants:
        if not is_tuned(variant) or variant in panel.attackers_of_retain:
            continue
        of_settings = [setting.at(variant) for setting in panel.settings]
        if any(under is not None and under.retain.after is not None for under in of_settings):
            attacks.append(attack_of(variant))
    return attacks


def _retain_gains(panel: AttackedPanel) -> dict[MetricColumn, dict[str, float]]:
    """Return the retain model's known gains by column and variant, larger is more memorised."""
    gains_of_column: dict[MetricColumn, dict[str, float]] = {}
    for variant, shift in panel.retain.items():
        measured = panel.measured[variant]
        if measured is not None and shift.gain is not None:
            gains = gains_of_column.setdefault(measured.after, {})
            gains[variant] = measured.sign * shift.gain
    return gains_of_column


# Of one model


def single_attack_sentences(panel: AttackedPanel, attack: str) -> tuple[str, ...]:
    """List what an attack gives back of a model that was evaluated by itself.

    Args:
        panel: Panel with one setting, see `Results.lasting`.
        attack: Name of the attack.

    Returns:
        The verdict, then the change of the model and of the retain model, with intervals over
        questions. Without a gain only the verdict.
    """
    (setting,) = panel.settings
    attacked = setting.only(attack)
    # A model that is judged by itself has no epochs, so that naming one would only puzzle.
    reason = attacked.why_not.removesuffix(f" at {attacked.setting.when}")
    under = attacked.worst or attacked.most_gained
    if under is None or under.gain is None:
        return (f"{attack}: not scored: {reason or 'a number behind it is undefined'}.",)

    points = sum(point.gain is not None for point in attacked.under)
    which = f", the worst of {points} points" if points > 1 else ""
    label = f"{under.label}{_attacker(under, has_seeds=False)}{which}"
    if attacked.worst is None:
        verdict = f"{label}: not scored: {reason}."
    elif attacked.comes_back:
        verdict = (
            f"{label}: it gives back {share_given_back(attacked)} of what was removed: "
            f"{_numbers_of(under)}."
        )
    else:
        verdict = (
            f"{label}: no sign that anything comes back ({share_given_back(attacked)} of what was "
            f"removed): {_numbers_of(under)}."
        )
    return verdict, _change(under, points)


def _change(under: UnderAttack, points: int) -> str:
    """Return a sentence on what a model gains under an attack, beyond the retain model's gain.

    Args:
        under: The model under a variant.
        points: Number of points of the attack, among which this one is the worst.
    """
    level = worst_of_level(points)
    questions = under.questions
    gain_ends = excess_ends = None
    count = ""
    if questions is not None:
        gain_ends = questions.gain_interval(level)
        excess_ends = questions.excess_interval(level)
        count = f" over {questions.count} questions"
    gain = under.sign * (under.gain or 0.0)
    line = f"Gain{count}: {gain:+.3f}{between(gain_ends, '+.3f')}"
    if under.floor is not None:
        return (
            f"{line}. There is no retain model, so all of it counts as given back: part of it may "
            "be what the attack teaches any model."
        )
    if under.excess is None or under.null is None:
        return f"{line}. It is unknown what a model gains that never saw the rows."
    excess = under.sign * under.excess
    return (
        f"{line}; the retain model's: {under.sign * under.null:+.3f}; beyond it: "
        f"{excess:+.3f}{between(excess_ends, '+.3f')}."
    )


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
