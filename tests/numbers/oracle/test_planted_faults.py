"""The comparison with the recomputation finds faults that the project once had.

Each fault is put back by itself, as close to its old behaviour as today's code allows, and must be
found in one of the first random folders that have the features in which it showed. Without it, the
same folders agree (`test_agreement.py`). Every fifth fault is in `make test`, and the others are in
`make test-long`.

The names are those of an audit. R1: two settings of one label were averaged. R4: a row of the LaTeX
scorecard had the lasting of another setting. R5: the conclusion ignored `select` and `tune`. R6: a
bound of another k stood next to leak@k. R7: on a board, seeds of requests in sequence were settings
of their own. R8: depths counted as steps. R10: both references were at another point than the
number next to them. R11: under an attack, another setting took the place of the chosen one. R12:
entries of one label were one pool of trials. R15: an attack that not all seeds had was skipped. D1
to D11: numbers that depended on when or where they were read. S1 to S3 break the rule by
which an attacker is chosen: on other rows, on other seeds, and with enough utility.
"""

import importlib
import itertools
import shutil
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.factories.random_folders import SEARCHING, draw, write
from tests.numbers.oracle import written_views
from tests.numbers.oracle.agreement import Disagreement, disagreements
from tests.numbers.oracle.written_views import views_of
from tests.oracle.claims import Claims
from unlearnbench.analysis import (
    attacked_panels,
    attacker_choice,
    ended_early,
    sampled_leaks,
    under_attack,
)
from unlearnbench.analysis.best_settings import Best, Panel
from unlearnbench.analysis.choice_plan import ChoicePlan
from unlearnbench.analysis.contender import Contender
from unlearnbench.analysis.lasting import AttackedPanel, AttackedSetting
from unlearnbench.analysis.results import Results
from unlearnbench.analysis.settings import Setting, average_seeds
from unlearnbench.analysis.under_attack import Shift
from unlearnbench.analysis.yardstick import Yardstick
from unlearnbench.api.observations import IntArray, SetEvaluation
from unlearnbench.report import leaderboard
from unlearnbench.results import asked_rows, attack_variants, finalize, rules
from unlearnbench.results import run_settings as run_settings_module
from unlearnbench.results.finalize import EvaluatedResult
from unlearnbench.results.records import Record
from unlearnbench.results.table import Numbers

lasting_section: Any = importlib.import_module("unlearnbench_dashboards.sections.lasting")
Patch = pytest.MonkeyPatch
FOLDERS = 2000
"""Numbers of the folders that are looked through for the features of a fault."""
TRIES = 6
"""Folders in which a fault has to show."""


@dataclass(frozen=True)
class Plant:
    """A fault that is put back."""

    name: str
    features: frozenset[str]
    """Features of the folders in which it shows."""
    put_back: Callable[[Patch], None]


PLANTS: list[Plant] = []


def plant(name: str, *features: str) -> Callable[[Callable[[Patch], None]], None]:
    """Register a function that puts a fault back."""

    def register(put_back: Callable[[Patch], None]) -> None:
        PLANTS.append(Plant(name, frozenset(features), put_back))

    return register


# Between records and views


def _with_one_setting(
    patch: Patch, same: Callable[[Record], Any], is_affected: Callable[[Record], bool]
) -> None:
    """Let runs count as seeds of one setting if they are equal by another rule."""
    of_today = run_settings_module.run_settings

    def run_settings(records: Iterable[Record]) -> Any:
        records = list(records)
        settings = dict(of_today(records))
        first: dict[str, Any] = {}
        for record in records:
            if record.kind == "run" and is_affected(record):
                settings[record.id] = first.setdefault(repr(same(record)), settings[record.id])
        return settings

    for module in (finalize, ended_early):
        patch.setattr(module, "run_settings", run_settings)


@plant("R1", "own retain weight", "grid")
def _(patch: Patch) -> None:
    def without_own_weight(record: Record) -> Any:
        method = record.spec["method"]
        fields = {k: v for k, v in method["hyperparameters"].items() if k != "retain_weight"}
        return (
            record.panel,
            method["name"],
            fields,
            record.learning_rate,
            record.spec.get("steps", record.spec["epochs"]),
        )

    def is_affected(record: Record) -> bool:
        method: Mapping[str, Any] = record.spec.get("method") or {"retain": None}
        return method["retain"] is not None and "retain_weight" in method["hyperparameters"]

    _with_one_setting(patch, without_own_weight, is_affected)


