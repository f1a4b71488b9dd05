"""An action follows the import of a module, whoever imports it."""

import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.base.import_hooks import after_import

NAME = "module_with_an_action"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a module that is not imported yet."""
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    path = tmp_path / f"{NAME}.py"
    path.write_text("value = 1\n", encoding="utf-8")
    yield path
    sys.modules.pop(NAME, None)
    assert sys.meta_path == finders


def test_what_imports_a_module_sees_the_effect_of_the_action(source: Path) -> None:
    modules: list[Any] = []

    def change(module: Any) -> None:
        modules.append(module)
        module.value += 1

    after_import(NAME, change)
    module = import_module(NAME)
    assert module.value == 2
    assert modules == [module]
    assert import_module(NAME).value == 2
    assert module.__file__ == str(source)


@pytest.mark.usefixtures("source")
def test_several_actions_follow_an_import() -> None:
    seen: list[str] = []
    after_import(NAME, lambda _: seen.append("first"))
    after_import(NAME, lambda _: seen.append("second"))
    import_module(NAME)
    assert sorted(seen) == ["first", "second"]


@pytest.mark.usefixtures("source")
def test_a_module_keeps_its_own_loader() -> None:
    after_import(NAME, lambda _: None)
    module = import_module(NAME)
    assert module.__spec__ is not None
    assert isinstance(module.__spec__.loader, SourceFileLoader)
    assert module.__loader__ is module.__spec__.loader


def test_an_action_waits_for_an_import_that_succeeds(source: Path) -> None:
    seen: list[Any] = []
    after_import(NAME, seen.append)
    source.write_text("raise ValueError('not yet')\n", encoding="utf-8")
    with pytest.raises(ValueError, match="not yet"):
        import_module(NAME)
    assert not seen
    source.write_text("value = 1  # longer, so that Python reads it again\n", encoding="utf-8")
    assert seen == [import_module(NAME)]


@pytest.mark.usefixtures("source")
def test_a_request_can_be_withdrawn() -> None:
    seen: list[Any] = []
    withdraw = after_import(NAME, seen.append)
    withdraw()
    import_module(NAME)
    withdraw()
    assert not seen


@pytest.mark.usefixtures("source")
def test_a_module_that_does_not_exist_is_still_missing() -> None:
    withdraw = after_import("module_that_does_not_exist", lambda _: None)
    with pytest.raises(ModuleNotFoundError):
        import_module("module_that_does_not_exist")
    withdraw()
