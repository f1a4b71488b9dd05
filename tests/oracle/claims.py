"""Everything that the views of a sweep's folder have to say, computed from its records alone.

`Claims.of(folder)` is the only entry point. A claim is a value, not a text: a view that shows a
number rounds it, and the comparison decides how many digits the view must have right. None means
that the view must show no number.

Terms: a *run* is one training, named by its id. A *setting* is everything that a run depends on
except its seed, after one epoch. A *variant* is an evaluation under an attack, `relearning@13`,
and `""` without one. A *panel* is a model and a split. A *column* is a number's name as in
`results.csv`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tests.oracle.attackers import TUNED, Chosen
from tests.oracle.choices import Choice, choices_of_panel
from tests.oracle.comparison import PanelComparer
from tests.oracle.lasting import PanelUnderAttack
from tests.oracle.means import Setting, SettingsOfRuns
from tests.oracle.places import Judge, judge_of
from tests.oracle.read import Folder, read_folder
from tests.oracle.rows import Rows
from tests.oracle.sentences import numbers_in_sentences
from tests.oracle.tracked import tracked_metrics

NumberKey = tuple[str, int, str, str]
"""Run, epoch, variant and column of a number; the "run" may be a start or retain model's record."""
Split = float | str
"""Fraction of the rows to forget, or the name of the split."""
Bounds = tuple[float, float]
"""Lower and upper end of an interval."""


@dataclass(frozen=True)
class MeanClaim:
    """A mean over the seeds of a setting."""

    mean: float | None
    """None if one of the runs has no number, or ended before the epoch (see
    `SettingClaim.missing`)."""
    interval: Bounds | None
    """95 % t interval over seeds; with two seeds the two values; None with one seed, or without
    a mean."""


@dataclass(frozen=True)
class SettingClaim:
    """A setting after one epoch."""

    method: str
    """Name of the method with its retain term and modifiers, without hyperparameters: `npo+nll`."""
    learning_rate: float | None
    epoch: int
    runs: tuple[str, ...]
    """Ids of its runs that have a row at this epoch, in the order of their seeds."""
    seeds: tuple[int, ...]
    """Their seeds."""
    means: Mapping[str, MeanClaim]
    """By column of `results.csv`."""
    by_seed: Mapping[str, tuple[float, ...]]
    """Numbers of the seeds by column, in the order of seeds; empty if a seed is missing."""
    missing: Mapping[int, str]
    """Why the means are undefined, by seed: `collapsed`, `stopped` or `patience` of a run that
    ended earlier."""

    @property
    def key(self) -> tuple[frozenset[str], int]:
        """The runs and the epoch, which no other setting has."""
        return frozenset(self.runs), self.epoch


@dataclass(frozen=True)
class LastingClaim:
    """How much of what a setting removed lasts under attacks, as `lasting` in docs says."""

    score: float | None
    """The worst over attacks and points; None without a score."""
    variant: str | None
    """The variant of the worst score."""
    interval: Bounds | None
    """95 % t interval over seeds of the worst score; None with one seed, whose interval is over
    questions."""
    reason: str | None
    """Kind of reason why there is no score: `not attacked`, `utility`, `missing attack`, `ended
    early`, `no yardstick`, `rows left out`, `retain not attacked`, `start not evaluated`, `too
    little removed`, `undefined`. None with a score."""
    bypassed_by: frozenset[str]
    """Variants that run the weights without the method, which works at inference time. Views say
    that, instead of a score."""
    by_variant: Mapping[str, float | None]
    """Mean over seeds by variant, without points before the first step of an attack."""
    before: Mapping[str, float | None]
    """Mean over seeds of the number before each variant, on the rows that the variant asked."""
    after: Mapping[str, float | None]
    """Mean over seeds of the number under each variant."""
    retain: Mapping[str, tuple[float | None, float | None]]
    """The retain model's number before each variant and under it."""
    start: Mapping[str, tuple[float | None, float | None]]
    """The start model's."""
    measured_by: Mapping[str, tuple[str, str] | None]
    """Columns before and under each variant; None if the variant can move no number."""
    attackers: Mapping[str, Chosen]
    """The attacker by variant of a search, `relearning@tuned`."""
    own_retain: Mapping[str, tuple[float | None, float | None]]
    """By variant of a search, the retain model before and under its own strongest attacker."""
    own_start: Mapping[str, tuple[float | None, float | None]]
    """The start model before and under its own strongest attacker."""


