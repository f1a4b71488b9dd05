"""Plug-ins that raise, leave, print or are no plug-ins: one message, exit code 2, clean output."""

import json
from pathlib import Path

import pytest

from unlearnbench.api import registry
from unlearnbench.api.plugin_code import plugin_code
from unlearnbench.base.errors import PluginError

from ...factories.command_line import Run, commands_in_process

METHOD = '''\
"""A method."""
{top}
import sys
from unlearnbench import Method, Needs

class Odd(Method):
    """L = x"""
    needs = Needs(parts={{"forget"}})

    def loss(self, batch):
        value = batch.forget.mean_tokens(batch.forget.token_logprob)
        {loss}
'''


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_files", {})

    return commands_in_process(capsys)


def plugin(*, top: str = "", loss: str = "return value") -> str:
    """Write `odd.py`; returns its name."""
    Path("odd.py").write_text(METHOD.format(top=top, loss=loss))
    return "odd.py"


def test_prints_of_a_plugin_do_not_corrupt_json(run: Run) -> None:
    file = plugin(top="print('hello from the plug-in')", loss="print('loss')\n        return value")
    code, out, err = run("methods", "list", "--json", "--plugin", file)
    assert code == 0
    assert "odd" in {row["name"] for row in json.loads(out)}
    assert err.count("hello from the plug-in") == 1
    code, out, err = run("methods", "check", "odd", "--json", "--only", "order")
    assert code == 0
    assert json.loads(out)["odd"][0]["verdict"] == "passed"
    assert "loss" in err


def test_errors_of_a_device_keep_their_type() -> None:
    for error in (RuntimeError("CUDA error: out of memory"), MemoryError()):
        with pytest.raises(type(error)), plugin_code("it"):
            raise error
    message = r"it raised RuntimeError: shapes \(test_plugin_code"
    with pytest.raises(PluginError, match=message), plugin_code("it"):
        raise RuntimeError("shapes")
