"""Observations that a metric reads and that the records of a sweep lack."""

import subprocess
import sys
from pathlib import Path

READS_TWO = '''
import numpy as np
from unlearnbench.api.metric import Metric

class Two(Metric):
    """Own work."""

    label = "Two"
    reads = frozenset({"start_loss", "grad_norm"})
    roles = frozenset({"forget"})

    def per_example(self, seen):
        return np.asarray(seen.start_loss)
'''
SCRIPT = """
from unlearnbench.analysis.results import Results
from unlearnbench.api import registry
from tests.numbers.analysis.conftest import pointed

registry.register_file("two.py")
found = Results.of(
    [pointed("a", [(0.5, -3.0)])], name="", config={"evaluation": {"metrics": {"two": {}}}}
)
print(*found.unobserved(), sep="\\n")
"""


def test_they_are_named_in_the_same_order_in_every_process(tmp_path: Path) -> None:
    """The order of a set of texts follows from the seed of hashes, which each process draws."""
    (tmp_path / "two.py").write_text(READS_TWO, encoding="utf-8")
    repository = Path(__file__).parents[3]
    lines: set[str] = set()
    for seed in ("1", "2"):  # the orders that they give differ
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            cwd=tmp_path,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(repository), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        lines.add(done.stdout)
    (line,) = lines
    assert "which lack grad_norm, start_loss; to make it" in line
