"""Filler rows make the sizes of packed passes few, and keep rows and positions valid."""

from __future__ import annotations

import random
from itertools import pairwise

from unlearnbench.models.filler_rows import filler_rows, round_width
from unlearnbench.models.token_row import Row


def rows_of(lengths: list[int]) -> list[Row]:
    return [Row(tuple(range(100 * index, 100 * index + n)), 1) for index, n in enumerate(lengths)]


def drawn(number: random.Random, longest: int) -> list[Row]:
    return rows_of([number.randint(2, longest) for _ in range(number.randint(1, 64))])


def test_filler_rows_are_beginnings_of_the_longest_row_without_scored_tokens() -> None:
    number = random.Random(1)
    for _ in range(2000):
        rows = drawn(number, number.randint(2, 400))
        longest = max(rows, key=lambda row: len(row.ids))
        fillers = filler_rows(rows)
        assert fillers
        for filler in fillers:
            assert 1 <= len(filler.ids) <= len(longest.ids)
            assert filler.ids == longest.ids[: len(filler.ids)]
            assert filler.scored == 0


def test_numbers_of_tokens_are_few_and_near() -> None:
    number = random.Random(2)
    sizes: set[int] = set()
    for _ in range(2000):
        rows = drawn(number, number.randint(60, 120))
        tokens = sum(len(row.ids) for row in rows)
        filled = tokens + sum(len(row.ids) for row in filler_rows(rows))
        sizes.add(filled)
        assert filled % 64 == 0
        # A step is at most an eighth of the tokens, and a sixty-fourth of a row each comes on top.
        assert tokens < filled <= max(1.27 * tokens, tokens + 128)
    assert len(sizes) < 50


def test_micro_batches_of_one_benchmark_have_few_shapes() -> None:
    """32 forget rows and 32 retain rows of TOFU's lengths, over 62 steps."""
    number = random.Random(3)
    shapes: set[tuple[int, int, int]] = set()
    for _ in range(62):
        rows = rows_of([round(number.gauss(62, 14)) for _ in range(64)])
        filled = [*rows, *filler_rows(rows)]
        tokens = sum(len(row.ids) for row in filled)
        shapes.add((tokens, len(filled), round_width(max(len(row.ids) for row in rows))))
    assert len(shapes) <= 6


def test_widths_grow_in_two_steps_from_a_power_of_two_to_the_next() -> None:
    widths = sorted({round_width(longest) for longest in range(1, 513)})
    assert widths == [16, 32, 48, 64, 96, 128, 192, 256, 384, 512]
    assert all(round_width(longest) >= longest for longest in range(1, 513))
    # So the longest row is longer than half of the width, which `filler_rows` relies on.
    assert all(2 * low + 2 > high for low, high in pairwise(widths))


def test_single_tokens_are_not_filled() -> None:
    assert filler_rows([Row((5,), 1)]) == []