@dataclass(frozen=True)
class EntryClaim:
    """A method on a panel, or one entry of the configuration if several entries of the method
    have a choice."""

    method: str
    entry: str
    """Name of the entry; the method's without several entries of it."""
    shown: SettingClaim | None
    """What every view shows: the best setting, or under `select` or `tune` the choice, on its
    reporting seeds. None without one, and if no reporting run has a row at the chosen epoch."""
    tied: tuple[tuple[frozenset[str], int], ...]
    """Keys of other settings that are exactly as good as `shown`. No rule says which one is shown.
    Empty under `select` and `tune`."""
    chosen: SettingClaim | None
    """The choice on the seeds of the choice; None without `select` or `tune`, and without a
    choice."""
    reported: SettingClaim | None
    """The choice on its reporting seeds, also if no setting can be the best, because the start
    model has a fault. Then `shown` is None. None without `select` or `tune`, and without rows."""
    candidates: int
    """Settings with all seeds of the choice; 0 without `select` and `tune`."""
    place: int | None
    """Place of `shown`, which several methods may share. None without numbers, for a choice that
    keeps less than `PanelClaim.least_kept` on its reporting seeds, and with fewer than three
    seeds."""
    is_ranked: bool
    """Whether `shown` keeps enough, so that the first such entry is the one that sentences are
    about. Also with too few seeds for a place."""
    lasting: LastingClaim | None
    """Of `shown`; None without `shown`, and in a sweep without attacks."""


@dataclass(frozen=True)
class PanelClaim:
    """One model and split."""

    model: str
    split: Split
    kept: str
    """Column of what is kept, by the headline: `model_utility`."""
    forgotten: str
    """Column of what is forgotten, by the headline: `log10_forget_quality`."""
    start: Mapping[str, float | None]
    """Numbers of the start model by column; empty without one."""
    retain: Mapping[str, float | None]
    """Numbers of the retain model by column; empty without one."""
    least_kept: float | None
    """Smallest number of what is kept that a best setting has; None without a start model."""
    fault: str | None
    """Kind of fault of the start model, from which nothing is best: `knows nothing`, `nothing to
    forget`."""
    settings: tuple[SettingClaim, ...]
    entries: tuple[EntryClaim, ...]
    """Best first; entries without numbers last, by name."""
    lasting: tuple[tuple[frozenset[str], int, LastingClaim], ...]
    """Lasting of every attacked setting over all its seeds: its runs, the epoch, the numbers."""
    sentences: Mapping[str, tuple[float, ...]]
    """Numbers that the sentences of the conclusion must contain: `found`, `sure`, `lasts`."""

    @property
    def panel(self) -> tuple[str, Split]:
        """Model and split."""
        return self.model, self.split


@dataclass(frozen=True)
class BoardLineClaim:
    """A method's line in `leaderboard show`."""

    model: str
    split: Split
    method: str
    seeds: tuple[int, ...]
    kept: float | None
    forgotten: float | None
    epoch: int | None
    learning_rate: float | None


@dataclass(frozen=True)
class Claims:
    """All claims about one folder."""

    columns: tuple[str, ...]
    """Columns of `results.csv` that hold metrics, in any order."""
    numbers: Mapping[NumberKey, float | None]
    """Every number of `results.csv` (variant `""`) and `attacks.csv`."""
    panels: tuple[PanelClaim, ...]
    comparer: Callable[[tuple[str, Split], str], PanelComparer]
    """Compares methods on a panel under a variant (`""` without an attack):
    `claims.comparer(panel, "").compare("npo", "ce-u")`."""
    boards: Mapping[str, tuple[BoardLineClaim, ...]]
    """Lines of the leaderboard that is exported from this folder alone, by profile."""
    tracked: Mapping[str, Mapping[tuple[str, int], float]]
    """By record: metrics that MLflow has, by name and step. Only the metrics of models
    (`forget/rouge`, `under.relearning.13/rouge_forget`, `best/model_utility`), not those of
    training or of the machine."""

    @classmethod
    def of(cls, folder: Path) -> Claims:
        """Compute all claims about a sweep's folder."""
        return cls.of_folder(read_folder(folder))

    @classmethod
    def of_folder(cls, folder: Folder) -> Claims:
        """Compute all claims about what a folder contains."""
        rows = Rows(folder)
        numbers: dict[NumberKey, float | None] = {}
        for row in rows.all:
            for column, value in row.values.items():
                numbers[row.record.id, row.epoch, row.variant, column] = value
        runs = tuple(rows.folder.runs)
        of_runs = tuple(row for row in rows.plain if row.record.kind == "run")
        settings = SettingsOfRuns(runs, of_runs)
        panels = tuple(_panel(rows, settings, panel) for panel in rows.panels)
        chosen_epochs = _chosen_epochs(rows, settings) if folder_chooses(rows) else None
        return cls(
            columns=rows.columns,
            numbers=numbers,
            panels=panels,
            comparer=partial(PanelComparer, rows, settings),
            boards=_boards(rows, panels),
            tracked={
                record.id: tracked_metrics(rows, record, chosen_epochs)
                for record in rows.folder.records
            },
        )


