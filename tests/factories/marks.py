"""Marks that tests of several rooms have in common."""

import itertools
from collections.abc import Callable, Iterable
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


def some_in_make_test(cases: Iterable[Any], every: int) -> list[Any]:
    """Return cases as parameters, of which `make test` has each `every`-th from the first on.

    The others are in `make test-long`. A case of several arguments is a tuple of them.
    """
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if i % every == 0 else pytest.mark.long,
        )
        for i, case in enumerate(cases)
    ]


def diagonals_in_make_test(every: int, *columns: Iterable[Any]) -> list[Any]:
    """Return all combinations of arguments, of which `make test` has each `every`-th diagonal.

    So it has each value of each argument, with different values of the others.
    """
    numbered = [list(enumerate(values)) for values in columns]
    return [
        pytest.param(
            *(value for _, value in cell),
            marks=() if sum(i for i, _ in cell) % every == 0 else pytest.mark.long,
        )
        for cell in itertools.product(*numbered)
    ]


def with_mlflow(test: Test) -> Test:
    """Mark one test that writes to a store of MLflow."""
    for mark in WITH_MLFLOW:
        test = mark(test)
    return test
