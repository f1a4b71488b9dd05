"""What attacks bring back, one line for each method: the numbers of the figure *Does it last?*.

The line of a method belongs to its best setting. It goes from the number before the strongest
attack to the number under it. All marks of a panel are numbers of one column, so that they share an
axis with the start and the retain model. An attack that is measured by another number (for example,
one that only samples) has no mark. Its share may still be the largest. Then the line names it.

Only intervals over questions read observations. Everything else is computed from table rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from unlearnbench.analysis.best_settings import Best
from unlearnbench.analysis.lasting import AttackedPanel, AttackedSetting
from unlearnbench.analysis.settings import OnPanel, Setting
from unlearnbench.analysis.under_attack import UnderAttack
from unlearnbench.api.metric import MetricColumn
from unlearnbench.stats.t_interval import Interval

BYPASSED = "bypassed: the attack runs the model without it"
NO_BEST = "keeps too little utility"


@dataclass(frozen=True)
class Recovery:
    """What attacks bring back of a method's best setting."""

    method: str
    """Label of the setting, with hyperparameters. Without a setting, the label of the method."""
    family: str
    """The method, by which it is coloured and filtered."""
    setting: Setting | None
    """None if the method has no best setting."""
    before: float | None
    """The number before the attack that is drawn; without one, that of the plain evaluation."""
    after: float | None
    """The number under that attack."""
    drawn: str
    """Variant of `after`: `relearning@13`; empty without one."""
    others: tuple[tuple[str, float], ...]
    """Other points and attacks with their numbers."""
    share: float | None
    """Share of what was removed that comes back, from 0 to 1; None without a score."""
    interval: Interval | None
    """Interval of `share`, from 0 to 1."""
    strongest: str
    """Variant that `share` is of; empty without a score."""
    strongest_label: str
    """Its name for people; empty without a score."""
    evaluated: str
    """The variant whose evaluations `share` is of, see `UnderAttack.evaluated`."""
    reason: str
    """Short reason why there is no score; empty if there is one."""
    why_not: str
    """The reason in full."""

    @property
    def is_drawn_as_scored(self) -> bool:
        """Whether the marks are those of the attack that the share is of."""
        return bool(self.strongest) and self.strongest == self.drawn


@dataclass(frozen=True)
class PanelRecovery(OnPanel):
    """The methods of one model and split, under attacks."""

    column: MetricColumn
    """Number that the marks are of."""
    methods: tuple[Recovery, ...]
    """The most robust first; methods without a score come last."""
    start: float | None
    """The start model's number without an attack. Of a search, it is over the reported rows."""
    retain: float | None
    """The retain model's number without an attack, likewise; None if there is no retain model."""


def panel_recovery(panel: AttackedPanel) -> PanelRecovery:
    """Collect what attacks bring back of each method's best setting."""
    lines = [_recovery(panel, attacked) for attacked in panel.best]
    lines += [_without_setting(best) for best in panel.without_best]
    # Methods without a score stay in their order.
    lines.sort(key=lambda line: (line.share is None, line.share or 0.0))
    start, retain = _references(panel, lines)
    return PanelRecovery(
        *panel.panel,
        column=panel.column,
        methods=tuple(lines),
        start=start,
        retain=retain if panel.has_retain else None,
    )


def _references(
    panel: AttackedPanel, lines: Sequence[Recovery]
) -> tuple[float | None, float | None]:
    """Return the start and the retain model's numbers without an attack.

    A search reports half of the rows that it asks. Numbers over all rows would not fit lines over
    so few of them, so if all lines are of one search, the numbers are over its rows.
    """
    drawn = {line.drawn for line in lines if line.before is not None}
    for attacked in panel.best:
        for under in attacked.under:
            if under.tuned is not None and drawn == {under.variant}:
                return under.start.before, under.retain.before
    return panel.start_plain, panel.retain_plain


def _recovery(panel: AttackedPanel, attacked: AttackedSetting) -> Recovery:
    """Return the line of a method's best setting."""
    setting = attacked.setting
    strongest = attacked.worst
    on_axis = [under for under in attacked.under if _is_on_axis(panel, under)]
    drawn = strongest if strongest in on_axis else _strongest_of(on_axis)
    others = tuple(
        (under.variant, under.after)
        for under in on_axis
        if under is not drawn and under.after is not None
    )
    share, interval = _share(attacked)
    reason = attacked.short_reason
    why_not = attacked.why_not
    if attacked.bypassed_by:
        share = None
        interval = None
        strongest = None
        reason = BYPASSED
        why_not = BYPASSED
    plain = setting.metrics.get(panel.column.name)
    return Recovery(
        method=setting.method,
        family=setting.family,
        setting=setting,
        before=plain if drawn is None else drawn.before,
        after=None if drawn is None else drawn.after,
        drawn="" if drawn is None else drawn.variant,
        others=others,
        share=share,
        interval=interval,
        strongest="" if strongest is None else strongest.variant,
        strongest_label="" if strongest is None else strongest.label,
        evaluated="" if strongest is None else strongest.evaluated,
        reason=reason,
        why_not=why_not,
    )


def _is_on_axis(panel: AttackedPanel, under: UnderAttack) -> bool:
    """Whether an attack is measured by the column of the panel's axis, before and after it."""
    measured = under.measured
    return measured is not None and measured.before == measured.after == panel.column


def _strongest_of(under: Sequence[UnderAttack]) -> UnderAttack | None:
    """Return the attack with the smallest lasting.

    If no attack has such a score, the attack with the largest gain is returned. None without gains.
    """
    scored = [attack for attack in under if attack.lasting is not None]
    if scored:
        return min(scored, key=lambda attack: attack.lasting or 0.0)
    measured = [attack for attack in under if attack.gain is not None]
    return max(measured, key=lambda attack: attack.sign * (attack.gain or 0.0), default=None)


def _share(attacked: AttackedSetting) -> tuple[float | None, Interval | None]:
    """Return the share that comes back, 1 − lasting within 0 and 1, and its interval."""
    if attacked.lasting is None:
        return None, None
    share = min(1.0, max(0.0, 1 - attacked.lasting))
    lasting = attacked.lasting_interval
    if lasting is None:
        return share, None
    low, high = (min(1.0, max(0.0, 1 - end)) for end in (lasting.high, lasting.low))
    return share, replace(lasting, mean=share, low=low, high=high)


def _without_setting(best: Best) -> Recovery:
    """Return the line of a method without a best setting."""
    is_by_rule = best.choice is None and not best.lost
    return Recovery(
        method=best.name,
        family=best.family,
        setting=None,
        before=None,
        after=None,
        drawn="",
        others=(),
        share=None,
        interval=None,
        strongest="",
        strongest_label="",
        evaluated="",
        reason=NO_BEST if is_by_rule else "no setting to judge",
        why_not=best.why_not,
    )