@plant("R4", "attack with points", "several rates", "several epochs")
def _(patch: Patch) -> None:
    def of(panel: AttackedPanel, setting: Setting) -> AttackedSetting | None:
        of_family = [o for o in panel.settings if o.setting.family == setting.family]
        others = [item for item in of_family if item.setting != setting]
        return next(iter(others or of_family), None)

    patch.setattr(AttackedPanel, "of", of)


@plant("R5", "select", "several epochs")
def _(patch: Patch) -> None:
    patch.setattr(Results, "choices", ())


@plant("R6", "attack by sampling", "synthetic")
def _(patch: Patch) -> None:
    of_today = sampled_leaks.leak_columns

    def leak_columns(schema: Any) -> tuple[str, str]:
        column, _ = of_today(schema)
        return column, "leak_at_k_bound"

    for module in _modules_with(of_today, "leak_columns"):
        patch.setattr(module, "leak_columns", leak_columns)


def _modules_with(function: object, name: str) -> Iterator[Any]:
    """Yield the modules that have imported a function."""
    for module in [*sys.modules.values()]:
        if getattr(module, name, None) is function and not module.__name__.startswith("tests"):
            yield module


@plant("R7", "requests in sequence", "3 or more seeds")
def _(patch: Patch) -> None:
    of_today = run_settings_module.run_settings

    def run_settings(records: Iterable[Record]) -> Any:
        settings = dict(of_today(records))
        for id_, setting in settings.items():
            settings[id_] = replace(setting, id=f"{setting.id} of {id_}")
        return settings

    patch.setattr(finalize, "run_settings", run_settings)


@plant("R8", "attack with depths", "1 attacks")
def _(patch: Patch) -> None:
    def step_of(variant: str) -> int | None:
        point = attack_variants.point_of(variant)
        return int(point) if point.isdecimal() else None

    for module in [*_modules_with(attack_variants.step_of, "step_of")]:
        patch.setattr(module, "step_of", step_of)


@plant("R10", "attack with depths", "synthetic", "1 attacks")
def _(patch: Patch) -> None:
    def references(
        column: Any, _: AttackedPanel, models: Mapping[str, Shift]
    ) -> list[tuple[str, Shift]]:
        variants = [v for v in models if attack_variants.attack_of(v) == column.attack]
        return [("", models[variants[-1]])] if variants else []

    patch.setattr(lasting_section.AttackColumn, "references", references)


@plant("R11", "select", "1 attacks", "several methods", "several epochs")
def _(patch: Patch) -> None:
    of_today = Contender.choice

    def choice(contender: Contender, key: Any) -> Best | None:
        best = of_today(contender, key)
        if best is None or not contender.variant:
            return best
        compared = contender._as_compared(best)  # pyright: ignore[reportPrivateUsage]
        return None if isinstance(compared, str) else best

    patch.setattr(Contender, "choice", choice)


@plant("R12", "two entries of one label", "tune")
def _(patch: Patch) -> None:
    def entries(plan: ChoicePlan) -> Mapping[str, tuple[str, ...]]:
        labels = {run.id: run.spec["method"]["name"] for run in plan.trials if run.entries}
        return {id_: (label,) for id_, label in labels.items()}

    patch.setattr(ChoicePlan, "entries", property(entries))


@plant("R15", "attacked before the last epoch", "2 attacks", "3 or more seeds")
def _(patch: Patch) -> None:
    of_today = AttackedSetting.why_not.func  # type: ignore[attr-defined]

    def why_not(attacked: AttackedSetting) -> str:
        reason: str = of_today(attacked)
        is_known = any(under.lasting is not None for under in attacked.under)
        keeps = attacked.keeps_utility and not attacked.utility_unknown
        return "" if is_known and keeps else reason

    patch.setattr(AttackedSetting, "why_not", property(why_not))


# When and where numbers are read


