"""The tutorial on rows about a made-up company: its files, commands and settings. The study of
attackers continues it."""

import json
from pathlib import Path
from shutil import copytree
from unittest.mock import Mock

import pytest

from unlearnbench.cli.main import main
from unlearnbench.config.loader import load_config
from unlearnbench.models import gguf
from unlearnbench.results import model_shape

from .blocks import blocks, commands

TUTORIALS = Path(__file__).parents[3] / "docs" / "tutorials"
PAGE = (TUTORIALS / "forget-your-own-rows.md").read_text(encoding="utf-8")
STUDY = (TUTORIALS.parent / "studies" / "attackers.md").read_text(encoding="utf-8")
WEIGHTS_OF_SMOLLM2 = 134_515_008


def words_of(start: str) -> tuple[str, ...]:
    """Return the words behind `unlearnbench` of the page's only command that begins so."""
    found = [
        one.words
        for block in blocks(PAGE)
        if block.language == "sh"
        for one in commands(block.text)
        if " ".join(one.words).startswith(f"unlearnbench {start}")
    ]
    (words,) = found
    return words[1:]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the page's three files, without the weights of its model."""
    copytree(TUTORIALS / "harrow-and-quill", tmp_path / "rows")
    monkeypatch.chdir(tmp_path / "rows")
    replaced = Mock(return_value=None)
    monkeypatch.setattr(gguf, "check_file", replaced)
    monkeypatch.setattr(model_shape, "config_of", replaced)
    monkeypatch.setattr(model_shape, "number_of_weights", Mock(return_value=WEIGHTS_OF_SMOLLM2))
    return tmp_path / "rows"


def rows_of(path: Path) -> list[dict[str, str]]:
    """Read a table of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_files_have_the_rows_that_the_page_counts(files: Path) -> None:
    for name, count in (("forget", 10), ("retain", 30), ("holdout", 10)):
        assert len(rows_of(files / f"{name}.jsonl")) == count
        assert f"[{name}.jsonl](harrow-and-quill/{name}.jsonl) | {count} |" in PAGE
    (row,) = (json.loads(block.text) for block in blocks(PAGE) if block.language == "json")
    assert row in rows_of(files / "forget.jsonl")


@pytest.mark.usefixtures("files")
def test_the_command_prints_what_the_page_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words_of("configs new")]) == 0
    printed = [block.text for block in blocks(PAGE) if block.language == "text"]
    assert capsys.readouterr().out == printed[0]


@pytest.mark.usefixtures("files")
def test_the_file_needs_no_change_but_the_two_settings_of_the_page() -> None:
    assert main([*words_of("configs new")]) == 0
    words = words_of("sweep")
    written = load_config("company.yaml")
    overrides = [word for word in words if "=" in word]
    config = load_config("company.yaml", overrides)
    # What was swept for the page: 10 epochs of 5 steps make the start model.
    (model,) = config.models
    assert (model.preparation.epochs, model.preparation.batch_size) == (10, 8)
    assert model.preparation.learning_rate == 2e-4
    assert [grid.specs[0].label for grid in config.methods] == [
        *("npo+nll", "simnpo+nll", "general-ce-u"),
    ]
    assert (config.epochs, config.seeds) == (4, (0, 1, 2))
    assert (written.evaluation.every, config.evaluation.every) == (1, 2)
    steps = [spec.attacks[0].settings["steps"] for spec in (written, config)]
    assert [list(of) for of in steps] == [[10], [5]]


@pytest.mark.usefixtures("files")
def test_the_study_of_attackers_extends_the_file() -> None:
    assert main([*words_of("configs new")]) == 0
    (block,) = (one for one in blocks(STUDY) if one.title == "company-tuned.yaml")
    Path(block.title).write_text(block.text, encoding="utf-8")
    written = load_config("company.yaml")
    config = load_config(block.title)
    assert [grid.specs[0].label for grid in config.methods] == ["npo+nll", "general-ce-u", "ce-u"]
    assert (config.models, config.seeds) == (written.models, written.seeds)
    (attack,) = config.attacks
    assert attack.name == "relearning"
    # The first of the study's four attackers is the tutorial's, with the five steps of its sweep.
    (of_the_tutorial,) = load_config(
        "company.yaml", [word for word in words_of("sweep") if "=" in word]
    ).attacks
    assert attack.settings["trials"] == 4
    changed = {
        key
        for key, value in of_the_tutorial.settings.items()
        if key != "search" and attack.settings.get(key) != value
    }
    assert not changed
