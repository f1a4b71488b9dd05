"""Text on how long forgetting lasts, for readers without statistics. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from unlearnbench.analysis.best_settings import Setting
from unlearnbench.analysis.lasting import (
    AttackedPanel,
    AttackedSetting,
    UnderAttack,
    attack_of,
    point_of,
    step_of,
)
from unlearnbench.stats.t_interval import Interval

LITTLE = 0.05
"""Share that is given back up to which nothing comes back that matters."""


def variant_label(variant: str) -> str:
    """`relearning, 13 steps` for `relearning@13`; `quantization, nf4` for `quantization@nf4`."""
    attack, point, step = attack_of(variant), point_of(variant), step_of(variant)
    if step is not None:
        return f"{attack}, {step} step{'s' * (step != 1)}"
    return f"{attack}, {point}" if point else attack


def setting_name(setting: Setting) -> str:
    """`npo at rate 1e-05, epoch 3`."""
    rate = "" if setting.learning_rate is None else f" at rate {setting.learning_rate:g}"
    return f"{setting.method}{rate}, epoch {setting.epoch}"


def sentences(panel: AttackedPanel) -> tuple[str, ...]:
    """Name what comes back of each method's best setting, under which attack, and the null."""
    best = [one for one in panel.best if one.under]
    bypassed = [one for one in best if one.bypassed_by]
    judged = [one for one in best if one.lasting is not None and one not in bypassed]
    judged.sort(key=lambda one: (one.lasting or 0.0, one.setting.family))
    back = [one for one in judged if comes_back(one)]
    lines: list[str] = []
    if back:
        lines.append(_most(panel, back[0]))
    if back[1:]:
        lines.append(f"Also given back: {'; '.join(map(_short, back[1:]))}.")
    if still := [one for one in judged if one not in back]:
        lines.append(f"No attack gives back what these methods removed: {_listed(still)}.")
    lines += [
        f"Bypassed, not robust: {one.setting.method}. It leaves the weights as they are, and "
        f"{' and '.join(one.bypassed_by)} runs the model without it."
        for one in bypassed
    ]
    lines += _nulls(panel, best)
    return (
        *lines,
        *_not_judged(one for one in best if one.lasting is None and one not in bypassed),
    )


def lasting_sentence(attacked: AttackedPanel | None, leader: Setting | None) -> str:
    """Describe what comes back of the leading setting, and of the one of which most does.

    attacked  None if no attack was run
    leader    None if no setting keeps its utility
    """
    if attacked is None:
        advice = "`--set attacks=[relearning]` adds one"
        return f"Whether it lasts is not known: no attack was run ({advice})." if leader else ""
    best = [one for one in attacked.best if one.under]
    own = next((one for one in best if leader and one.setting.family == leader.family), None)
    sentences: list[str] = []
    if leader is not None:
        sentences.append(_lasts_of(attacked, own, leader))
    back = [one for one in best if one is not own and comes_back(one) and not one.bypassed_by]
    most = min(back, key=lambda one: one.lasting or 0.0, default=None)
    if most is not None and most.worst is not None:
        share = share_given_back(most.worst)
        less = own is None or own.lasting is None or (most.lasting or 0.0) < own.lasting
        if less:
            sentences.append(f"Most comes back of {setting_name(most.setting)}: {share}.")
    return " ".join(sentences)


def _lasts_of(panel: AttackedPanel, one: AttackedSetting | None, leader: Setting) -> str:
    if one is None:
        return f"Whether it lasts is not known: {leader.method} was not attacked."
    which = (
        "" if one.setting == leader else f" (of {setting_name(one.setting)}, which was attacked)"
    )
    if one.bypassed_by:
        return (
            "It does not last: it leaves the weights as they are, and "
            f"{' and '.join(one.bypassed_by)} runs the model without it."
        )
    worst = one.worst
    if worst is None or worst.before is None or worst.after is None or worst.null is None:
        return f"Whether it lasts is not judged: {one.why_not or 'a number is undefined'}{which}."
    verb = "comes back" if comes_back(one) else "comes back, not more than by chance"
    if one.lasting is not None and 1 - one.lasting <= LITTLE:
        verb = "comes back, next to nothing"
    return (
        f"Under {variant_label(worst.variant)}, {share_given_back(worst)} of what it removed "
        f"{verb}{which}: {panel.column.label.lower()} goes from {worst.before:.2f} to "
        f"{worst.after:.2f}, while {_change_by_chance(worst.sign, worst.null)}."
    )