def folder_chooses(rows: Rows) -> bool:
    """Whether the folder's sweep has `select` or `tune`."""
    return bool(rows.folder.config.get("select"))


def _chosen_epochs(rows: Rows, settings: SettingsOfRuns) -> dict[str, int]:
    """Return the chosen epoch of each run that reports a choice, where settings are judged."""
    epochs: dict[str, int] = {}
    for panel in rows.panels:
        of_panel = [row for row in settings.rows if row.record.panel == panel]
        judge = judge_of(rows, panel)
        if judge.fault or not judge.start_kept:
            continue
        for choice in choices_of_panel(of_panel, settings, rows.folder.plan, judge):
            for row in () if choice.reported is None else choice.reported.rows:
                epochs[row.record.id] = row.epoch
    return epochs


def _panel(rows: Rows, settings: SettingsOfRuns, panel: tuple[str, Split]) -> PanelClaim:
    headline = rows.benchmark.headline
    judge = judge_of(rows, panel)
    of_panel = [row for row in settings.rows if row.record.panel == panel]
    all_settings = settings.of(of_panel)
    attacked = None
    if not judge.fault and any(row.variant and row.record.panel == panel for row in rows.all):
        attacked = PanelUnderAttack(rows, panel, judge)
        if not attacked.variants_of_runs:
            attacked = None

    competitors: list[_Competitor] = []
    if folder_chooses(rows):
        for choice in choices_of_panel(of_panel, settings, rows.folder.plan, judge):
            shown = None if judge.fault or not judge.start_kept else choice.reported
            competitors.append(_Competitor(choice.method, choice.entry, shown, choice))
    else:
        for method in sorted({setting.method for setting in all_settings}):
            of_method = [setting for setting in all_settings if setting.method == method]
            best = None
            if judge.least_kept is not None and not judge.fault:
                best = judge.best(of_method, judge.least_kept)
            competitors.append(_Competitor(method, method, best, None))

    def order(competitor: _Competitor) -> tuple[object, ...]:
        shown = competitor.shown
        # A choice that keeps too little on its reporting seeds stands behind the others.
        keeps = shown is None or judge.keeps_enough(shown)
        return not keeps, *judge.order(shown, competitor.entry)

    competitors.sort(key=order)
    placed = [
        competitor.shown
        for competitor in competitors
        if competitor.shown is not None and judge.keeps_enough(competitor.shown)
    ]
    place_of = dict(zip(map(id, placed), judge.places(placed), strict=True))
    entries: list[EntryClaim] = []
    for competitor in competitors:
        shown = competitor.shown
        lasting = None
        if attacked is not None and shown is not None:
            lasting = _lasting(attacked, shown)
        entries.append(
            EntryClaim(
                method=competitor.method,
                entry=competitor.entry,
                shown=None if shown is None else _setting(shown, rows.columns),
                tied=_tied(competitor, all_settings, judge),
                chosen=competitor.chosen(rows.columns),
                reported=competitor.reported(rows.columns),
                candidates=0 if competitor.choice is None else competitor.choice.candidates,
                place=None if shown is None else place_of.get(id(shown)),
                is_ranked=shown is not None and id(shown) in place_of,
                lasting=lasting,
            )
        )
    start = rows.of_kind("fine-tuned", panel)
    retain = rows.of_kind("retain", panel)
    claim = PanelClaim(
        model=panel[0],
        split=panel[1],
        kept=headline.kept,
        forgotten=headline.forgotten,
        start={} if start is None else start.values,
        retain={} if retain is None else retain.values,
        least_kept=judge.least_kept,
        fault=judge.fault,
        settings=tuple(_setting(setting, rows.columns) for setting in all_settings),
        entries=tuple(entries),
        lasting=() if attacked is None else _all_lasting(attacked, all_settings),
        sentences={},
    )
    return replace(claim, sentences=numbers_in_sentences(claim, rows.benchmark.headline, judge))