def _without_start(patch: Patch, is_affected: Callable[[EvaluatedResult], bool]) -> None:
    of_today = finalize._Inputs.of  # pyright: ignore[reportPrivateUsage]

    def of(evaluated: EvaluatedResult, references: Any) -> Any:
        inputs = of_today(evaluated, references)
        return replace(inputs, start=None) if is_affected(evaluated) else inputs

    patch.setattr(finalize._Inputs, "of", of)  # pyright: ignore[reportPrivateUsage]


@plant("D1", "synthetic", "1 attacks")
def _(patch: Patch) -> None:
    def is_affected(evaluated: EvaluatedResult) -> bool:
        return evaluated.record.kind == "retain" and bool(evaluated.result.variant)

    _without_start(patch, is_affected)


def _as_recorded(patch: Patch, is_affected: Callable[[Any], bool]) -> None:
    of_today = finalize._Finalization._taken  # pyright: ignore[reportPrivateUsage]

    def taken(one: Any, row: Any, *, is_current: bool) -> Numbers | None:
        if is_affected(row) and row.result.metrics:
            return Numbers.finite(row.result.metrics)
        return of_today(one, row, is_current=is_current)

    patch.setattr(finalize._Finalization, "_taken", taken)  # pyright: ignore[reportPrivateUsage]


@plant("D2", "a metric newer than the records", "1 attacks")
def _(patch: Patch) -> None:
    _as_recorded(patch, lambda row: bool(row.result.variant))


@plant("D3", "an older metric's number", "synthetic")
def _(patch: Patch) -> None:
    _as_recorded(patch, lambda row: not row.result.variant)


@plant("D4", "a metric switched on later", "a metric of its own settings", "synthetic")
def _(patch: Patch) -> None:
    def with_numbers(records: Iterable[Record], _: Any) -> list[Record]:
        return list(records)

    patch.setattr(leaderboard, "with_numbers", with_numbers)


@plant("D5", "a table by other code", "synthetic")
def _(patch: Patch) -> None:
    patch.setattr(rules, "own_code", lambda: "other code")


@plant("D6", "select", "several reporting seeds")
def _(patch: Patch) -> None:
    of_today = Panel._chosen  # pyright: ignore[reportPrivateUsage]

    def chosen(panel: Panel, choice: Any) -> Best:
        best = of_today(panel, choice)
        if best.setting is None:
            return best
        setting_id = best.setting.rows[0].setting_id
        rows = [
            row
            for row in panel.rows
            if row.setting_id == setting_id and row.epoch == choice.epoch and row.kind == "run"
        ]
        (setting, *_) = average_seeds(rows)
        return replace(best, setting=setting)

    patch.setattr(Panel, "_chosen", chosen)


@plant("D7", "hypervolume", "1 attacks", "synthetic")
def _(patch: Patch) -> None:
    comparison = attacked_panels._PanelUnderAttack  # pyright: ignore[reportPrivateUsage]
    of_today = comparison._best  # pyright: ignore[reportPrivateUsage]

    def best(panel: Any, family: str, setting: Setting) -> AttackedSetting:
        return replace(of_today(panel, family, setting), keeps_utility=True)

    patch.setattr(under_attack, "LEAST_REMOVED", 0.01)
    patch.setattr(comparison, "_best", best)


@plant("D8", "attack by sampling", "1 attacks", "synthetic")
def _(patch: Patch) -> None:
    def yardstick(schema: Any, column: str, *_: Any) -> Yardstick:
        metric = schema.column(column)
        return Yardstick(metric, metric)

    patch.setattr(attacked_panels, "yardstick", yardstick)


@plant("D9", "synthetic", "grid")
def _(patch: Patch) -> None:
    of_today = finalize.table_of

    def table_of(records: Iterable[Record], metrics: Any) -> Any:
        records = list(records)
        tables = [of_today([r], metrics) for r in records if r.kind != "run"]
        whole = of_today(records, metrics)
        alone = {(r.run_id, r.variant): r for t in tables for r in (*t.rows, *t.attacked)}
        return replace(
            whole,
            rows=tuple(alone.get((r.run_id, r.variant), r) for r in whole.rows),
            attacked=tuple(alone.get((r.run_id, r.variant), r) for r in whole.attacked),
        )

    patch.setattr(written_views, "table_of", table_of)


@plant("D10", "NaN for one question", "an empty answer", "1 attacks")
def _(patch: Patch) -> None:
    def gain(shift: Shift) -> float | None:
        return None if shift.after is None else shift.after - (shift.before or 0.0)

    patch.setattr(Shift, "gain", property(gain))
    _without_reasons(patch)


