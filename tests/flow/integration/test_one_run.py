"""A single run and an evaluation need neither Ray nor MLflow nor plotly."""

import json
from pathlib import Path

import pytest

from ...forked import start, wait
from ..small_run import config_of

REFUSES = """
import os, sys
from importlib.machinery import PathFinder
from pathlib import Path

find = PathFinder.find_spec
absent = ("ray", "mlflow", "plotly", "datasets")
assert not {*absent} & {*sys.modules}, "loaded before it is refused"
PathFinder.find_spec = staticmethod(
    lambda name, path=None, target=None: (
        None if name.split(".")[0] in absent else find(name, path, target)
    )
)
import unlearnbench.training.trainer
from unlearnbench.cli.main import main

config, folder = sys.argv[1:]
os.chdir(Path(config).parent)
assert main(["plan", config]) == 0
assert main(["run", config, "--select", "0"]) == 0
(full,) = Path(folder).glob("cache/models/full-*")
assert main(["evaluate", str(full), "--data", "synthetic", "--rows", "2"]) == 0
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
@pytest.mark.long
def test_a_machine_with_torch_and_transformers_alone_runs_and_evaluates(tmp_path: Path) -> None:
    """One process for all three commands: to start one takes seconds."""
    (model,) = config_of(tmp_path).models
    config, output = tmp_path / "small.yaml", tmp_path / "runs"
    shape = json.dumps(model.architecture.model_dump())
    config.write_text(CONFIG.format(output=output, architecture=shape))
    printed = tmp_path / "printed"
    ended = wait([start(REFUSES, [str(config), str(output)], output=printed)])
    assert ended == [0], printed.read_text()
    assert "all done" in printed.read_text()
    found = (output / "small" / "records").glob("[!.]*/record.json")
    assert "run" in {json.loads(path.read_text())["kind"] for path in found}
