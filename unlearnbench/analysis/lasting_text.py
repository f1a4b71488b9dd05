"""Text on how long forgetting lasts, for readers without statistics. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

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


def sentences(panel: AttackedPanel) -> tuple[str, ...]:
    """Name what comes back of each method's best setting, under which attack, and the null."""
    best = [one for one in panel.best if one.under]
    bypassed = [one for one in best if one.bypassed_by]
    judged = [one for one in best if one.lasting is not None and one not in bypassed]
    judged.sort(key=lambda one: (one.lasting or 0.0, one.setting.family))
    back = [one for one in judged if _comes_back(one)]
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


def _not_judged(settings: Iterable[AttackedSetting]) -> Iterator[str]:
    """The methods without a number, by reason."""
    by_reason: dict[str, list[str]] = {}
    for one in settings:
        by_reason.setdefault(one.why_not, []).append(one.setting.method)
    for reason, methods in by_reason.items():
        yield f"Not judged ({reason}): {', '.join(methods)}."


def _comes_back(one: AttackedSetting) -> bool:
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
    moved = "gains" if worst.sign * worst.null >= 0 else "loses"
    return (
        f"Most comes back of {_setting(one)}: {panel.column.label.lower()} {verb} from "
        f"{worst.before:.2f} to {worst.after:.2f} under {variant_label(worst.variant)}, which "
        f"gives back {_share(worst)} of what was removed; the retain model, which never saw these "
        f"rows, {moved} {abs(worst.null):.2f}."
    )


def _short(one: AttackedSetting) -> str:
    worst = one.worst
    return "" if worst is None else f"{_share(worst)} of {_setting(one)} ({worst.variant})"


def _share(worst: UnderAttack) -> str:
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
