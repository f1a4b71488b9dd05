"""Figures as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from unlearnbench.report.figures import pareto, save
from unlearnbench.results.finalize import table_of

if TYPE_CHECKING:
    from ..conftest import Fabric

kaleido: Any = pytest.importorskip("kaleido", reason="needs the extra `figures`")


@pytest.fixture
def figure(fabric: Fabric) -> Any:
    return pareto(table_of([fabric.reference("fine-tuned"), fabric.run()]).rows)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The kopts argument")  # a running server has its own
@pytest.mark.usefixtures("chromium")
def test_a_file_of_each_format(figure: Any, tmp_path: Path) -> None:
    kaleido.start_sync_server(silence_warnings=True)  # one browser for all files
    try:
        for name, start in (("x.svg", b"<svg"), ("x.png", b"\x89PNG"), ("x.PDF", b"%PDF")):
            save(figure, tmp_path / name)
            assert (tmp_path / name).read_bytes().startswith(start)
    finally:
        kaleido.stop_sync_server(silence_warnings=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.PDF", "x.png", "x.svg"]
