"""Marks that tests of several rooms have in common."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., Any])

WITH_MLFLOW = (
    # MLflow 3.17 asks SQLAlchemy 2.1 for a loader that the latter is about to drop.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
    # Its engine leaves connections to the garbage collector, which may come at any test.
    pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning"),
)
"""Marks of tests that write to a store of MLflow, whose libraries warn."""


def with_mlflow(test: Test) -> Test:
    """Mark one test that writes to a store of MLflow."""
    for mark in WITH_MLFLOW:
        test = mark(test)
    return test
