"""One side of a comparison: some runs of a sweep, and what they may be compared by.

D is the distance of a model's truth ratios from the retain model's (`stats/ks_test.py`). It is
known only if the benchmark's headline has a test.

If a sweep's `select` or `tune` rule chose a side's setting on some seeds, that setting alone takes
part, with its runs on the other seeds. No other setting takes its place, also if it was not
attacked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from unlearnbench.analysis.best_settings import Best, Panel, panels
from unlearnbench.analysis.ended_early import EarlyEnd
from unlearnbench.analysis.setting_order import merit_of
from unlearnbench.analysis.settings import PanelKey, Setting, average_seeds, panel_label
from unlearnbench.analysis.wording import setting_name
from unlearnbench.api.observations import Evaluation
from unlearnbench.base.errors import EvaluationError
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow
from unlearnbench.stats.paired_test import margin


@dataclass(frozen=True)
class Pool:
    """Settings that a side's setting was chosen from."""

    tried: int
    """Number of settings with a result: learning rates × hyperparameters × epochs."""
    rivals: tuple[Setting, ...]
    """Settings that might be the best over other questions: they keep the required utility, and
    their D, if a test has one, is at most `paired_test.margin` above the chosen one's."""
    chosen_on: tuple[int, ...] = ()
    """Seeds of the choice, if its numbers are of other seeds."""


