"""A single run, an evaluation and a bench need neither Ray nor MLflow nor plotly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .test_running import config_of

REFUSES = """
import sys
from importlib.machinery import PathFinder

find = PathFinder.find_spec
absent = ("ray", "mlflow", "plotly", "datasets")
PathFinder.find_spec = staticmethod(
    lambda name, path=None, target=None: (
        None if name.split(".")[0] in absent else find(name, path, target)
    )
)
import unlearnbench.training
from unlearnbench.bench import models
from unlearnbench.cli import main

models.ARCHITECTURES["tiny"] = models.ARCHITECTURES["quick"]
config, folder = sys.argv[1:]
assert main(["plan", config]) == 0
assert main(["run", config, "--select", "0"]) == 0
from pathlib import Path
(full,) = Path(folder).glob("cache/models/full-*")
assert main(["evaluate", str(full), "--data", "synthetic", "--rows", "2"]) == 0
bench = ["bench", "step", "--batch-size", "2", "--repeats", "1", "--methods", "ce-u"]
assert main(bench) == 0
print("all done")
"""

CONFIG = """
name: small
output: {output}
data: {{authors: 4, questions_per_author: 3, pretraining_authors: 1}}
models:
  - name: tiny
    base: tiny
    architecture: {architecture}
    preparation: {{epochs: 1, base_epochs: 1, optimizer: muon, learning_rate: 3.0e-3}}
forget_fractions: [0.5]
methods: [ce-u]
learning_rates: [1.0e-3]
epochs: 1
evaluation: {{rows: 4, max_length: 96}}
"""


@pytest.mark.slow
def test_a_machine_with_torch_and_transformers_alone_runs_evaluates_and_measures(
    tmp_path: Path,
) -> None:
    """One process for all four commands, since starting one is most of the time."""
    (model,) = config_of(tmp_path).models
    config, output = tmp_path / "small.yaml", tmp_path / "runs"
    shape = json.dumps(model.architecture.model_dump())
    config.write_text(CONFIG.format(output=output, architecture=shape))
    command = [sys.executable, "-c", REFUSES, str(config), str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "all done" in done.stdout
    found = (output / "small" / "records").glob("[!.]*/record.json")
    assert "run" in {json.loads(path.read_text())["kind"] for path in found}
