"""How long forgetting lasts: settings and panels under attacks.

A setting is compared with the start model, which has learned the rows to forget, and with the
retain model, which never saw them and is attacked in the same way. *Lasting* is the share of what a
method removed that does not come back under an attack: 1 if nothing comes back, 0 if everything
does. A *gain* is a model's number under the attack less its number before.

What the retain model gains under an attack is the null: an attack that teaches, or a question that
helps, raises both models alike. If a sweep has no retain model, the whole gain counts as given
back, so that lasting is a lower limit: part of the gain may be what the attack teaches any model.
What could be removed is then all that the start model knows.

The modules build on each other: `yardstick` says which numbers measure an attack, `under_attack`
computes *lasting* of a setting under one variant (`relearning@13`), this module takes the worst of
several variants, and `attacked_panels` makes these values from the rows of a table.

A setting has no lasting

- if it keeps less than `UTILITY_SHARE` of the start model's utility, since a model that produces
  no text any more relearns slowly and has nothing to protect;
- if it has removed less than `LEAST_REMOVED` of what could be removed, since a share of that is
  noise;
- if a variant is missing that its other seeds or other settings have, since the worst of the
  others would claim too much;
- if one of its seeds ended before the epoch, since the mean of the others would hide that seed.

The module computes from values in memory, except that intervals over questions read observations.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from unlearnbench.analysis.best_settings import UTILITY_SHARE, Best
from unlearnbench.analysis.relearning_curve import RelearningCurve
from unlearnbench.analysis.setting_order import Merit, merit_of
from unlearnbench.analysis.settings import OnPanel, Setting
from unlearnbench.analysis.tuned_attacker import TunedAttacker
from unlearnbench.analysis.under_attack import Shift, UnderAttack
from unlearnbench.analysis.yardstick import Yardstick
from unlearnbench.api.metric import MetricColumn
from unlearnbench.base.errors import RecordError, did_you_mean
from unlearnbench.results.attack_variants import attack_of, is_tuned, trial_points
from unlearnbench.stats.t_interval import Interval

LITTLE = 0.05
"""Share below which what comes back does not matter."""
_ROUNDING = 1e-9
"""Equal shares may differ in their last digits, since they are sums in another order."""


def find_variant(name: str, variants: Sequence[str]) -> str:
    """Return the variant of this name, or the only variant of the attack of this name.

    Args:
        name: `relearning@13`, or `relearning` if that attack has one point.
        variants: The variants that runs were evaluated under.

    Raises:
        RecordError: If there is no such variant, or if the attack has several. The message names
            the variants that there are.
    """
    if name in variants:
        return name
    points = [variant for variant in variants if attack_of(variant) == name]
    if len(points) == 1:
        return points[0]
    if not variants:
        raise RecordError(
            "no run was attacked; name attacks in the configuration (`attacks:`), and start the "
            "sweep again"
        )
    attack = attack_of(name)
    trials = trial_points(variants).get(attack, ())
    if trials and (points or is_tuned(name)):
        raise RecordError(
            f"{name!r} searches an attacker for each setting; name one attacker that all sides are "
            f"under, such as {trials[0]} or {trials[-1]} (one of {len(trials)} points)"
        )
    if points:
        raise RecordError(f"{name!r} has several points, {', '.join(points)}: name one")
    near = did_you_mean(name, variants) or ";"
    raise RecordError(f"{name!r}: no run is under it{near} there are {', '.join(variants)}")


@dataclass(frozen=True)
class AttackedSetting:
    """A setting after one epoch, and the same setting under attacks."""

    setting: Setting
    """Its numbers without an attack."""
    under: tuple[UnderAttack, ...]
    """In the table's order; without points before the first step. Empty if it was not attacked."""
    keeps_utility: bool
    """Whether it keeps `UTILITY_SHARE` of the start model's utility, without an attack."""
    curves: tuple[RelearningCurve, ...] = ()
    """One for each attack; empty if another seed ended before the epoch."""
    not_attacked: str = ""
    """Reason why attacks are missing that other settings had; empty if none is."""
    utility_unknown: str = ""
    """Reason why it is not known whether the setting keeps utility; empty if it is known."""

    @property
    def scored(self) -> tuple[UnderAttack, ...]:
        """The variants with a number of lasting."""
        return tuple(under for under in self.under if under.lasting is not None)

    @property
    def worst(self) -> UnderAttack | None:
        """The variant with the smallest lasting; None if there is no score, see `why_not`.

        If several variants have the same lasting, it is the first one in the table.
        """
        if self.why_not:
            return None
        least = min(under.lasting or 0.0 for under in self.scored)
        return next(under for under in self.scored if (under.lasting or 0.0) <= least + _ROUNDING)

    @property
    def most_gained(self) -> UnderAttack | None:
        """The variant under which most is gained beyond the retain model's gain.

        It exists for settings without a score, too. If the retain model's gain is unknown, the
        whole gain counts.
        """

        def memorised(under: UnderAttack) -> float:
            gain = under.gain if under.excess is None else under.excess
            return under.sign * (gain or 0.0)

        with_gain = [under for under in self.under if under.gain is not None]
        return max(with_gain, key=memorised, default=None)

    @property
    def lasting(self) -> float | None:
        """Lasting under the worst variant."""
        return None if self.worst is None else self.worst.lasting

    @property
    def lasting_interval(self) -> Interval | None:
        """Interval of `lasting` over seeds; with one seed, over questions."""
        return None if self.worst is None else self.worst.interval_of_worst(len(self.scored))

    @cached_property
    def why_not(self) -> str:
        """Reason why there is no `lasting`; empty if there is one."""
        when = self.setting.when
        if not self.under:
            return self.not_attacked or f"it was not attacked at {when}"
        if self.utility_unknown:
            return self.utility_unknown
        if not self.keeps_utility:
            return f"it keeps less than {100 * UTILITY_SHARE:.0f} % of utility at {when}"
        if self.not_attacked:
            return self.not_attacked
        if all(under.lacks_retain_number and not under.missing for under in self.under):
            return "the retain model was not attacked"
        unscored = [under for under in self.under if under.lasting is None]
        might_be_worse = [under for under in unscored if under.may_give_back_more]
        if might_be_worse:
            return _reasons(might_be_worse)
        return "" if self.scored else _reasons(unscored)

    @property
    def short_reason(self) -> str:
        """The kind of `why_not` in a few words, for a figure; empty if there is a score."""
        if not self.why_not:
            return ""
        if not self.under:
            return "best setting not attacked"
        if self.utility_unknown:
            return "its utility is not known"
        if not self.keeps_utility:
            return "keeps too little utility"
        if self.not_attacked:
            return "an attack is missing"
        if all(under.removed_little for under in self.under if under.measured is not None):
            return "forgot too little to measure"
        if all(under.lacks_retain_number for under in self.under):
            return "the retain model was not attacked"
        return "a number is missing"

    @property
    def bypassed_by(self) -> tuple[str, ...]:
        """Attacks that run the model without the method."""
        attacks = [attack_of(under.variant) for under in self.under if under.bypassed]
        return tuple(dict.fromkeys(attacks))

    def at(self, variant: str) -> UnderAttack | None:
        """Return the setting under a variant; None if it was not evaluated under it."""
        return next((under for under in self.under if under.variant == variant), None)

    def worst_point(self, attack: str) -> UnderAttack | None:
        """Return the setting at the point of an attack at which most comes back.

        Returns:
            The last point if no point has a number of lasting; None if the attack did not run.
        """
        points = [under for under in self.under if attack_of(under.variant) == attack]
        scored = [under for under in points if under.lasting is not None]
        if scored:
            return min(scored, key=lambda under: under.lasting or 0.0)
        return points[-1] if points else None

    def only(self, attack: str) -> "AttackedSetting":
        """Return the setting under one attack."""
        under = tuple(under for under in self.under if attack_of(under.variant) == attack)
        curves = tuple(curve for curve in self.curves if curve.attack == attack)
        return replace(self, under=under, curves=curves)

    @property
    def gives_little(self) -> bool:
        """Whether next to nothing comes back, by the interval over seeds.

        One seed cannot show that, because an interval over questions is of this one model.
        """
        interval = self.lasting_interval
        return interval is not None and interval.over == "seeds" and 1 - interval.low < LITTLE

    @property
    def comes_back(self) -> bool:
        """Whether the worst attack gives something back, by more than chance.

        Without an interval, the value counts. With two seeds, the range of their values counts.
        """
        lasting = self.lasting
        if lasting is None or self.gives_little:
            return False
        interval = self.lasting_interval
        if interval is None:
            return 1 - lasting > LITTLE
        return interval.high < 1