def _not_judged(settings: Iterable[AttackedSetting]) -> Iterator[str]:
    """The methods without a number, by reason."""
    by_reason: dict[str, list[str]] = {}
    for one in settings:
        by_reason.setdefault(one.why_not, []).append(one.setting.method)
    for reason, methods in by_reason.items():
        yield f"Not judged ({reason}): {', '.join(methods)}."


def comes_back(one: AttackedSetting) -> bool:
    """True if the worst attack gives something back, by more than chance over seeds.

    Of fewer than three seeds, the range of values counts; of one seed, its value.
    """
    worst = one.worst
    if worst is None or worst.lasting is None or 1 - worst.lasting <= LITTLE:
        return False
    interval = worst.lasting_interval
    return interval is None or interval.high < 1


def _most(panel: AttackedPanel, one: AttackedSetting) -> str:
    worst = one.worst
    if worst is None or worst.before is None or worst.after is None or worst.null is None:
        return ""
    verb = "rises" if worst.after >= worst.before else "falls"
    return (
        f"Most comes back of {_setting(one)}: {panel.column.label.lower()} {verb} from "
        f"{worst.before:.2f} to {worst.after:.2f} under {variant_label(worst.variant)}, which "
        f"gives back {share_given_back(worst)} of what was removed; "
        f"{_change_by_chance(worst.sign, worst.null)}."
    )


def _change_by_chance(sign: float, null: float) -> str:
    """The change of a model that has nothing to give back."""
    moved = "gains" if sign * null >= 0 else "loses"
    return f"the retain model, which never saw these rows, {moved} {abs(null):.2f}"


def _short(one: AttackedSetting) -> str:
    worst = one.worst
    return (
        "" if worst is None else f"{share_given_back(worst)} of {_setting(one)} ({worst.variant})"
    )


def share_given_back(worst: UnderAttack) -> str:
    """`42 % [31, 53 %]`: the share that is given back, with its interval or range over seeds."""
    share, interval = 1 - (worst.lasting or 0.0), worst.lasting_interval
    if interval is None:
        return f"{100 * share:.0f} % (one seed: no interval)"
    return f"{100 * share:.0f} % {_ends(interval)}"


def _ends(interval: Interval) -> str:
    low, high = (100 * min(1.0, max(0.0, 1 - end)) for end in (interval.high, interval.low))
    ends = f"{low:.0f}, {high:.0f} %"
    return f"(min-max {ends})" if interval.is_range else f"[{ends}]"


def _setting(one: AttackedSetting) -> str:
    rate = one.setting.learning_rate
    return one.setting.method + ("" if rate is None else f" at rate {rate:g}")


def _listed(several: Sequence[AttackedSetting]) -> str:
    return ", ".join(map(_setting, several))


def _nulls(panel: AttackedPanel, best: Sequence[AttackedSetting]) -> Iterator[str]:
    """The largest gain of the retain model itself, under any attack."""
    if not best:
        return
    sign = next((u.sign for one in best for u in one.under), 1.0)
    gains = {v: sign * one.gain for v, one in panel.retain.items() if one.gain is not None}
    if not gains:
        yield "The retain model was not attacked: without that null, nothing can be judged."
        return
    most = max(gains, key=lambda v: gains[v])
    if gains[most] < 0.005:
        yield "The null: the retain model itself gains nothing, under any attack."
    else:
        yield (
            f"The null: the retain model itself gains at most {gains[most]:.2f}, under "
            f"{variant_label(most)}."
        )
