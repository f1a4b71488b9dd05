"""The kit for a GPU machine: its parts, and the commands of its calls."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.cli.main import root_command

FILE = Path(__file__).parents[2] / ".ci/gpu_kit.py"


@pytest.fixture(scope="module")
def kit() -> Any:
    spec = importlib.util.spec_from_file_location("gpu_kit", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_parts_are_joined_as_they_come_and_a_damaged_one_is_refused(
    kit: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, parts, joined = (tmp_path / name for name in ("made", "parts", "joined"))
    (made / "folder").mkdir(parents=True)
    parts.mkdir()
    for name, size in (("empty", 0), ("folder/small", 10), ("large", 50_000)):
        (made / name).write_bytes(bytes(i % 251 for i in range(size)))
    hashes = kit.pack(made, tmp_path, 8192)
    assert len(hashes) > 5
    manifest = {"part_size": 8192, "parts": hashes}
    (parts / "manifest.json").write_text(json.dumps(manifest))
    for name in hashes:
        (parts / name).write_bytes(b"cut short")
        with pytest.raises(SystemExit, match=f"{name} is damaged"):
            kit.join(parts, joined)
        shutil.move(tmp_path / name, parts / name)
        kit.join(parts, joined)
        (parts / name).unlink()
        assert (joined / "folder/small").is_file()
        assert name > "part-04" or not (joined / "large").exists()
    assert capsys.readouterr().out.endswith("is whole\n")
    for path in (p for p in made.rglob("*") if p.is_file()):
        assert (joined / path.relative_to(made)).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("tiny", [False, True])
def test_every_call_has_commands_that_there_are(kit: Any, tiny: bool, tmp_path: Path) -> None:
    known = root_command().commands
    for number in kit.CALLS:
        for module, first, *_ in kit.commands(number, tmp_path, tiny, tmp_path, 0):
            if module.startswith("tests."):
                assert (FILE.parents[1] / module.replace(".", "/")).with_suffix(".py").is_file()
            elif module == "unlearnbench":
                assert first in known