def _reasons(variants: Iterable[UnderAttack]) -> str:
    """Join the reasons why variants have no score, each reason once."""
    return "; ".join(dict.fromkeys(under.why_not for under in variants))


@dataclass(frozen=True)
class AttackedPanel(OnPanel):
    """The attacked settings of one model and split."""

    column: MetricColumn
    """The memorisation number that attacks are measured by, except attacks that only sample."""
    variants: tuple[str, ...]
    """In the table's order; without points before the first step."""
    settings: tuple[AttackedSetting, ...]
    """All that were attacked. One that `select` or `tune` has chosen is on its reporting seeds."""
    best: tuple[AttackedSetting, ...]
    """The settings of `Panel.best`, in that order. One that was not attacked has a reason in place
    of a score: another setting's score would not be the method's."""
    without_best: tuple[Best, ...]
    """The methods, or entries, that have no best setting, with the reason."""
    retain: Mapping[str, Shift]
    """The retain model by variant."""
    start: Mapping[str, Shift]
    """The start model by variant."""
    measured: Mapping[str, Yardstick | None]
    """What each variant is measured by; None if the attack can move no number."""
    attackers_of_retain: Mapping[str, TunedAttacker] = field(
        default_factory=dict[str, TunedAttacker]
    )
    """The retain model's own strongest attacker, by the variant of a search."""
    retain_plain: float | None = None
    """The retain model's number without an attack, over all rows."""
    start_plain: float | None = None
    """The start model's number without an attack, over all rows."""
    chosen_families: frozenset[str] = frozenset()
    """Methods whose settings `select` or `tune` has chosen."""
    has_retain: bool = True
    """Whether the sweep has a retain model."""

    @property
    def attacks(self) -> Mapping[str, tuple[str, ...]]:
        """Variants by attack, for example `{"relearning": ("relearning@1", "relearning@13")}`."""
        variants_of: dict[str, tuple[str, ...]] = {}
        for variant in self.variants:
            attack = attack_of(variant)
            variants_of[attack] = (*variants_of.get(attack, ()), variant)
        return variants_of

    def of(self, setting: Setting) -> AttackedSetting | None:
        """Return a setting under attacks, on the same seeds; None if there is none."""
        run_ids = _run_ids(setting)
        for attacked in (*self.best, *self.settings):
            if attacked.setting == setting and _run_ids(attacked.setting) == run_ids:
                return attacked
        return None

    @cached_property
    def shown(self) -> tuple[AttackedSetting, ...]:
        """The attacked settings whose details are shown: those in `best`.

        If a method's best setting was not attacked, it is the best one of its attacked settings, or
        the one that keeps most utility if none keeps enough.
        """
        attacked_best = [attacked for attacked in self.best if attacked.under]
        families = {attacked.setting.family for attacked in attacked_best}
        others_of_family: dict[str, list[AttackedSetting]] = defaultdict(list)
        for attacked in self.settings:
            family = attacked.setting.family
            if family not in families:
                others_of_family[family].append(attacked)
        best_others = [max(settings, key=_rank) for settings in others_of_family.values()]
        return (*attacked_best, *best_others)

    @cached_property
    def most(self) -> AttackedSetting | None:
        """The least robust setting that was attacked; None if nothing comes back of any setting.

        If `select` or `tune` has chosen a method's setting, no other setting of the method counts.
        """
        best_settings = {attacked.setting for attacked in self.best}
        scored: list[AttackedSetting] = []
        for attacked in self.settings:
            is_best = attacked.setting in best_settings
            counts = is_best or attacked.setting.family not in self.chosen_families
            if counts and attacked.lasting is not None and not attacked.bypassed_by:
                scored.append(attacked)
        # Intervals over questions are read from files, so as few as possible are asked for.
        scored.sort(key=lambda attacked: attacked.lasting or 0.0)
        return next((attacked for attacked in scored if attacked.comes_back), None)


def _run_ids(setting: Setting) -> set[str]:
    return {row.run_id for row in setting.rows}


def _rank(attacked: AttackedSetting) -> tuple[bool, float, float, float]:
    """Return a sort key of a method's settings, largest for the best one.

    Settings that keep utility come first, by what they have forgotten. The others follow by what
    they keep.
    """
    without_numbers = Merit(-math.inf, -1.0, 0)
    merit = merit_of(attacked.setting) or without_numbers
    if attacked.keeps_utility:
        return True, merit.forgotten, merit.kept, merit.minus_epoch
    return False, merit.kept, merit.minus_epoch, 0.0
