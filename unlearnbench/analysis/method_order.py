"""The order of the methods of a sweep: its values, and the sentences on how sure it is.

`order_confidence` computes these values. They stand here with their sentences, so that modules
which only read an order need not import the tests behind it.

Methods of one *panel*, which is a model and split, are ordered by what their best setting has
forgotten, among the settings that keep enough utility. The first method is the *leader*, and the
second one the *runner-up*. A *place* is a rank that methods share if seeds do not tell them apart.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from unlearnbench.analysis.across import Standing
from unlearnbench.analysis.settings import OnPanel, Setting
from unlearnbench.analysis.wording import counted, listed_names, named_first, share_kept
from unlearnbench.stats.ks_test import Sensitivity
from unlearnbench.stats.t_interval import ENOUGH_SEEDS


@dataclass(frozen=True)
class RankedMethod:
    """One method on one panel."""

    method: str
    """Label without hyperparameters; the entry's name if several entries have choices."""
    best: Setting | None
    """None if no setting keeps its utility."""
    place: int | None
    """Place of the best setting, as `shared_places` computes it; None without a best setting, and
    for a setting with too few seeds."""
    hypervolume: float | None
    """Hypervolume of its settings and epochs above the start model's corner; None without a corner.
    If `select` or `tune` has chosen a setting, only the epochs of its runs on the other seeds
    count."""
    why_not: str = ""
    """Why there is no best setting."""
    lost: str = ""
    """As in `Best`."""
    chosen_on: tuple[int, ...] = ()
    """Seeds that the setting was chosen on; empty if it is the best by the page's rule."""

    @property
    def forgotten(self) -> float | None:
        """The headline's number of the best setting, by which methods are ordered."""
        return None if self.best is None else self.best.forgotten

    @property
    def seeds(self) -> int:
        """Number of seeds of the best setting."""
        return 0 if self.best is None else len({row.seed for row in self.best.rows})

    @property
    def lacks_numbers(self) -> bool:
        """Whether a best setting is missing for another reason than its utility.

        A choice may have no numbers yet, and a seed that ended early leaves no mean.
        """
        return self.best is None and bool(self.chosen_on or self.lost)


class Untested(Enum):
    """Why the leading method was not tested against another one."""

    NO_EQUAL_UTILITY = "no equal utility"
    """The other one has more utility than any setting of the leading method, and forgets less."""
    FEW_SEEDS = "few seeds"
    """The headline has no test, and the two have fewer than three seeds in common."""
    UNREADABLE = "unreadable"
    """Evaluations cannot be read, or do not compare."""


@dataclass(frozen=True)
class Rivals:
    """The leading method of a panel and its tests against the other methods.

    Methods are named by their family, in the order of the headline.
    """

    leader: str
    """Method, or entry, whose best setting has forgotten most, by the headline."""
    same: tuple[str, ...]
    """Methods than which it does not forget significantly more."""
    apart: tuple[str, ...]
    """Methods that forget significantly less, Holm-adjusted over all tests."""
    untested: Mapping[str, str]
    """Reasons by method without a test: no equal utility, or unreadable evaluations."""
    runner_up: str
    """The first of the other methods; empty without one."""
    kinds: Mapping[str, Untested] = field(default_factory=dict[str, Untested])
    """The reasons of `untested` as values."""
    few_seeds: frozenset[str] = frozenset()
    """Methods that were compared on fewer than three seeds. Their test is over questions, so
    nothing is known of other seeds, and nothing is claimed even if they are in `apart`."""


