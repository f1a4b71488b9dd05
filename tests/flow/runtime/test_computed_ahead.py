"""Values that are computed in a thread while the value before is in use."""

import threading
from collections.abc import Iterator

import pytest

from unlearnbench.base.computed_ahead import computed_ahead


def test_each_value_comes_once_and_the_next_is_computed_meanwhile() -> None:
    begun: list[int] = []
    may_begin = [threading.Event() for _ in range(4)]
    may_begin[0].set()

    def numbers() -> Iterator[int]:
        for number, event in enumerate(may_begin):
            assert event.wait(10), "nobody has taken the value before"
            begun.append(number)
            yield number

    values: list[int] = []
    for value in computed_ahead(numbers()):
        assert begun == [*range(value + 1)], "no more than one is computed in advance"
        values.append(value)
        if value < 3:
            may_begin[value + 1].set()
    assert values == [0, 1, 2, 3]


def test_the_first_value_is_computed_where_it_is_asked_for() -> None:
    def threads() -> Iterator[threading.Thread]:
        for _ in range(3):
            yield threading.current_thread()

    first, second, third = computed_ahead(threads())
    assert first is threading.current_thread()
    assert second is not first
    assert third is second


def test_there_may_be_no_value() -> None:
    assert list(computed_ahead([])) == []


def test_an_error_comes_in_place_of_its_value() -> None:
    def broken() -> Iterator[int]:
        yield 1
        yield 2
        raise ValueError("no third value")

    values = computed_ahead(broken())
    assert next(values) == 1
    assert next(values) == 2
    with pytest.raises(ValueError, match="no third value"):
        next(values)


def test_the_thread_ends_with_whoever_uses_the_values() -> None:
    before = threading.active_count()
    values = computed_ahead(iter(range(100)))
    assert next(values) == 0
    values.close()
    assert threading.active_count() == before
