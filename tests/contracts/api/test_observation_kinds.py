"""An observation is declared once, and each place that has to know of it does."""

from dataclasses import MISSING, fields
from pathlib import Path
from typing import get_args

import pytest

from tests.oracle.read import SetObservations
from unlearnbench.api.metric import EXTRA, OBSERVATIONS, Reads
from unlearnbench.api.observations import SetEvaluation
from unlearnbench.evaluation.made_up_sets import made_up_set
from unlearnbench.testing.extreme_sets import hopeless_set, perfect_set

RECORDS = Path(__file__).parents[3] / "docs" / "reference" / "records.md"


def test_each_name_that_a_metric_may_read_is_declared() -> None:
    assert set(OBSERVATIONS) == set(get_args(Reads))


@pytest.mark.parametrize("name", sorted(EXTRA))
def test_an_observation_that_is_made_on_request_has_its_places(name: str) -> None:
    """Whoever adds one finds here what is left to do."""
    default_of = {field.name: field.default for field in fields(SetEvaluation)}
    assert default_of.get(name, MISSING) is None, "a field of SetEvaluation, by default None"
    assert getattr(made_up_set(), name) is not None, "in evaluation/made_up_sets.py"
    assert getattr(perfect_set(), name) is not None, "in testing/extreme_sets.py"
    assert getattr(hopeless_set(), name) is not None, "in testing/extreme_sets.py"
    assert f"`{name}`" in RECORDS.read_text(encoding="utf-8"), "in docs/reference/records.md"
    oracle = {field.name for field in fields(SetObservations)}
    assert name in oracle, "in tests/oracle/read.py, where the oracle reads it by itself"