@dataclass(frozen=True)
class PanelOrder(OnPanel):
    """Order of the methods on one model and split."""

    methods: tuple[RankedMethod, ...]
    """Best first, by what the best setting has forgotten; methods without one come last."""
    sensitivity: Sensitivity | None
    """None if the headline has no test, or if it has no number."""
    rivals: Rivals | None
    """Tests of the leading method against the others; None without a leading method."""
    unequal: tuple[str, ...]
    """Clauses on differences in training between the methods."""

    @property
    def leader(self) -> RankedMethod | None:
        """The first method; None if no setting keeps its utility."""
        return next((method for method in self.methods if method.best is not None), None)

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences on how sure the order is."""
        lines = [*doubts(self), *_without_order(self)]
        tied = _tied(self)
        if tied:
            lines.append(
                "In one place by the headline number (the difference is within seed noise): "
                f"{'; '.join(tied)}."
            )
        lines += [f"Trained differently: {clause}." for clause in self.unequal]
        return tuple(lines)


@dataclass(frozen=True)
class OrderConfidence:
    """Order of the methods of a sweep: on each panel, and by mean rank."""

    panels: tuple[PanelOrder, ...]
    ranks: tuple[Standing, ...]
    """Over the panels. Methods that lack a panel stand at the end."""

    @property
    def summary(self) -> str:
        """Sentences on the data behind the ranks."""
        panel_count = len(self.panels)
        source = f"{panel_count} panels (models × splits)"
        if panel_count < 2:
            source = "one panel: they hold for this model and split only"
        ranked = [standing.method for standing in self.ranks if standing.mean is not None]
        left_out = [standing.method for standing in self.ranks if standing.mean is None]
        text = f"Ranks of {counted(len(ranked), 'method')} by their best settings, from {source}."

        panels_without_best: dict[str, list[RankedMethod]] = defaultdict(list)
        for panel in self.panels:
            for method in panel.methods:
                if method.best is None:
                    panels_without_best[method.method].append(method)
        keep_too_little: list[str] = []
        without_place: list[str] = []
        for name in ranked:
            without_best = panels_without_best[name]
            label = name
            if panel_count > 1:
                label = f"{name} ({len(without_best)} of {panel_count})"
            if any(method.lacks_numbers for method in without_best):
                without_place.append(label)
            elif without_best:
                keep_too_little.append(label)

        if keep_too_little:
            text += f" Last because no setting keeps its utility: {', '.join(keep_too_little)}."
        if without_place:
            text += f" Last without a place: {', '.join(without_place)}."
        if left_out:
            text += f" Left out because not run on every panel: {', '.join(left_out)}."
        return text


def doubts(order: PanelOrder, ahead: Sequence[str] = ()) -> Iterator[str]:
    """Say how sure the leading method's lead is: rivals, seeds, and what the test can detect.

    Args:
        order: Order of a panel's methods.
        ahead: Methods that forget significantly more than the leading one at equal utility.

    Yields:
        Sentences; none without a leading method.
    """
    leader = order.leader
    if leader is None or leader.best is None:
        return
    if order.rivals is not None:
        yield from _against_rivals(order.rivals, ahead)

    without_best = [method for method in order.methods if method.best is None]
    keep_too_little = [method.method for method in without_best if not method.lacks_numbers]
    if keep_too_little:
        condition = share_kept(leader.best.headline)
        yield f"No setting keeps {condition}: {named_first(keep_too_little)}."
    for method in without_best:
        if method.lacks_numbers:
            yield f"{method.method} has no place: {method.why_not}."

    seeds = "one seed" if leader.seeds == 1 else counted(leader.seeds, "seed")
    advice = ""
    if leader.seeds < ENOUGH_SEEDS:
        advice = f": use at least {ENOUGH_SEEDS} to rank methods"
    yield f"Based on {seeds}{advice}."
    if order.sensitivity is not None:
        yield order.sensitivity.summary


def _against_rivals(rivals: Rivals, ahead: Sequence[str]) -> Iterator[str]:
    """Say which methods the leading one beats, and against which nothing is decided.

    Args:
        rivals: Tests of the leading method.
        ahead: Methods that forget significantly more at equal utility.
    """
    runner_up = rivals.runner_up
    if runner_up in rivals.untested:
        reason = _within_a_sentence(rivals.untested[runner_up])
        yield (
            f"Undecided: {rivals.leader} is not comparable with {runner_up}, the runner-up: "
            f"{reason}."
        )
    if ahead:
        yield f"At equal utility it forgets significantly less than {listed_names(ahead)}."

    def marked(names: Iterable[str]) -> str:
        """List methods, and say which of them is the runner-up."""
        labels: list[str] = []
        for name in names:
            labels.append(f"{name} (the runner-up)" if name == runner_up else name)
        return listed_names(labels)

    undecided = [name for name in rivals.same if name not in ahead]
    if undecided:
        yield (
            f"Undecided against {marked(undecided)}: at equal utility, the difference may be "
            "chance."
        )
    # These methods were tested over questions only, so it is open what other seeds would give.
    unknown_over_seeds = [name for name in rivals.apart if name in rivals.few_seeds]
    if unknown_over_seeds:
        yield (
            f"Undecided against {marked(unknown_over_seeds)}: at equal utility, the difference is "
            f"more than chance over questions, but with fewer than {ENOUGH_SEEDS} seeds it may be "
            "chance over seeds."
        )
    behind = [name for name in rivals.apart if name not in rivals.few_seeds]
    if behind:
        yield f"At equal utility it forgets significantly more than {listed_names(behind)}."
    others = [name for name in rivals.untested if name != runner_up]
    if others:
        yield f"No comparison at equal utility was possible with {listed_names(others)}."


def _within_a_sentence(reason: str) -> str:
    """Begin a reason with a small letter, unless it begins with the name of a method."""
    first_word, _, rest = reason.partition(" ")
    if first_word in ("No", "The", "One"):
        return f"{first_word.lower()} {rest}"
    return reason


def _tied(order: PanelOrder) -> list[str]:
    """List the methods that share a place, for example `["npo and simnpo"]`."""
    counts = Counter(method.place for method in order.methods if method.place is not None)
    tied: list[str] = []
    for place, count in counts.items():
        if count > 1:
            names = [method.method for method in order.methods if method.place == place]
            tied.append(" and ".join(names))
    return tied


def _without_order(order: PanelOrder) -> Iterator[str]:
    """Name the methods with too few seeds for a place, by their number of seeds."""
    methods_of_count: dict[int, list[str]] = defaultdict(list)
    for method in order.methods:
        if method.best is not None and method.place is None:
            methods_of_count[method.seeds].append(method.method)
    for count, methods in sorted(methods_of_count.items()):
        seeds = {1: "One seed", 2: "Two seeds"}.get(count, "Too few seeds")
        yield f"{seeds}: no order ({named_first(methods)})."