@dataclass(frozen=True, eq=False)
class Contender:
    """One side of a comparison: some runs of a sweep, and the sweep."""

    name: str
    """As printed."""
    rows: tuple[TableRow, ...]
    """Rows of its runs."""
    sweep: tuple[TableRow, ...]
    """Rows of all records of the sweep, start and retain models included."""
    records: Mapping[str, Record]
    """Records of the sweep by id."""
    chosen: Mapping[PanelKey, tuple[Best, ...]] = field(
        default_factory=dict[PanelKey, tuple[Best, ...]]
    )
    """What `select` or `tune` has chosen for it, one for each of its entries; none for panels
    without a choice."""
    variant: str = ""
    """The attack under which its runs are compared; empty for plain evaluations."""
    ends: tuple[EarlyEnd, ...] = ()
    """Runs of the sweep that ended early, and runs that the attack lacks at an epoch."""
    _read: dict[tuple[str, int], Evaluation] = field(
        default_factory=dict[tuple[str, int], Evaluation]
    )
    """Evaluations that were read, by run and epoch."""

    def evaluation(self, run_id: str, epoch: int) -> Evaluation:
        """Return an evaluation of a record, which is read once.

        Raises:
            EvaluationError: If there is none.
        """
        record = self.records[run_id]
        if epoch not in self._epochs(record):
            raise EvaluationError(
                f"{self.name}: record {run_id} has no evaluation of {record.unit.at(epoch)}, which "
                "the comparison needs; start its sweep again"
            )
        if (run_id, epoch) not in self._read:
            self._read[run_id, epoch] = (
                record.attacked_evaluations[epoch, self.variant]
                if self.variant
                else record.evaluations[epoch]
            )
        return self._read[run_id, epoch]

    def _epochs(self, record: Record) -> list[int]:
        """List the epochs at which a record was evaluated, under the attack if there is one."""
        if self.variant:
            return [
                epoch for epoch, variant in record.attacked_evaluations if variant == self.variant
            ]
        return list(record.evaluations)

    @property
    def chooses(self) -> bool:
        """Whether its sweep has chosen its setting on some seeds."""
        return any(self.chosen.values())

    @cached_property
    def panels(self) -> Mapping[PanelKey, Panel]:
        """Its own runs by panel."""
        return {panel.panel: panel for panel in panels(self.rows, (), self.ends)}

    @cached_property
    def sweep_panels(self) -> Mapping[PanelKey, Panel]:
        """The panels of the sweep."""
        return {panel.panel: panel for panel in panels(self.sweep, (), self.ends)}

    def settings(self, key: PanelKey) -> tuple[Setting, ...]:
        """Return its settings on one panel, averaged over seeds; after `select`, the chosen one."""
        best = self.choice(key)
        if best is None:
            return self.panels[key].settings
        chosen = self._as_compared(best)
        return () if isinstance(chosen, str) else (chosen,)

    def choice(self, key: PanelKey) -> Best | None:
        """Return the choice of `select` or `tune` on one panel; None without one.

        If several entries of a method have a choice, it is the one that is the best on the seeds of
        the choice.
        """
        return max(self.chosen.get(key, ()), key=_worth, default=None)

    def why_no_choice(self, key: PanelKey) -> str:
        """Return why the choice on one panel cannot be compared.

        Empty if it can, and if there is no choice.
        """
        best = self.choice(key)
        if best is None:
            return ""
        chosen = self._as_compared(best)
        return chosen if isinstance(chosen, str) else ""

    def _as_compared(self, best: Best) -> Setting | str:
        """Return a choice on the seeds that report it, under the attack if there is one.

        Returns:
            The reason if there are no numbers.
        """
        if best.setting is None or best.setting.why_not:
            return f"{self.name} has no numbers to compare: {best.method}: {best.why_not}"
        if not self.variant:
            return best.setting
        row_of = {(row.run_id, row.epoch): row for row in self.panels[best.panel].rows}
        attacked: list[TableRow] = []
        seeds_without: list[str] = []
        for plain in best.setting.rows:
            row = row_of.get((plain.run_id, plain.epoch))
            if row is None:
                seeds_without.append(str(plain.seed))
            else:
                attacked.append(row)
        if seeds_without:
            return (
                f"{self.name}'s chosen setting, {setting_name(best.setting)}, was not evaluated "
                f"under {self.variant} on seeds {', '.join(seeds_without)}. No other setting takes "
                "its place"
            )
        (setting,) = average_seeds(attacked)
        return setting

    def pool(self, setting: Setting) -> Pool:
        """Return the settings that one of its own settings was chosen from."""
        best = self.choice(setting.panel)
        if best is not None and best.choice is not None:
            choices = [chosen.choice for chosen in self.chosen[setting.panel]]
            tried = sum(choice.candidates for choice in choices if choice is not None)
            return Pool(tried, rivals=(), chosen_on=best.choice.chosen_on)
        least_kept = self.sweep_panels[setting.panel].least_kept or 0.0
        tried = 0
        rivals: list[Setting] = []
        for other in self.settings(setting.panel):
            merit = merit_of(other)
            if merit is None:
                continue
            tried += 1
            keeps_enough = merit.kept >= least_kept
            if other != setting and keeps_enough and _is_near(other, setting):
                rivals.append(other)
        return Pool(tried, tuple(rivals))

    def retain(self, key: PanelKey) -> Evaluation:
        """Return the retain model's evaluation.

        Raises:
            EvaluationError: If there is none.
        """
        for record in self.records.values():
            if record.kind == "retain" and record.panel == key and self._epochs(record):
                return self.evaluation(record.id, min(self._epochs(record)))
        raise EvaluationError(
            f"{self.name}: no evaluated retain model of {panel_label(*key)}, among the "
            "records: start the sweep again, which evaluates it"
        )


def _worth(best: Best) -> tuple[float, ...]:
    """Return a sort key of the choices of one method, see `Choice.worth`."""
    return () if best.choice is None else best.choice.worth


def _is_near(setting: Setting, chosen: Setting) -> bool:
    """Whether a setting's D might be the least over other questions, or is unknown."""
    test = chosen.headline.forgotten.test
    if test is None:
        return True
    distance = setting.metrics.get(test.distance)
    least = chosen.metrics.get(test.distance)
    if distance is None or least is None:
        return True
    question_count = int(chosen.metrics.get(test.questions) or 0)
    return distance - least <= margin(question_count)
