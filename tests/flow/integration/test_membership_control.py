"""The control of membership inference, through the commands that print its warning.

One start model has learned its retain rows by heart. The same model stands for one that was trained
on other rows, where the benchmark draws other authors.
"""

from pathlib import Path

import pytest

from unlearnbench.cli.main import main
from unlearnbench.results.records import read_records

CONFIG = """
name: {name}
data: {{authors: 10, questions_per_author: 2, pretraining_authors: 2, seed: {seed}}}
models:
  - {model}
forget_fractions: [0.2]
methods: [gradient-ascent]
learning_rates: [1.0e-3]
epochs: 1
evaluation: {{max_length: 96, rows: 8}}
training: {{batch_size: 4}}
tracking: {{enabled: false}}
"""
LEARNS = """\
name: tiny
    base: tiny
    architecture: {vocabulary: 300, hidden_size: 32, layers: 1, heads: 2, intermediate_size: 32}
    preparation: {epochs: 40, base_epochs: 1, batch_size: 8, rehearse_facts: false}"""
WARNING = "cannot tell retain rows from holdout rows (AUC below 0.6)"


def test_a_start_model_that_has_not_seen_the_retain_rows_is_named_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def warnings(name: str, seed: int, model: str) -> list[str]:
        """Warnings of a run, of its report, and of `score` on its file."""
        Path(f"{name}.yaml").write_text(CONFIG.format(name=name, seed=seed, model=model))
        folder = f"runs/{name}"
        found: list[str] = []
        capsys.readouterr()
        for command in (["run", f"{name}.yaml", "--select", "0"], ["report", folder]):
            assert main(command) == 0
            found += capsys.readouterr().err.splitlines()
        (own,) = Path(folder, "records").glob("*/epoch-1.safetensors")
        (start,) = (r for r in read_records(folder) if r.kind == "fine-tuned")
        place = Path(folder, "records", start.place, "epoch-0.safetensors")
        assert main(["score", str(own), "--start", str(place)]) == 0
        found += capsys.readouterr().err.splitlines()
        return [line for line in found if WARNING in line]

    assert warnings("seen", 0, LEARNS) == []
    (full,) = Path("runs/cache/models").glob("full-*")
    (retain,) = Path("runs/cache/models").glob("retain80-*")
    learned = f"{{name: tiny, base: {full}, fine_tuned: {full}, retain: {{retain80: {retain}}}}}"
    of_run, of_report, of_score = warnings("unseen", 1, learned)
    assert "tiny, forget 0.2: in the start model, mia_loss (0." in of_run
    assert of_report in of_run
    assert of_score.startswith("warning: in the start model, mia_loss (0.")
