"""Plug-ins that raise, leave, print or are no plug-ins: one message, exit code 2, clean output."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from unlearnbench.api import registry
from unlearnbench.api.method import Method, Needs, Sampling
from unlearnbench.api.plugin_code import LONGEST, plain_line, plugin_code
from unlearnbench.cli.main import main
from unlearnbench.errors import PluginError
from unlearnbench.results.records import read_records

METHOD = '''\
"""A method."""
{top}
import sys
from pydantic import Field
from unlearnbench import Method, Needs

class Odd(Method):
    """L = x"""
    needs = Needs(parts={{"forget"}})
    {field}

    def loss(self, batch):
        value = batch.forget.mean_tokens(batch.forget.token_logprob)
        {loss}
'''

CONFIG = """
name: small
data: {source: synthetic, authors: 4, questions_per_author: 3, pretraining_authors: 1}
models:
  - name: tiny
    base: tiny
    architecture:
      {vocabulary: 400, hidden_size: 32, layers: 1, heads: 2, intermediate_size: 32, context: 256}
    preparation:
      {epochs: 1, base_epochs: 1, optimizer: muon, learning_rate: 3.0e-3, batch_size: 16}
forget_fractions: [0.5]
methods: [odd]
learning_rates: [1.0e-4]
epochs: 1
training: {batch_size: 4}
evaluation: {rows: 4, max_length: 96}
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_files", {})

    def ran(*args: str) -> tuple[int, str, str]:
        code = main(args)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return ran


def plugin(*, top: str = "", field: str = "", loss: str = "return value") -> str:
    """Write `odd.py`; returns its name."""
    Path("odd.py").write_text(METHOD.format(top=top, field=field, loss=loss))
    return "odd.py"


@pytest.mark.parametrize(
    ("top", "field", "said"),
    [
        ("raise SystemExit(0)", "", "it called sys.exit(0), which plug-in code must not do (odd"),
        ("raise KeyboardInterrupt('now')", "", "KeyboardInterrupt: now (odd.py:2)"),
        ("1 / 0", "", "ZeroDivisionError: division by zero (odd.py:2)"),
        ("raise OSError('a\\n\\x1b[31mred\\x07\\u202e')", "", "OSError: a red (odd.py:2)"),
        ("import math; math.sqroot", "", "has no attribute 'sqroot'; did you mean 'sqrt'? (odd"),
        ("def", "", "SyntaxError: invalid syntax (odd.py:2)"),
        ("", "needs = Needs(parts={'forgett'})", "unknown part 'forgett'; did you mean 'forget'?"),
        ("", "retain: float = 1.0", "Odd.retain: a hyper-parameter cannot be called 'retain'"),
        ("", "method: str = 'x'", "Odd.method: a hyper-parameter cannot be called 'method'"),
        ("", "learning_rates: float = 1.0", "cannot be called 'learning_rates'"),
        ("", "learning_rate: float = 1.0", "cannot be called 'learning_rate'"),
    ],
)
def test_import_errors_are_one_line(run: Run, top: str, field: str, said: str) -> None:
    code, out, err = run("methods", "list", "--plugin", plugin(top=top, field=field))
    assert (code, out) == (2, "")
    assert err.startswith("plug-in 'odd' of odd.py (")
    assert "is broken: " in err
    assert said in err
    assert err.count("\n") == 1
    assert "\x1b" not in err


def test_ctrl_c_during_an_import_still_interrupts(run: Run) -> None:
    # A shell starts what runs in its background with SIGINT ignored; a terminal does not.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code, _, err = run(
            "methods", "list", "--plugin", plugin(top="import signal; signal.raise_signal(2)")
        )
        with pytest.raises(KeyboardInterrupt), plugin_code("it"):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (code, "interrupted" in err) == (130, True)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: "", "--plugin '': the path is empty"),
        (lambda: "folder", "--plugin folder is a folder"),
        (lambda: "loop/x.py", "--plugin loop/x.py cannot be read: "),
        (lambda: "empty.txt", "is not a Python file: its name must end in .py"),
        (lambda: "no.py", "plugin file no.py does not exist"),
        (lambda: "a\0b.py", "holds the control character U+0000"),
        (lambda: "x" * 400 + ".py", "has a part of 403 bytes; files and folders have names of 255"),
    ],
)
def test_invalid_plugin_paths_are_one_line(run: Run, make: Callable[[], str], said: str) -> None:
    Path("folder").mkdir()
    Path("loop").symlink_to("loop")
    Path("empty.txt").touch()
    code, out, err = run("methods", "list", "--plugin", make())
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


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


