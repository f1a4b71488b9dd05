"""Help, errors and exit codes of the command line; user errors are short and write nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from unlearnbench.cli.command import DOCUMENTATION
from unlearnbench.cli.main import main, root_command

Run = Callable[..., tuple[int, str, str]]


def test_help_lists_every_command_with_examples(run: Run) -> None:
    code, out, _ = run()
    assert code == 0
    assert out == run("--help")[1] == run("-h")[1]
    (_, group, _) = run("anchors", "--help")
    assert out.splitlines()[-1] == group.splitlines()[-1] == f"  {DOCUMENTATION}"
    for command in root_command().commands:
        assert re.search(rf"^  {command}  +[A-Z]", out, flags=re.MULTILINE), command
    assert "unlearnbench sweep my.yaml --set epochs=10" in out
    code, out, _ = run("sweep", "--help")
    assert code == 0
    assert "--set models.0.base=./my-model" in out
    assert run("--version")[:2] == (0, f"{version('unlearnbench')}\n")


def test_help_of_every_command_explains_its_options(run: Run) -> None:
    def check(command: object, *words: str) -> None:
        code, out, _ = run(*words, "--help")
        assert code == 0
        assert out.startswith("Usage: unlearnbench")
        below = getattr(command, "commands", {})
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
        "'rich', 'unlearnbench.config.schema'} & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["swep"], "unlearnbench: No such command 'swep'. Did you mean 'sweep'?"),
        (["methods", "lst"], "unlearnbench methods: No such command 'lst'. Did you mean 'list'?"),
        (["methods"], "unlearnbench methods: Missing command."),
        (["plan"], "unlearnbench plan: Missing argument 'CONFIG'."),
        (["plan", "a", "b"], "unlearnbench plan: Got unexpected extra argument(s) (b)"),
        (
            ["plan", "small.yaml", "--memry"],
            "unlearnbench plan: No such option: --memry (Possible options: --device-memory, "
            "--memory)",
        ),
        (["score", "a", "--out", "b"], "unlearnbench score: No such option: --out"),
        (
            ["plan", "a", "--set", "--json"],
            "unlearnbench plan: Option '--set' requires an argument.",
        ),
        (
            ["evaluate", "m", "--template", "llama"],
            "unlearnbench evaluate: Invalid value for '--template': 'llama' is not one of 'auto', "
            "'plain', 'llama-2', 'phi', 'chat'.",
        ),
        (
            ["evaluate", "m", "--forget", "1.5"],
            "unlearnbench evaluate: Invalid value for '--forget': 1.5 is not a number between 0 "
            "and 1",
        ),
        (
            ["plan", "a", "--flops", "inf"],
            "unlearnbench plan: Invalid value for '--flops': inf is not a number above 0",
        ),
        (
            ["bench", "evaluation", "--states", "random", "new"],
            "unlearnbench bench evaluation: Invalid value for '--states': 'new' is not one of "
            "memorised, unlearned, random",
        ),
    ],
)
def test_usage_errors_are_one_message_and_a_hint(run: Run, args: list[str], message: str) -> None:
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    path = message.partition(":")[0]
    assert err.splitlines() == [message, f"Try '{path} --help'."]


def test_options_take_several_values_in_a_row_or_one_each(
    parse_command: Callable[[list[str]], dict[str, object]],
) -> None:
    words = ["figures", "trajectories", "runs/x", "--out", "x.svg"]
    for more in (["--metrics", "a", "b"], ["--metrics", "a", "--metrics=b"]):
        assert parse_command([*words, *more])["metrics"] == ["a", "b"]
        assert parse_command([*words[:2], *more, *words[3:], "--", "runs/x"])["folder"] == "runs/x"
    options = parse_command(["plan", "--set", "a=1", "x.yaml", "--set=b=-1", "--flops", "1e9"])
    assert (options["config"], options["overrides"], options["flops"]) == (
        "x.yaml", ["a=1", "b=-1"], 1e9,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("unlearnbench lead", {"leaderboard"}),
        ("unlearnbench plan quick", {"quickstart"}),
        ("unlearnbench methods show ce", {"ce-u"}),
        ("unlearnbench evaluate m --profile open", {"open-unlearning"}),
        ("unlearnbench evaluate m --dtype b", {"bfloat16"}),
        ("unlearnbench plan --dev", {"--device-memory"}),
        ("unlearnbench configs sch", {"schema"}),
        ("unlearnbench doc", {"doctor"}),
        ("unlearnbench attacks show rele", {"relearning"}),
        ("unlearnbench report runs/m", {"runs/mine"}),
        ("unlearnbench report ru", {"runs/mine", "runs/other"}),
        ("unlearnbench export-log runs/mine 5f", {"5f0c"}),
    ],
)
def test_shells_get_completions(
    words: str,
    expected: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("mine/records/5f0c", "mine/records/8a1e", "other/records/5f11"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "record.json").write_text('{"method": "ce-u", "seed": 0}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("_UNLEARNBENCH_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert main([]) == 0
    assert {line.split("\t")[0] for line in capsys.readouterr().out.splitlines()} == expected


def test_the_script_of_completion_is_printed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    code, out, _ = run("--show-completion")
    assert code == 0
    assert "_UNLEARNBENCH_COMPLETE=complete_bash" in out


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        (["methods=[ce-x]"], ["methods.0  unknown method 'ce-x'; did you mean 'ce-u'?"]),
        (["trainin.batch_size=3"], ["unknown key; did you mean 'training'?"]),
        (["epochs=many"], ["epochs  expected a whole number, got the text 'many'"]),
        (["forget_fractions=[0.15]"], ["0.15 of 10 authors is 1.5 authors, which is not whole"]),
        (["learning_rates=['1e-5']"], ["got the text '1e-5' (without the quotes it"]),
        (["seeds=[]"], ["seeds  is empty: a sweep of zero runs"]),
        (
            ["epochs=0", "methods=[x, y]", "models.0.base=1"],
            ["epochs", "methods.0", "methods.1", "models.0.base"],
        ),
    ],
)
def test_mistakes_in_a_config_are_reported_at_once(
    run: Run, changes: list[str], lines: list[str]
) -> None:
    sets = [text for change in changes for text in ("--set", change)]
    for command in ("plan", "sweep", "run") if len(changes) > 1 else ("plan",):
        code, out, err = run(command, "small.yaml", *sets)
        *problems, last = err.splitlines()
        assert (code, out) == (2, "")
        assert len(problems) == len(lines)
        for line in lines:
            assert any(line in one for one in problems)
        assert last.startswith(f"{len(lines)} error{'s' * (len(lines) > 1)}; ")
    assert [path.name for path in Path().iterdir()] == ["small.yaml"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["plan", "smal.yaml"], "smal.yaml    no such file; shipped: "),
        (["sweep", "quickstat"], "did you mean 'quickstart'?"),
        (["plan", "small.yaml", "--plugin", "my.py"], "plugin file my.py does not exist"),
        (["methods", "show", "nop"], "unknown method 'nop'; did you mean 'npo'?"),
        (["configs", "show", "quick"], "did you mean 'quickstart'?"),
        (["score", "no.json"], "no.json"),
        (["score", "small.yaml", "--profile", "tof"], "did you mean 'tofu'?"),
        (["report", "runs/x"], "runs/x is not a sweep folder: it has no records/"),
        (["track", "runs/x"], "runs/x is not a sweep folder"),
        (["ui"], "runs/quickstart is not a sweep folder"),
        (["plan", "small.yaml", "--set", "data.source=tofu", "--set", "data.path=x"], "x"),
    ],
)
def test_other_mistakes_are_named(run: Run, args: list[str], message: str) -> None:
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
    assert [path.name for path in Path().iterdir()] == ["small.yaml"]


@pytest.mark.parametrize("command", ["plan", "run"])
def test_the_folder_of_another_sweep_is_refused(run: Run, command: str) -> None:
    folder = Path("runs/small")
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text('{"name": "small", "data": {"0.1": "else"}}')
    select = ["--select", "0"] if command == "run" else []
    code, out, err = run(command, "small.yaml", *select)
    assert (code, out) == (2, "")
    assert "runs/small holds sweep 'small' on other data" in err
    assert len(err.splitlines()) == 1
    assert [path.name for path in folder.iterdir()] == ["plan.json"]


def test_a_closed_pipe_is_not_an_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "unlearnbench.cli.main", "configs", "show", "quickstart"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_without_posix_locks_commands_start_and_those_that_lock_explain() -> None:
    code = (
        "import sys; sys.modules['fcntl'] = None\n"  # as on Windows
        "from unlearnbench.cli.main import main\n"
        "sys.exit(10 * main(['profiles', 'list', '--json']) + main(['cache', 'list']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("this command locks files as POSIX systems do, which Windows")
    assert "WSL 2" in done.stderr
    assert "\n" not in done.stderr.strip()
