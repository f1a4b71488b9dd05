"""Help, errors and exit codes of the command line; user errors are short and write nothing."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import version

import pytest

from unlearnbench.cli.command import DOCUMENTATION
from unlearnbench.cli.main import root_command

from ...factories.command_line import Run


def test_help_lists_every_command_with_examples(run: Run) -> None:
    code, out, _ = run()
    assert code == 0
    assert out == run("--help")[1] == run("-h")[1]
    assert out.splitlines()[-2:] == [f"  {line}" for line in DOCUMENTATION.splitlines()]
    for command in root_command().commands:
        assert re.search(rf"^  {command}  +[A-Z]", out, flags=re.MULTILINE), command
    assert "unlearnbench sweep my.yaml --set epochs=10" in out
    code, out, _ = run("sweep", "--help")
    assert code == 0
    assert "--set models.0.base=./my-model" in out
    assert run("--version")[:2] == (0, f"{version('unlearnbench')}\n")


def test_help_of_every_command_fits_80_columns_and_explains_options_with_an_example(
    run: Run,
) -> None:
    def check(command: object, *words: str) -> None:
        code, out, _ = run(*words, "--help")
        assert code == 0
        assert out.startswith("Usage: unlearnbench")
        assert max(map(len, out.splitlines())) <= 80, words
        below = getattr(command, "commands", {})
        name = " ".join(("unlearnbench", *words))
        assert below or re.search(rf"(?m)^ +{name}\b", out), f"{name} has no example"
        for name, one in below.items():
            check(one, *words, name)
        for param in [] if below else getattr(command, "params", []):
            assert param.help or param.metavar in ("NAME", "A", "B"), (words, param.name)

    check(root_command())


def test_help_imports_no_heavy_package() -> None:
    code = (
        "import sys; from unlearnbench.cli.main import main\n"
        "main(['sweep', '--help']); main(['--help'])\n"
        "sys.exit(' '.join({'torch', 'transformers', 'ray', 'mlflow', 'numpy', 'plotly', 'scipy', "
        "'rich', 'datasets', 'accelerate', 'unlearnbench.config.schema'} & {*sys.modules}) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_reads_records_imports_no_torch() -> None:
    """Which takes seconds, for commands that take less."""
    code = (
        "import sys, unlearnbench.analysis.compare, unlearnbench.report.report\n"
        "from unlearnbench.api import registry; registry.load('dashboards', 'page')\n"
        "sys.exit(' '.join({'torch', 'transformers', 'ray', 'mlflow'} & {*sys.modules}) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_options_with_several_values_are_repeated(
    parse_command: Callable[[list[str]], dict[str, object]],
) -> None:
    words = ["figures", "trajectories", "runs/x", "--out", "x.svg"]
    assert parse_command([*words, "--metrics", "a", "--metrics=b"])["metrics"] == ["a", "b"]
    options = parse_command(["plan", "--set", "a=1", "x.yaml", "--set=b=-1", "--flops", "1e9"])
    assert (options["config"], options["overrides"], options["flops"]) == (
        "x.yaml", ["a=1", "b=-1"], 1e9,
    )  # fmt: skip


def test_a_closed_pipe_is_not_an_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "unlearnbench.cli.main", "configs", "show", "quickstart"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_what_no_check_has_foreseen_is_one_line_with_its_place(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object, error: BaseException) -> int:
        raise error

    for error, message in (
        (OSError(28, "No space left on device", "a/b"), "a/b: No space left on device"),
        (RuntimeError("nobody expected this"), "unexpected error: RuntimeError: nobody expected"),
    ):
        monkeypatch.setattr("unlearnbench.config.loader.load_config", partial(fail, error=error))
        code, out, err = run("configs", "show", "quickstart", "--json")
        assert (code, out) == (2, "")
        assert err.startswith(message)
        assert err.count("\n") == 1
    code, _, err = run("configs", "show", "quickstart", "--json", "--traceback")
    assert code == 2
    assert "Traceback (most recent call last)" in err
