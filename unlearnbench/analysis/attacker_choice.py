"""The strongest attacker of a search: chosen on some rows and seeds, and reported on others.

A search (`search:` of an attack that trains) tries the same attackers on every model. An attacker
at one of its steps is a *trial point*, such as `relearning@t3.13`. Among them, the strongest one is
chosen for each setting. The largest of many noisy gains would be large even if no attacker had an
effect. So the choice and the report have nothing in common:

- **Rows.** Every second measured row belongs to the choice, the others to the report.
- **Seeds.** The first third of a setting's seeds, at least one, belongs to the choice, the others
  to the report. With one seed, only the rows are divided.

On few rows, gains are often tied. Then the point after most steps is chosen, as an adversary would
who sees no difference: a tie must not favour the method that is attacked.

A trial point counts if the attacked model keeps a share of its own utility (`keeps`, by default
90 %), as a mean over the seeds of the choice. Whoever breaks a model has not recovered anything.

All trial points of an attack become one variant, `relearning@tuned`, with the numbers of the
report.
The retain model and the start model have strongest attackers of their own there. *Lasting* of a
setting is computed with the retain model's gain under the setting's attacker.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from unlearnbench.analysis.tuned_attacker import TunedAttacker
from unlearnbench.analysis.under_attack import Shift
from unlearnbench.analysis.wording import counted
from unlearnbench.analysis.yardstick import Yardstick
from unlearnbench.api.attack import CHOICE, Attack
from unlearnbench.results.attack_variants import trial_of

DEFAULT_LEAST_UTILITY = 0.9
"""Share of utility if the settings of an attack are not known, as in a leaderboard."""
MOVED = 1e-3
"""Change of a number below which an attacker has not moved a model."""
_ROUNDING = 1e-9
"""Equal gains may differ in their last digits, since they are means over rows in another order."""
_SETTING_NAMES = {
    "learning_rate": "learning rate {}",
    "lora_rank": "LoRA rank {}",
    "batch_size": "{} rows a step",
    "schedule": "{} schedule",
    "optimizer": "{}",
}


@dataclass(frozen=True)
class AttackedModel:
    """One model, or one seed of a setting, before and under the trial points of an attack."""

    utility_before: float | None
    utility_after: Mapping[str, float | None]
    """By trial point; without those that the attack did not reach."""
    shift: Callable[[str], Shift]
    """Returns the numbers before the attack and under a variant."""

    def keeps(self, variant: str) -> float | None:
        """Return the share of its own utility that the model keeps; None if it is not known."""
        after = self.utility_after.get(variant)
        if after is None or not self.utility_before:
            return None
        return after / self.utility_before


@dataclass(frozen=True)
class Search:
    """The trial points of one attack, and how to choose among them."""

    attack: str
    plugin: Attack | None
    """The attack with its settings; None if they are not known."""
    points: tuple[str, ...]
    """The trial points, in the order of attackers and steps."""
    measured: Yardstick | None

    @property
    def trials(self) -> int:
        """Number of attackers."""
        return len({trial.number for point in self.points if (trial := trial_of(point))})

    @property
    def least_utility(self) -> float:
        """Least share of its own utility that an attacked model keeps."""
        least = None if self.plugin is None else self.plugin.least_utility
        return DEFAULT_LEAST_UTILITY if least is None else least

    def counting(self, models: Sequence[AttackedModel]) -> list[str]:
        """Return the trial points that leave a setting useful, as a mean over its seeds.

        A point that one seed did not reach does not count: its training broke the model, or had no
        room in memory.
        """
        points: list[str] = []
        for point in self.points:
            shares = [model.keeps(point) for model in models]
            known = [share for share in shares if share is not None]
            if len(known) == len(shares) and fmean(known) >= self.least_utility:
                points.append(point)
        return points

    def strongest(
        self, models: Sequence[AttackedModel], retain: AttackedModel | None = None
    ) -> str | None:
        """Return the counting trial point under which most comes back on the rows of the choice.

        Args:
            models: The seeds of the choice.
            retain: The retain model, whose gain under the same attacker is subtracted. None
                subtracts nothing.

        Returns:
            None if no point counts, see `problem`. Of points with the same gain, it is the one
            after most steps, and of these the first.
        """
        excess_of_point = self._excess(models, retain)
        if not excess_of_point:
            return None
        most = max(excess_of_point.values())
        tied = [point for point, excess in excess_of_point.items() if excess > most - _ROUNDING]
        return max(tied, key=_steps)

    def _excess(
        self, models: Sequence[AttackedModel], retain: AttackedModel | None
    ) -> dict[str, float]:
        """Return what is gained beyond the retain model on the rows of the choice.

        Returns:
            Means over the seeds by counting trial point, in the direction of more memorisation. A
            point is missing if a gain is not known: the retain model may not have reached it.
        """
        sign = 1.0 if self.measured is None else self.measured.sign
        excess_of_point: dict[str, float] = {}
        for point in self.counting(models):
            gains = _gains(models, point + CHOICE)
            taught = 0.0 if retain is None else retain.shift(point + CHOICE).gain
            if len(gains) == len(models) and taught is not None:
                excess_of_point[point] = sign * fmean(gains) - max(0.0, sign * taught)
        return excess_of_point

    def problem(
        self,
        models: Sequence[AttackedModel],
        others: Iterable[AttackedModel],
        retain: AttackedModel | None = None,
    ) -> str:
        """Say why no attacker of this search can be reported; empty if one can be.

        Args:
            models: The seeds of the choice of a setting.
            others: The retain and the start model.
            retain: The retain model, as in `strongest`.
        """
        if not self._moves(models) and not self._moves(others):
            return (
                f"none of the {counted(self.trials, 'attacker')} of {self.attack} moved a model "
                f"by more than {MOVED:g}; search higher learning rates, or more steps"
            )
        counting = self.counting(models)
        if not counting:
            return (
                f"no attacker of {self.attack} left {100 * self.least_utility:g} % of the model's "
                f"own utility ({self._gentlest(models)}); search lower learning rates, or lower "
                "`keeps`"
            )
        if not self._excess(models, retain):
            are_known = any(
                len(_gains(models, point + CHOICE)) == len(models) for point in counting
            )
            if are_known:
                return (
                    f"the retain model has no number under any attacker of {self.attack} that left "
                    "enough utility"
                )
            return (
                f"a number is undefined under every attacker of {self.attack} that left enough "
                "utility"
            )
        return ""

    def _gentlest(self, models: Sequence[AttackedModel]) -> str:
        """Say how much utility the attacker leaves that leaves most: `the gentlest left 71 %`.

        Points that one seed did not reach are left out, as in `counting`. The share is rounded
        down, because 89.9 % must not be shown as the 90 % that it failed to reach.
        """
        mean_shares: list[float] = []
        for point in self.points:
            shares = [share for model in models if (share := model.keeps(point)) is not None]
            if len(shares) == len(models):
                mean_shares.append(fmean(shares))
        if not mean_shares:
            return "none is known"
        return f"the gentlest left {math.floor(100 * max(mean_shares) + _ROUNDING)} %"

    def _moves(self, models: Iterable[AttackedModel]) -> bool:
        """Whether an attacker changes the measured number or the utility of a model."""
        for model in models:
            for point in self.points:
                if point not in model.utility_after:
                    continue
                gains = [model.shift(point).gain, model.shift(point + CHOICE).gain]
                kept = model.keeps(point)
                changes = [gain for gain in gains if gain is not None]
                changes += [] if kept is None else [kept - 1.0]
                if any(abs(change) > MOVED for change in changes):
                    return True
        return False

    def describe(self, point: str, models: Sequence[AttackedModel]) -> TunedAttacker:
        """Describe the attacker of a trial point, which was chosen for the seeds of a model."""
        counting = len(self.counting(models))
        return TunedAttacker(point, self._settings(point), self.trials, counting)

    def _settings(self, point: str) -> str:
        """Return the searched settings of an attacker, and its steps, for people."""
        trial = trial_of(point)
        if trial is None:
            return point
        steps = counted(trial.step, "step")
        attackers = {} if self.plugin is None else self.plugin.attackers()
        attacker = attackers.get(str(trial.number))
        if attacker is None:
            return f"attacker {trial.number}, {steps}"
        searched = getattr(self.plugin, "search", None) or {}
        texts = [_setting_text(name, getattr(attacker, name)) for name in searched]
        return ", ".join([*texts, steps])


def _gains(models: Iterable[AttackedModel], variant: str) -> list[float]:
    """Return the gains of models under a variant, as far as they are known."""
    gains = (model.shift(variant).gain for model in models)
    return [gain for gain in gains if gain is not None]


def _steps(point: str) -> int:
    """Return the optimiser steps of a trial point."""
    trial = trial_of(point)
    return 0 if trial is None else trial.step


def _setting_text(name: str, value: object) -> str:
    """Return `learning rate 0.0004`, or `all weights` without adapters."""
    if name == "lora_rank" and value is None:
        return "all weights"
    shown = f"{value:.4g}" if isinstance(value, float) else str(value)
    return _SETTING_NAMES.get(name, name + " {}").format(shown)


def seeds_of_choice(count: int) -> int:
    """Return how many of a setting's seeds choose the attacker: a third of them, at least one."""
    return max(1, count // 3)
