"""Rows that fill up a packed pass, so that few passes of a training differ in shape.

A GPU replays a recorded pass only for tensors of the same shapes. The tokens of a micro-batch are
almost never as many as those of another one. So rows whose tokens nothing reads are packed with the
others, until the number of tokens is one of few. Filler rows are rows of their own: no other token
sees them. Their gradients are exactly 0, because no loss reads them.
"""

from collections.abc import Sequence

from unlearnbench.models.token_row import Row

_TOKEN_STEPS = 8
"""Numbers of tokens between two powers of two. At most an eighth of the tokens is filled in."""
_WIDTH_STEPS = 2
"""Widths between two powers of two."""
_LEAST_TOKENS = 64
_LEAST_WIDTH = 16
"""Smallest steps: kernels compute as many tokens at once anyway."""


def filler_rows(rows: Sequence[Row]) -> list[Row]:
    """Return rows without scored tokens, whose number depends only on the sizes of the result.

    Each has at least one token, and no position beyond the longest row. They repeat the beginning
    of the longest row, because the states of its tokens are finite if those of the rows are.

    Args:
        rows: At least one row without masked tokens.

    Returns:
        The rows to pack behind `rows`. Empty if these are single tokens.
    """
    longest = max(rows, key=lambda row: len(row.ids))
    tokens = sum(len(row.ids) for row in rows)
    width = round_width(len(longest.ids))
    # Rows longer than the smallest width are longer than half of their own width.
    certain_length = width // 2 + 1 if width > _LEAST_WIDTH else len(longest.ids)
    if certain_length < 2:
        return []

    step = _step(tokens, _TOKEN_STEPS, _LEAST_TOKENS)
    # So many rows of this length take up a whole step, beside the one token that each has at least.
    row_count = -(-step // (certain_length - 1))
    missing = -(-(tokens + row_count) // step) * step - tokens
    shortest, with_one_more = divmod(missing, row_count)
    lengths = [shortest + 1] * with_one_more + [shortest] * (row_count - with_one_more)
    return [Row(longest.ids[:length], length) for length in lengths]


def round_width(longest: int) -> int:
    """Return the width of the attention of rows, of which the longest has `longest` tokens."""
    step = _step(longest, _WIDTH_STEPS, _LEAST_WIDTH)
    return -(-longest // step) * step


def _step(size: int, steps: int, least: int) -> int:
    """Return the distance of neighbouring sizes near `size`: a power of two."""
    power_of_two = 1 << (size.bit_length() - 1)
    return max(power_of_two // steps, least)
