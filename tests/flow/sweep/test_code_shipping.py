"""Workers run the code of the driver."""

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from unlearnbench.api import registry
from unlearnbench.base.provenance import versions
from unlearnbench.config.loader import load_config
from unlearnbench.config.schema import SweepConfig
from unlearnbench.sweep.code_shipping import WorkerContext


@pytest.fixture
def config() -> SweepConfig:
    return load_config("quickstart", ["methods=[npo]"])


ACTIVATES = """
import pickle, sys
from pathlib import Path
from unlearnbench.api import registry
from unlearnbench.base.errors import UnlearnbenchError
outdated, context = pickle.loads(Path(sys.argv[1]).read_bytes())
try:
    outdated.activate()
except UnlearnbenchError as error:
    print(error)
for _ in range(2):
    context.activate()
print(Path.cwd(), registry.file_digest("my-loss"), registry.load_method("my-loss")().label)
data = context.config.data
print(data.rows, type(data) is registry.load("benchmarks", "my-rows"))
"""

PLUGIN = """
from typing import ClassVar
from unlearnbench.api.method import LossBatch, Method, Needs
class Mine(Method):
    "L = cross-entropy."
    needs: ClassVar[Needs] = Needs(parts=frozenset({"forget"}))
    label: ClassVar[str] = "mine"
    def loss(self, batch: LossBatch):
        return batch.forget.cross_entropy().sum()
"""

BENCHMARK = """
from unlearnbench.api import Benchmark, Headline, HeadlineMetric
class Rows(Benchmark):
    roles = {"retain": "retain", "forget": "forget"}
    headline = Headline(HeadlineMetric("a", "A", "A"), HeadlineMetric("b", "B", "B"))
    rows: int = 3
    def metrics(self, profile):
        return ()
    def load(self, fractions):
        raise NotImplementedError
"""


@pytest.mark.long
def test_a_worker_gets_plugin_files_that_only_the_driver_has_and_refuses_other_versions(
    tmp_path: Path, config: SweepConfig
) -> None:
    file = tmp_path / "my_rows.py"
    file.write_text(BENCHMARK)
    rows = registry.load("benchmarks", registry.register_file(file))
    file.unlink()
    context = WorkerContext(
        config=config.model_copy(update={"data": rows(rows=5)}),
        folder=tmp_path,
        working_folder=tmp_path,
        node="",
        plugins=(
            *registry.plugin_files(),
            (tmp_path / "nowhere" / "my_loss.py", (("my_loss.py", PLUGIN.encode()),)),
        ),
        versions=tuple(versions().items()),
        git={"commit": "abc"},
    )
    outdated = replace(context, versions=(*context.versions[:-1], ("ray", "9.9")))
    file = tmp_path / "contexts"
    file.write_bytes(pickle.dumps((outdated, context)))
    command = [sys.executable, "-c", ACTIVATES, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *refusal, last, data = done.stdout.splitlines()
    assert f"ray {versions()['ray']} there, 9.9 here" in "\n".join(refusal)
    folder, digest, label = last.split()
    assert data == "5 True", "unpickled before the context is active, and of the same class"
    assert (folder, len(digest), label) == (str(tmp_path), 16, "mine")
