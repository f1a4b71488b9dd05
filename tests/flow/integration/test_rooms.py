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


FOR_TYPES = (
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from unlearnbench.room.a import f\n"
)


@pytest.mark.parametrize(
    ("folder", "first", "second", "ring"),
    [
        (
            "unlearnbench/room",
            "def f():\n    from unlearnbench.room import b\n",
            FOR_TYPES,
            "unlearnbench.room.a ↔ unlearnbench.room.b",
        ),
        (
            "dashboards/figures",
            "from . import b\n",
            "from ..figures.a import draw\n",
            "unlearnbench_dashboards.figures.a ↔ unlearnbench_dashboards.figures.b",
        ),
    ],
    ids=["for types and inside a function", "relative"],
)
def test_every_form_of_import_counts(
    folder: str,
    first: str,
    second: str,
    ring: str,
    size: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = tmp_path / folder
    package.mkdir(parents=True)
    (package / "a.py").write_text(first)
    (package / "b.py").write_text(second)
    monkeypatch.setattr(size, "ROOT", tmp_path)
    files = [("room", package / name) for name in ("a.py", "b.py")]
    assert size.rings_of_rooms(files) == [ring]


def test_no_room_of_the_project_has_a_ring(size: ModuleType) -> None:
    assert size.rings_of_rooms([*size.sources()]) == []
