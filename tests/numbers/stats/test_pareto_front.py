"""The Pareto front and the hypervolume, against values worked by hand and their definitions."""

import random

import pytest

from unlearnbench.stats.pareto_front import hypervolume, pareto_front


@pytest.mark.parametrize(
    ("points", "front"),
    [
        ([], ()),
        ([(1.0, 1.0)], (0,)),
        # (2, 2) beats (1, 1); neither of (2, 2) and (3, 1) beats the other.
        ([(1.0, 1.0), (2.0, 2.0), (3.0, 1.0)], (1, 2)),
        # Same first coordinate: only the higher stands.
        ([(1.0, 1.0), (1.0, 2.0)], (1,)),
        # Same second coordinate: only the one further right stands.
        ([(1.0, 1.0), (2.0, 1.0)], (1,)),
        # Equal points stand together.
        ([(1.0, 1.0), (1.0, 1.0), (0.0, 0.0)], (0, 1)),
        ([(0.0, 3.0), (1.0, 2.0), (0.5, 1.0), (2.0, 0.0)], (0, 1, 3)),
    ],
)
def test_the_front_by_hand(points: list[tuple[float, float]], front: tuple[int, ...]) -> None:
    assert pareto_front(points) == front


def test_the_front_equals_its_definition() -> None:
    rng = random.Random(3)
    points = [(float(rng.randrange(9)), float(rng.randrange(9))) for _ in range(60)]
    beaten = {
        i
        for i, (x, y) in enumerate(points)
        if any(u >= x and v >= y and (u, v) != (x, y) for u, v in points)
    }
    assert set(pareto_front(points)) == set(range(60)) - beaten


@pytest.mark.parametrize(
    ("points", "area"),
    [
        ([], 0.0),
        ([(0.5, -4.0)], 0.5 * 6),
        ([(0.5, -4.0), (0.5, -4.0), (0.4, -5.0)], 0.5 * 6),  # twice, and beaten
        ([(0.5, -8.0), (0.2, -4.0)], 0.5 * 2 + 0.2 * 4),
        ([(0.2, -4.0), (0.3, -6.0), (0.5, -8.0)], 0.5 * 2 + 0.3 * 2 + 0.2 * 2),
        ([(0.5, -10.0), (0.0, 0.0), (-1.0, -1.0), (0.4, -12.0)], 0.0),  # none above in both
    ],
)
def test_the_area_over_a_corner(points: list[tuple[float, float]], area: float) -> None:
    assert hypervolume(points, (0.0, -10.0)) == pytest.approx(area)


def test_the_area_equals_a_count_of_cells() -> None:
    rng = random.Random(5)
    points = [(float(rng.randrange(12)), float(rng.randrange(12))) for _ in range(20)]
    cells = {(x, y) for u, v in points for x in range(2, int(u)) for y in range(3, int(v))}
    assert hypervolume(points, (2.0, 3.0)) == len(cells) > 0