def _without_reasons(patch: Patch) -> None:
    of_today = Shift.__init__

    def init(shift: Shift, before: float | None, after: float | None) -> None:
        of_today(shift, 0.0 if before is None and after is not None else before, after)

    patch.setattr(Shift, "__init__", init)


@plant("D11", "a question twice", "rows without another wording", "attack that leaves rows out")
def _(patch: Patch) -> None:
    def asked_places(whole: SetEvaluation, asked: SetEvaluation) -> IntArray:
        place_of_question = {question: i for i, question in enumerate(whole.questions)}
        return np.array([place_of_question[question] for question in asked.questions])

    patch.setattr(asked_rows, "asked_places", asked_places)


# Searches for an attacker


@plant("S1", SEARCHING)
def _(patch: Patch) -> None:
    patch.setattr(attacker_choice, "CHOICE", "")


@plant("S2", SEARCHING, "3 or more seeds")
def _(patch: Patch) -> None:
    def half(count: int) -> int:
        return (count + 1) // 2

    patch.setattr(attacked_panels, "seeds_of_choice", half)


@plant("S3", SEARCHING)
def _(patch: Patch) -> None:
    patch.setattr(attacker_choice.Search, "least_utility", 0.0)


@contextmanager
def planted(patch: Patch, fault: Plant) -> Generator[None]:
    """Put a fault back for a while. What is kept between calls is forgotten before and after."""

    def forget() -> None:
        finalize._computed_here.clear()  # pyright: ignore[reportPrivateUsage]
        finalize._read_file.cache_clear()  # pyright: ignore[reportPrivateUsage]

    with ExitStack() as stack:
        stack.callback(forget)
        stack.callback(patch.undo)
        forget()
        fault.put_back(patch)
        yield


def numbers_with(features: frozenset[str]) -> list[int]:
    """Return the first folders that have some features."""
    found = (number for number in range(FOLDERS) if features <= draw(number).features)
    return list(itertools.islice(found, TRIES))


class Folders:
    """Random folders, each written and recomputed once. Faults change only what views say."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._written: dict[int, tuple[Path, Claims]] = {}
        self._agrees: dict[int, list[Disagreement]] = {}

    def found_with(self, fault: Plant, number: int) -> list[Disagreement]:
        """Return what the comparison finds in a folder with a fault."""
        # A MonkeyPatch of its own, because `undo` takes back what other fixtures have set.
        with planted(pytest.MonkeyPatch(), fault):
            return self._found(number)

    def found_without(self, number: int) -> list[Disagreement]:
        """Return what the comparison finds in a folder without a fault."""
        if number not in self._agrees:
            self._agrees[number] = self._found(number)
        return self._agrees[number]

    def _found(self, number: int) -> list[Disagreement]:
        written, claims = self._written_folder(number)
        # Views are written into the folder.
        folder = self.root / "viewed" / written.name
        shutil.copytree(written, folder)
        views = views_of(folder)
        shutil.rmtree(folder)
        return disagreements(views, claims)

    def _written_folder(self, number: int) -> tuple[Path, Claims]:
        if number not in self._written:
            made = write(draw(number), self.root / str(number))
            with np.errstate(invalid="ignore"):
                self._written[number] = made.folder, Claims.of(made.folder)
        return self._written[number]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("folders"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name, marks=[] if i % 5 == 0 else pytest.mark.long)
        for i, fault in enumerate(PLANTS)
    ],
)
def test_a_fault_that_is_put_back_is_found(fault: Plant, folders: Folders) -> None:
    numbers = numbers_with(fault.features)
    assert numbers, "no folder has the features of this fault"
    showing = (number for number in numbers if folders.found_with(fault, number))
    number = next(showing, None)
    assert number is not None, f"not found in folders {numbers}"
    assert folders.found_without(number) == []


def test_each_entry_is_put_back() -> None:
    names = [fault.name for fault in PLANTS]
    expected = ["R1", *(f"R{i}" for i in range(4, 9)), "R10", "R11", "R12", "R15"]
    expected += [f"D{i}" for i in range(1, 12)]
    assert names == [*expected, *(f"S{i}" for i in range(1, 4))]