def test_unknown_method_error_names_plugin_option(run: Run) -> None:
    code, _, err = run("methods", "check", "bad-typo")
    assert code == 2
    assert "did you mean" not in err
    assert "one in a file of its own needs --plugin FILE" in err


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of prepared models, for all runs here."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ("pass", "`loss` of Odd returned None (is a `return` missing?); it must return a scalar"),
        ("return batch.forget.token_logprob", "returned a tensor of shape ["),
        ("return 0.5", "returned the float 0.5; it must return a scalar tensor"),
        ("return 7", "returned the int 7; it must return a scalar tensor"),
        ("return value.detach()", "returned a value without a gradient"),
        ("sys.exit(0)", "`loss` of Odd called sys.exit(0)"),
        ("raise KeyboardInterrupt", "`loss` of Odd raised KeyboardInterrupt (odd.py:"),
        ("raise ValueError('a\\n\\x1b[2Jb')", "`loss` of Odd raised ValueError: a b (odd.py:"),
    ],
)
def test_invalid_loss_ends_a_run_with_one_line(run: Run, cache: Path, loss: str, said: str) -> None:
    Path("small.yaml").write_text(CONFIG)
    code, out, err = run(
        *("run", "small.yaml", "--select", "0", "--plugin", plugin(loss=loss)),
        *("--set", f"cache={cache}"),
    )
    assert (code, out) == (2, ""), err
    last = err.rstrip("\n").splitlines()[-1]
    assert last.startswith("`loss` of Odd ")
    assert said in last
    assert "Traceback" not in err
    assert not [r for r in read_records(Path("runs/small")) if r.kind == "run"]


def test_errors_of_a_device_keep_their_type() -> None:
    for error in (RuntimeError("CUDA error: out of memory"), MemoryError()):
        with pytest.raises(type(error)), plugin_code("it"):
            raise error
    message = r"it raised RuntimeError: shapes \(test_plugin_code"
    with pytest.raises(PluginError, match=message), plugin_code("it"):
        raise RuntimeError("shapes")


def test_unprintable_errors_are_named() -> None:
    class OddError(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    message = r"it raised OddError \(test_plugin_code\.py:\d+\)"
    with pytest.raises(PluginError, match=message), plugin_code("it"):
        raise OddError


def test_control_characters_are_removed() -> None:
    assert plain_line("a\r\n\x1b[2J\x1b]0;title\x07b\u202ec") == "a b c"
    assert len(plain_line("x" * 10_000)) == LONGEST


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Needs(parts={"forgett"}), "unknown part 'forgett'; did you mean 'forget'? parts"),  # type: ignore[arg-type]
        (lambda: Needs({"forget"}, logprobs={"retian"}), r"Needs\(logprobs=…\): unknown part"),  # type: ignore[arg-type]
        (lambda: Needs({"forget"}, states={"retain"}), "a reference for the part 'retain', which"),
        (lambda: Needs({"forget"}, layers={0}), "0 is not a decoder layer"),
        (lambda: Needs({"forget"}, samples=Sampling(2)), "describes the part 'sample'"),
        (lambda: Sampling(0), r"Sampling\(count=0\): must be at least 1"),
        (lambda: Sampling(1, temperature=0), r"Sampling\(temperature=0\): must be above 0"),
    ],
)
def test_needs_are_validated_when_they_are_declared(make: Callable[[], object], said: str) -> None:
    with pytest.raises(PluginError, match=said.replace("?", r"\?")):
        make()
    assert Needs("forget").parts == {"forget"}  # type: ignore[arg-type]


def test_missing_needs_are_refused_with_the_class() -> None:
    with pytest.raises(PluginError, match=r"Odd\.needs must be a Needs of the class"):

        class Odd(Method):  # pyright: ignore[reportUnusedClass]
            needs = {"forget"}  # type: ignore[assignment]  # pyright: ignore  # noqa: RUF012
