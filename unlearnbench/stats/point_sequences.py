"""Sequences of points in a cube, from which a search draws its settings.

A point has a *share* from 0 to 1 for each axis. The same command has the same points anywhere:
draws use only `random.Random.random`, whose sequence is the same in all versions of Python, and
Sobol's sequence without scrambling, which is the same in all versions of SciPy.
"""

import random
from collections.abc import Iterator
from typing import Literal

PointSequence = Literal["sobol", "recurrence"]
"""Points of `search: {kind: quasi-random}` in a space of two axes or more.

`recurrence`: an additive recurrence by powers of the root of x^(d+1) = x + 1 for d axes (Roberts
2018), in sweeps that an earlier version began. Its powers may lie near fractions of small
denominators. For example, one of three axes took three values in six trials.
"""

_BITS = 30
"""Binary digits of Sobol's points in SciPy."""
_CHUNK = 64
"""Points that are computed together. SciPy warns of numbers that are no power of two."""


def independent_points(axes: int, source: random.Random) -> Iterator[list[float]]:
    """Yield independent uniform points in [0, 1)^axes."""
    while True:
        yield [source.random() for _ in range(axes)]


def even_points(sequence: PointSequence, axes: int, source: random.Random) -> Iterator[list[float]]:
    """Return points that fill [0, 1)^axes evenly, from a random start.

    On one axis, points are always a recurrence. It is by the golden ratio there, and even.
    """
    if sequence == "sobol" and axes > 1:
        return _sobol(axes, source)
    return _recurrence(axes, source)


def _sobol(axes: int, source: random.Random) -> Iterator[list[float]]:
    """Yield Sobol's points in [0, 1)^axes, with a random digital shift.

    The directions are those of Joe and Kuo (2008). Of the first 2^k points, each axis has one point
    in each of 2^k equal intervals. A digital shift (XOR of binary digits) keeps this property, but
    an addition modulo 1 would not.
    """
    from scipy.stats.qmc import Sobol  # it takes a second to import

    size = 2**_BITS
    shifts = [int(source.random() * size) for _ in range(axes)]
    points = Sobol(axes, scramble=False, bits=_BITS)
    while True:
        for point in points.random(_CHUNK):
            pairs = zip(point, shifts, strict=True)
            yield [(int(share * size) ^ shift) / size for share, shift in pairs]


def _recurrence(axes: int, source: random.Random) -> Iterator[list[float]]:
    """Yield an additive recurrence in [0, 1)^axes from a random start, see `PointSequence`."""
    shares = [source.random() for _ in range(axes)]
    # The fixed point of x = (1 + x)^(1/(d+1)) is the root. 64 iterations reach all its digits.
    root = 2.0
    for _ in range(64):
        root = (1 + root) ** (1 / (axes + 1))
    while True:
        yield list(shares)
        for i, share in enumerate(shares):
            shares[i] = (share + root ** -(i + 1)) % 1
