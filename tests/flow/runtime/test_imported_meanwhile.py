"""A module that a thread imports while something else is computed."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

from unlearnbench.base.imported_meanwhile import imported_meanwhile

_MODULE = """
import threading
thread = threading.current_thread().name
"""


def test_the_module_is_there_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needed_soon.py").write_text(_MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with imported_meanwhile("needed_soon"):
        pass
    module = sys.modules.pop("needed_soon")
    assert module.thread == "import of needed_soon"


def test_an_error_of_the_import_comes_to_who_imports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module.py").write_text("1 / 0", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with imported_meanwhile("broken_module"):
        computed = 1 + 1
    assert computed == 2
    with pytest.raises(ZeroDivisionError):
        import_module("broken_module")


def test_an_error_of_what_is_computed_is_raised() -> None:
    with pytest.raises(KeyError), imported_meanwhile("json"):
        raise KeyError("computed")
