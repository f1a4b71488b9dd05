"""The check of imports that CI runs first finds rings, and the project has none."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def size() -> ModuleType:
    """The script, which is not in a package."""
    spec = spec_from_file_location("size", ROOT / ".ci" / "size.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["size"] = module
    spec.loader.exec_module(module)
    return module


def test_modules_that_reach_each_other_are_a_ring(size: ModuleType) -> None:
    graph = {"a": ["b"], "b": ["c"], "c": ["b", "d"], "d": [], "e": ["f"], "f": ["g"], "g": ["e"]}
    assert sorted(size.rings(graph)) == [["b", "c"], ["e", "f", "g"]]


def test_imports_for_types_and_inside_functions_count(
    size: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "unlearnbench" / "room"
    package.mkdir(parents=True)
    (package / "first.py").write_text("def f():\n    from unlearnbench.room import second\n")
    (package / "second.py").write_text(
        "from typing import TYPE_CHECKING\n\n"
        "if TYPE_CHECKING:\n    from unlearnbench.room.first import f\n"
    )
    monkeypatch.setattr(size, "ROOT", tmp_path)
    files = [("room", package / name) for name in ("first.py", "second.py")]
    assert size.rings_of_rooms(files) == ["unlearnbench.room.first ↔ unlearnbench.room.second"]


def test_relative_imports_count(
    size: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "dashboards" / "figures"
    package.mkdir(parents=True)
    (package / "plot.py").write_text("from . import marks\n")
    (package / "marks.py").write_text("from ..figures.plot import draw\n")
    monkeypatch.setattr(size, "ROOT", tmp_path)
    files = [("report", package / name) for name in ("plot.py", "marks.py")]
    expected = "unlearnbench_dashboards.figures.marks ↔ unlearnbench_dashboards.figures.plot"
    assert size.rings_of_rooms(files) == [expected]


def test_no_room_of_the_project_has_a_ring(size: ModuleType) -> None:
    assert size.rings_of_rooms([*size.sources()]) == []
