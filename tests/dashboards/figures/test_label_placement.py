"""Placement of labels."""

from __future__ import annotations

import importlib
from typing import Any

labels: Any = importlib.import_module("unlearnbench_dashboards.figures.label_placement")


def test_labels_do_not_cover_each_other() -> None:
    names = [labels.Label(name, (0.5, -5.0 - i * 0.1), name, 1e-5) for i, name in enumerate("abcd")]
    placed = labels.place(names, (0.0, 1.0), (-10.0, 0.0))
    assert len({side for _, side in placed}) == 4


def test_a_label_without_room_has_no_side() -> None:
    names = [labels.Label("gradient", (0.5, -5.0), str(i), 1e-5) for i in range(30)]
    sides = [side for _, side in labels.place(names, (0.0, 1.0), (-10.0, 0.0))]
    assert None in sides
    assert len(set(sides) - {None}) >= 4


def test_a_label_at_the_right_edge_turns_inwards() -> None:
    label = labels.Label("gradient-difference", (0.99, -5.0), "x", 1e-5)
    ((_, side),) = labels.place([label], (0.0, 1.0), (-10.0, 0.0))
    assert side.endswith("left")
