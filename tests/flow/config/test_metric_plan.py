"""Metrics of other authors: added by a file, left out where broken, and never in the way."""

from pathlib import Path
from typing import ClassVar, cast

import numpy as np
import pytest

from unlearnbench.api import registry
from unlearnbench.api.benchmark import MetricUse
from unlearnbench.api.metric import (
    EvaluatedModel,
    Metric,
    MetricColumn,
    MetricInputs,
    Role,
    Summary,
    Values,
)
from unlearnbench.api.metric_engine import MetricPlan, computed
from unlearnbench.api.observations import FloatArray, SetEvaluation
from unlearnbench.base.deferred_warnings import drain
from unlearnbench.base.errors import PluginError
from unlearnbench.config.metric_plan import metric_plan
from unlearnbench.config.profiles import TOFU
from unlearnbench.evaluation.made_up_sets import made_up_set
from unlearnbench.evaluation.summary import plan_of

pytestmark = pytest.mark.usefixtures("no_warning_given")

ROLES: dict[str, Role] = {"forget": "forget", "retain": "retain"}
MINE = '''\
from unlearnbench.api import Metric

class MyMetric(Metric):
    """Own work."""

    label = "Mine"
    roles = frozenset({"forget", "retain"})

    def per_example(self, seen):
        return seen.answer_loss * 0 + 0.25
'''


class Loss(Metric):
    """Own work."""

    label = "Loss"
    roles: ClassVar[frozenset[Role]] = frozenset({"forget"})

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        return seen.answer_loss


class Odd(Loss):
    """Own work."""

    returned: ClassVar[object] = "text"

    def per_example(self, seen: SetEvaluation) -> FloatArray:  # noqa: ARG002  # it fails
        if self.returned is ZeroDivisionError:
            raise ZeroDivisionError("nothing to divide by")
        return cast("FloatArray", self.returned)


class Twice(Summary):
    """Own work."""

    roles: ClassVar[frozenset[Role]] = frozenset({"forget"})

    def columns(self) -> tuple[MetricColumn, ...]:
        return (MetricColumn("loss_forget", "Loss again"),)

    def compute(self, of: MetricInputs) -> Values:
        return {"loss_forgotten": of.model.values["loss_forget"]}


def planned(**metrics: type[Metric | Summary]) -> MetricPlan:
    return metric_plan(ROLES, [MetricUse("loss", ("forget",))], {"loss": Loss, **metrics})


def test_a_file_adds_its_columns_after_all_others_and_an_edit_counts(tmp_path: Path) -> None:
    before = plan_of(TOFU)
    assert plan_of(TOFU) is before
    (tmp_path / "my_metric.py").write_text(MINE)
    registry.register_file(tmp_path / "my_metric.py")
    plan = plan_of(TOFU)
    added = [c.name for c in plan.columns if c not in before.columns]
    assert added == ["my_metric_retain", "my_metric_forget"]
    sets = {name: made_up_set() for name in ROLES}
    values = plan.values(sets)
    assert [values[name] for name in added] == [0.25, 0.25]
    assert {n: v for n, v in values.items() if n not in added} == before.values(sets)
    (tmp_path / "my_metric.py").write_text(MINE.replace("0.25", "0.5"))
    registry.register_file(tmp_path / "my_metric.py")
    assert plan_of(TOFU).values(sets)["my_metric_forget"] == 0.5


class Quiet(Loss):
    """Own work."""

    roles: ClassVar[frozenset[Role]] = frozenset()

    factor: tuple[float, ...] = (1.0,)

    def per_example(self, seen: SetEvaluation) -> FloatArray:
        return seen.answer_loss * self.factor[0]


def test_a_metric_without_roles_is_reported_where_a_configuration_names_it() -> None:
    uses, metrics = [MetricUse("loss", ("forget",))], {"loss": Loss, "quiet": Quiet}
    assert [c.name for c in metric_plan(ROLES, uses, metrics).columns] == ["loss_forget"]
    chosen = {"quiet": {"factor": [3.0]}}
    plan = metric_plan(ROLES, uses, metrics, chosen=chosen)
    assert [c.name for c in plan.columns] == ["loss_forget", "quiet_forget", "quiet_retain"]
    values = plan.values({name: made_up_set() for name in ROLES})
    assert values["quiet_retain"] == pytest.approx(3 * made_up_set().answer_loss.mean())


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("text", "returned a value of type str for 6 examples; it must return a float64 array [n]"),
        (None, "returned None for 6 examples; it must"),
        (np.zeros(3), "returned an array [3] of float64 for 6 examples; it must"),
        (np.array(["a"] * 6), "returned an array [6] of <U1 for 6 examples; it must"),
        (ZeroDivisionError, "raised ZeroDivisionError: nothing to divide by (test_metric_plan.py:"),
    ],
)
def test_a_metric_that_fails_costs_its_own_column_alone(
    returned: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Odd, "returned", returned)
    plan, sets = planned(odd=Odd), {"forget": made_up_set()}
    values = [plan.values(sets) for _ in range(2)][-1]  # warns once alone
    assert values["odd_forget"] is None
    assert values["loss_forget"] == made_up_set().answer_loss.mean()
    (warning,) = drain()
    assert warning.startswith("`per_example` of metric Odd")
    assert message in warning


def test_a_summary_gives_numbers_of_its_own_columns() -> None:
    plan, model = planned(), EvaluatedModel({}, {"loss_forget": 1.0})
    with pytest.raises(PluginError, match="returns 'loss_forgotten', which `columns` does not"):
        computed(Twice(), MetricInputs(model))
    assert plan.values({"forget": made_up_set()})["loss_forget"] is not None