@dataclass(frozen=True)
class _Competitor:
    """What is shown of a method or an entry."""

    method: str
    entry: str
    shown: Setting | None
    choice: Choice | None

    def chosen(self, columns: Sequence[str]) -> SettingClaim | None:
        """The choice on the seeds of the choice."""
        if self.choice is None or self.choice.chosen is None:
            return None
        return _setting(self.choice.chosen, columns)

    def reported(self, columns: Sequence[str]) -> SettingClaim | None:
        """The choice on the seeds that report it."""
        if self.choice is None or self.choice.reported is None:
            return None
        return _setting(self.choice.reported, columns)


def _tied(
    competitor: _Competitor, settings: Sequence[Setting], judge: Judge
) -> tuple[tuple[frozenset[str], int], ...]:
    shown = competitor.shown
    if shown is None or competitor.choice is not None:
        return ()
    return tuple(
        (frozenset(row.record.id for row in setting.rows), setting.epoch)
        for setting in settings
        if setting.method == shown.method
        and judge.merit(setting) == judge.merit(shown)
        and (setting.text, setting.epoch) != (shown.text, shown.epoch)
    )


def _setting(setting: Setting, columns: Sequence[str]) -> SettingClaim:
    return SettingClaim(
        method=setting.method,
        learning_rate=setting.learning_rate,
        epoch=setting.epoch,
        runs=tuple(row.record.id for row in setting.rows),
        seeds=setting.seeds,
        means={name: MeanClaim(setting.mean(name), setting.interval(name)) for name in columns},
        by_seed={name: tuple(setting.by_seed(name).values()) for name in columns},
        missing=setting.missing,
    )


def _all_lasting(
    attacked: PanelUnderAttack, settings: Sequence[Setting]
) -> tuple[tuple[frozenset[str], int, LastingClaim], ...]:
    """Lasting of every setting that was attacked."""
    claims: list[tuple[frozenset[str], int, LastingClaim]] = []
    for setting in settings:
        claim = _lasting(attacked, setting)
        if claim.by_variant:
            runs = frozenset(row.record.id for row in setting.rows)
            claims.append((runs, setting.epoch, claim))
    return tuple(claims)


def _lasting(attacked: PanelUnderAttack, setting: Setting) -> LastingClaim:
    lasting = attacked.lasting(setting)
    worst = lasting.worst
    under = lasting.under
    has_retain = attacked.rows.benchmark.has_retain
    return LastingClaim(
        score=None if worst is None else under[worst].score,
        variant=worst,
        interval=None if worst is None else under[worst].interval,
        reason=lasting.reason,
        bypassed_by=frozenset(variant for variant, item in under.items() if item.is_bypassed),
        by_variant={variant: item.score for variant, item in under.items()},
        before={variant: item.before for variant, item in under.items()},
        after={variant: item.after for variant, item in under.items()},
        # Views say nothing of a retain model that does not exist.
        retain={
            variant: (item.retain.before, item.retain.after) if has_retain else (None, None)
            for variant, item in under.items()
        },
        start={variant: (item.start.before, item.start.after) for variant, item in under.items()},
        measured_by={variant: attacked.measured_by(variant) for variant in under},
        attackers={v: item.chosen for v, item in under.items() if item.chosen is not None},
        own_retain=_own(attacked, "retain") if has_retain else {},
        own_start=_own(attacked, "fine-tuned"),
    )


def _own(attacked: PanelUnderAttack, kind: str) -> Mapping[str, tuple[float | None, float | None]]:
    pairs = {attack: attacked.own_attacker(kind, attack) for attack in attacked.searches}
    return {f"{attack}@{TUNED}": (pair.before, pair.after) for attack, pair in pairs.items()}


def _boards(rows: Rows, panels: Sequence[PanelClaim]) -> Mapping[str, tuple[BoardLineClaim, ...]]:
    """Lines of a board of this folder: its records have the rules and the choices of the folder.

    A board has no failed runs, which say nothing about their settings anywhere else, either.
    """
    profile = next((record.profile for record in rows.folder.records if record.stated), "")
    lines: list[BoardLineClaim] = []
    for panel in panels:
        for entry in panel.entries:
            shown = entry.shown
            lines.append(
                BoardLineClaim(
                    model=panel.model,
                    split=panel.split,
                    method=entry.entry,
                    seeds=() if shown is None else shown.seeds,
                    kept=None if shown is None else shown.means[panel.kept].mean,
                    forgotten=None if shown is None else shown.means[panel.forgotten].mean,
                    epoch=None if shown is None else shown.epoch,
                    learning_rate=None if shown is None else shown.learning_rate,
                )
            )
    return {profile: tuple(lines)}
