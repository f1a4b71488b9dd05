"""The inputs that a method declares: which forms authors may write, and what is stored."""

from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from unlearnbench import Needs
from unlearnbench.base.errors import PluginError

SETS = ("parts", "logprobs", "distributions", "states", "layers", "statistics", "scores")


@pytest.mark.parametrize("form", ["forget", ["forget"], ("forget",), {"forget"}])
def test_a_name_and_collections_of_names_are_stored_as_sets(form: Any) -> None:
    needs = Needs(form, statistics=form, logprobs=form, distributions=form, states=form)
    assert needs == Needs(
        parts=frozenset({"forget"}),
        logprobs=frozenset({"forget"}),
        distributions=frozenset({"forget"}),
        states=frozenset({"forget"}),
        statistics=frozenset({"forget"}),
    )
    assert all(type(getattr(needs, name)) is frozenset for name in SETS)


@pytest.mark.parametrize("form", [3, [3], {3}])
def test_a_layer_and_collections_of_layers_are_stored_as_sets(form: Any) -> None:
    assert Needs(parts={"forget"}, layers=form).layers == frozenset({3})


def test_arguments_have_the_order_of_the_fields() -> None:
    names = [item.name for item in fields(Needs)]
    values: list[Any] = [{"forget"}, {"forget"}, {"forget"}, {"forget"}, {2}, {"retain"}]
    needs = Needs(*values)
    assert [getattr(needs, name) for name in names[: len(values)]] == values


def test_needs_are_replaced_but_not_changed() -> None:
    needs = Needs(parts={"forget"}, layers={3})
    names: Any = ["retain"]
    assert replace(needs, parts=names) == Needs(parts={"retain"}, layers={3})
    with pytest.raises(FrozenInstanceError):
        needs.parts = frozenset()  # type: ignore[misc]


def test_a_reference_that_nothing_reads_is_refused() -> None:
    with pytest.raises(PluginError, match="'retain', which neither"):
        Needs(parts={"forget"}, logprobs={"retain"})
    with pytest.raises(PluginError, match="layers count from 1"):
        Needs(parts={"forget"}, layers={0, 1})
