"""Commands run in process, in a folder of their own."""

from pathlib import Path

import pytest

from ...factories.command_line import Run, commands_in_process

SMALL = """\
name: small
data: {authors: 10, questions_per_author: 2, pretraining_authors: 2}
models: [{name: tiny, base: tiny}]
forget_fractions: [0.1, 0.2]
methods: [ce-u, {method: npo, beta: [0.1, 0.5], retain: {term: nll, weight: 2.0}}]
learning_rates: [1.0e-5, 2.0e-5]
epochs: 2
"""


@pytest.fixture
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for whole tables and sentences; `test_text_table.py` has narrow ones."""
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def model_path(model_folder: Path) -> str:
    """The path of a model's folder, as it is typed."""
    return str(model_folder)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in an empty folder that holds `small.yaml`: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SMALL)

    return commands_in_process(capsys)
