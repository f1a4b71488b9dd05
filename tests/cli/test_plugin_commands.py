"""`unlearnbench methods check`: table, explanations, exit code and errors."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from unlearnbench.api import registry
from unlearnbench.testing import CHECKS

Run = Callable[..., tuple[int, str, str]]

BAD = '''\
"""A mean of means."""
from unlearnbench.api.method import Method
class Mean(Method):
    """L = mean_t log p_t, own work

    t  token
    """
    def loss(self, batch):
        return batch.forget.token_logprob.mean()
'''


def test_a_correct_method_passes_every_check(run: Run) -> None:
    code, out, err = run("methods", "check", "npo", "--set", "beta=0.5")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split() == ["check", "verdict", "what", "was", "seen"]
    assert [line.split()[0] for line in lines[1 : len(CHECKS) + 1]] == [c.name for c in CHECKS]
    assert "the loss is 2.77259" in out  # 2/β · log 2
    assert lines[-1].startswith("npo: no fault, ")


def test_the_method_that_the_readme_writes_passes(run: Run) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (block,) = re.findall(r"```python[^\n]*\n(.*?)```", readme, flags=re.DOTALL)
    Path("floored.py").write_text(block)
    code, out, err = run("methods", "check", "--plugin", "floored.py")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].startswith("floored: no fault, ")


def test_a_fault_is_explained_with_the_command_that_shows_it(run: Run) -> None:
    Path("mean.py").write_text(BAD)
    code, out, _ = run("methods", "check", "--plugin", "mean.py")
    assert code == 1
    explanation = out[out.index("\nmean: accumulation\n") :]
    for line in ("  what  ", "  seen  ", "  why it matters  ", "  look for  "):
        assert line in explanation
    assert "unlearnbench methods check mean --only accumulation --plugin mean.py" in explanation
    assert "`batch.forget.mean_tokens(values)`" in explanation
    code, again, _ = run(
        "methods", "check", "mean", "--only", "accumulation", "--plugin", "mean.py"
    )
    assert code == 1
    assert again.splitlines()[1].split()[:2] == ["accumulation", "fault"]


def test_all_methods_in_one_table(run: Run) -> None:
    code, out, err = run(
        "methods", "check", "--all", "--only", "docstring", "--only", "hyper-parameters"
    )
    assert code == 0
    header, *rows = out.splitlines()
    assert header.split() == ["method", "hyper-parameters", "docstring"]
    assert [row.split()[0] for row in rows[: len(registry.names("methods"))]] == list(
        registry.names("methods")
    )
    assert "checking npo" in err


def test_as_json(run: Run) -> None:
    _, out, _ = run("methods", "check", "npo", "--only", "reference", "--json")
    (result,) = json.loads(out)["npo"]
    assert (result["check"], result["verdict"]) == ("reference", "passed")
    assert {"claim", "why", "mend", "seen", "seconds"} <= result.keys()
