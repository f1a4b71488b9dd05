"""Commands run in process, in a folder of their own."""

from collections.abc import Callable
from pathlib import Path

import pytest

from unlearnbench.cli.main import main

Run = Callable[..., tuple[int, str, str]]

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
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in an empty folder that holds `small.yaml`: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SMALL)

    def ran(*args: str) -> tuple[int, str, str]:
        code = main(args)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return ran
