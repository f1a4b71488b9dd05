"""Outputs are checked before any work: nothing that was read is overwritten, no traceback."""

from __future__ import annotations

import csv
import io
import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.api import registry
from unlearnbench.cli.main import main, root_command
from unlearnbench.console import Console
from unlearnbench.files.outputs import check_arguments, printable, spreadsheet_cell
from unlearnbench.reporting.report import write_report
from unlearnbench.results.records import EpochResult, Record, write_record
from unlearnbench.results.table import table, to_csv
from unlearnbench.testing.gradient_profile import GradientProfiles, Point

SMALL = """\
name: small
data: {authors: 10, questions_per_author: 2, pretraining_authors: 2}
models: [{name: tiny, base: tiny}]
forget_fractions: [0.1]
methods: [ce-u]
epochs: 1
"""
LONG = "n" * 300
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command beside a config, a sweep's folder and a link loop: code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_files", {})
    Path("small.yaml").write_text(SMALL)
    Path("file").write_text("mine")
    Path("loop").symlink_to("loop")
    Path("nowhere").symlink_to("gone")
    write_record(a_record(), Path("runs/a"))

    def ran(*args: str) -> tuple[int, str, str]:
        code = main(args)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return ran


def a_record(**changes: Any) -> Record:
    values: dict[str, Any] = {
        "id": "ab",
        "kind": "run",
        "model": "tiny",
        "forget_fraction": 0.1,
        "method": "npo",
        "learning_rate": 1e-5,
        "seed": 0,
        "spec": {"method": {"name": "npo", "hyperparameters": {"beta": 0.1}}},
        "status": "finished",
        "profile": "tofu@1",
        "epochs": (EpochResult(1, {"model_utility": -0.5}, 1.0, 1.0),),
    }
    return Record(**values | changes)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


PLACES = [
    ("file", "not a folder"),
    ("file/x/y", "file is not a folder"),
    ("/dev/null", "not a folder"),
    ("loop", "a link to nothing"),
    ("nowhere", "a link to nothing"),
    ("/proc/q", "cannot write"),
    (LONG, "has a part of 300 bytes; files and folders have names of 255"),
    ('"a\\0b"', "holds the control character U+0000"),
    ('"a\\nb"', "holds an end of line or a tab"),
    ('"\\uD800"', "holds half a character"),
]


@pytest.mark.parametrize("command", ["plan", "sweep", "run"])
@pytest.mark.parametrize("key", ["output", "cache", "storage"])
@pytest.mark.parametrize(("place", "reason"), PLACES)
def test_no_sweep_is_planned_where_it_cannot_write(
    run: Run, command: str, key: str, place: str, reason: str
) -> None:
    before = everything(Path())
    code, out, err = run(command, "small.yaml", "--set", f"{key}={place}")
    assert (code, out) == (2, "")
    assert reason in err
    assert len(err.splitlines()) <= 2
    assert everything(Path()) == before


def test_a_storage_that_nothing_can_be_shared_through_is_refused_without_its_password(
    run: Run,
) -> None:
    for command in ("plan", "sweep"):
        code, _, err = run(command, "small.yaml", "--set", "storage=ftp://user:hunter2@host/x")
        assert code == 2
        assert "storage  expected a path, s3:// or gs://, got 'ftp://host/x'" in err
        assert "hunter2" not in err


def test_an_empty_storage_is_none(run: Run) -> None:
    code, _, err = run("plan", "small.yaml", "--set", 'storage=""')
    assert (code, err.count("\n")) == (2, 1)
    assert "storage: empty; give a path" in err


def test_a_sweep_does_not_write_over_what_it_reads(run: Run) -> None:
    Path("runs/small").mkdir()
    log = Path("runs/small/results.csv")
    log.write_text("I do not know.\n")
    code, _, err = run("plan", "small.yaml", "--set", f"data.refusals={log}")
    assert code == 2
    assert "cannot write output: results.csv: it is read; choose another place" in err


FILES = [
    ("file/x.html", "file is not a folder"),
    ("/dev/null", "neither a file nor a new one"),
    ("loop", "neither a file nor a new one"),
    ("/proc/x.html", "cannot write"),
    (f"{LONG}.html", "has a part of 305 bytes"),
    (f"{'n' * 245}.html", "File name too long"),
    ("a\nb.html", "holds an end of line or a tab"),
    ("runs", "a folder"),
]
COMMANDS: list[tuple[str, ...]] = [
    ("report", "runs/a", "--out"),
    ("figures", "pareto", "runs/a", "--out"),
    ("evaluate", "nobody/nothing", "--out"),
    ("evaluate", "nobody/nothing", "--questions"),
    ("leaderboard", "merge", "small.yaml", "--out"),
    ("leaderboard", "show", "small.yaml", "--page"),
    ("methods", "gradient", "--csv"),
    ("bench", "losses", "--sizes", "1x16x300", "--repeats", "1", "--record"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(("place", "reason"), FILES)
def test_no_command_begins_where_it_cannot_write(
    run: Run, command: tuple[str, ...], place: str, reason: str
) -> None:
    before = everything(Path())
    code, out, err = run(*command, place)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert reason in line or "its name must end in .html" in line
    assert everything(Path()) == before


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("evaluate", "m", "--out", "x.jsonl", "--questions", "x.jsonl"), "goes there"),
        (("evaluate", "m", "--out", "x.jsonl", "--questions", "./d/../x.jsonl"), "goes there"),
        (("evaluate", "m", "--retain", "rl.json", "--out", "rl.json"), "it is read"),
        (("evaluate", "m", "--retain", "rl.json", "--out", "hard.json"), "it is read"),
        (("evaluate", "m", "--retain", "rl.json", "--out", "soft.json"), "it is read"),
        (("evaluate", "m", "--out", "m/config.json"), "as a part of m"),
        (("evaluate", "m", "--out", "m/model.safetensors"), "as a part of m"),
        (("evaluate", "m", "--out", "linked.json"), "as a part of m"),
        (("evaluate", "m", "--data", "d", "--out", "d/full.json"), "as a part of d"),
        (("evaluate", "m", "--tokenizer", "d", "--out", "d/full.json"), "as a part of d"),
        (("report", "runs/a", "--out", "runs/a/results.csv"), "must end in .html"),
        (("report", "runs/a", "--out", "runs/a/records/ab/record.json"), "must end in .html"),
        (("leaderboard", "merge", "rl.json", "x.json", "--out", "rl.json"), "it is read"),
        (("leaderboard", "export", "runs/a", "--out", "runs/a/records/ab/record.json"), "a part"),
        (("leaderboard", "show", "p.html", "--page", "p.html"), "it is read"),
        (("leaderboard", "show", "p.csv", "--page", "p.html"), "it is read"),
        (("methods", "gradient", "--plugin", "p.html", "--out", "p.html"), "it is read"),
        (("methods", "gradient", "--csv", "p.html", "--out", "p.html"), "goes there"),
        (("methods", "gradient", "--out", "g.xyz"), "its name must end in .html"),
    ],
)
def test_nothing_that_is_read_is_overwritten(run: Run, args: tuple[str, ...], message: str) -> None:
    for name in ("m/config.json", "m/model.safetensors", "d/full.json", "rl.json", "p.html"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("{}")
    Path("p.csv").write_text("{}")
    Path("hard.json").hardlink_to("rl.json")
    Path("soft.json").symlink_to("rl.json")
    Path("linked.json").hardlink_to("m/config.json")
    before = everything(Path())
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert "cannot write " in line
    assert message in line
    assert everything(Path()) == before


def test_what_was_written_before_may_be_written_again(run: Run) -> None:
    for _ in range(2):
        assert run("report", "runs/a", "--out", "runs/a/report.html")[0] == 0
        assert run("figures", "pareto", "runs/a", "--out", "runs/a/panel.html")[0] == 0
    arguments = {"model": "m", "out": "new/log.json", "set": ["description='a\nb'"]}
    check_arguments(arguments, root_command().commands["evaluate"].outputs)
    assert not Path("new").exists()


def commands(group: Any) -> Iterator[Any]:
    for command in group.commands.values():
        if hasattr(command, "commands"):
            yield from commands(command)
        else:
            yield command


def test_every_option_that_names_an_output_is_declared() -> None:
    written = {"--out", "--csv", "--page", "--questions", "--record", "--latex", "--to"}
    seen: set[str] = set()
    for command in commands(root_command()):
        options = {name for param in command.params for name in param.opts} & written
        declared = {f"--{one.option}" for one in command.outputs}
        assert options == declared, command.name
        seen |= options
    assert seen == written


@pytest.mark.parametrize("name", ["json", "torch", "a" * 300])
def test_a_package_that_cannot_be_is_not_written(run: Run, name: str) -> None:
    code, _, err = run("methods", "new", name, "--out", "nm")
    assert code == 2
    assert "has a module" in err or "has a part of 300 bytes" in err
    assert not Path("nm").exists()
    assert run("methods", "new", "my-m", "--out", "file")[0] == 2
    assert run("methods", "new", "my-m", "--out", "/proc/x")[0] == 2


def test_a_full_disk_at_page_or_table_is_one_message_and_keeps_the_old_ones(
    tmp_path: Path,
) -> None:
    write_record(a_record(), tmp_path)
    write_report(tmp_path)
    before = everything(tmp_path)
    code = (
        "import resource, signal; from unlearnbench.cli.main import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "for size in (10, 2000):\n"
        f"    resource.setrlimit(resource.RLIMIT_FSIZE, (size, {resource.RLIM_INFINITY}))\n"
        f"    print(main(['report', {str(tmp_path)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["2", "2"], done.stderr
    lines = done.stderr.splitlines()
    for line, name in zip(lines, ("results.csv", "report.html"), strict=True):
        assert name in line
        assert "File too large; no record is lost: `unlearnbench report" in line
    assert everything(tmp_path) == before


def command(*args: str, how: str = "") -> tuple[int, str]:
    """Exit code, and what comes out, of a command under a shell's redirection."""
    line = f'exec "$@" {how}'
    words = [sys.executable, "-m", "unlearnbench.cli.main", *args]
    done = subprocess.run(["bash", "-c", line, "bash", *words], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("args", "how", "message"),
    [
        (("configs", "list"), ">/dev/full", "standard output: No space left on device\n"),
        (("configs", "show", "quickstart"), ">/dev/full", "standard output: No space left on"),
        (("configs", "list"), ">&-", "standard output is closed, so no result could be printed"),
        (("configs", "list"), ">&- 2>&-", ""),
        (("plan", "nosuch"), "2>/dev/full", ""),
        (("plan", "nosuch"), "2>&-", ""),
        (("plan", "nosuch"), "<&-", "no such configuration"),
        (("plan", "nosuch"), ">/dev/full 2>&1", ""),
    ],
)
def test_streams_that_are_closed_or_full(args: tuple[str, ...], how: str, message: str) -> None:
    code, said = command(*args, how=how)
    assert code == 2
    assert "Traceback" not in said
    assert "Exception ignored" not in said
    assert message in said if message else said == ""


def test_a_closed_stream_gets_no_file_of_ours(tmp_path: Path) -> None:
    write_record(a_record(), tmp_path)
    code, _ = command("report", str(tmp_path), how="2>&-")
    assert code == 0
    assert (tmp_path / "report.html").read_text().startswith("<!")


def test_what_no_check_has_foreseen_is_one_message(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, message in (
        (
            OSError(28, "No space left on device", "a/\u202eb"),
            "a/\\u202eb: No space left on device",
        ),
        (OSError(5, "Input/output error"), "Input/output error; nothing more was done"),
        (MemoryError(), "out of memory: an input is too large for this machine"),
        (RecursionError("maximum recursion depth exceeded"), "nested too deeply: "),
        (UnicodeEncodeError("utf-8", "a\ud800", 1, 2, "surrogates not allowed"), "a\\ud800: not a"),
    ):

        def fail(_: object, error: BaseException = error) -> int:
            raise error

        monkeypatch.setattr("unlearnbench.config.loader.load_config", fail)
        code, out, err = run("configs", "show", "quickstart", "--json")
        assert (code, out) == (2, "")
        assert err.startswith(message)
        assert err.count("\n") == 1


def test_a_name_that_is_too_long_is_one_message(run: Run) -> None:
    for args in (
        ("plan", f"/{LONG}.yaml"),
        ("evaluate", "small.yaml", "--data", f"/{LONG}"),
        ("plan", "small.yaml", "--set", "data.refusals=~nosuchuser/x"),
        ("plan", "small.yaml", "--set", f"models.0.base={LONG}"),
        ("score", LONG),
    ):
        code, _, err = run(*args)
        assert code == 2, args
        problems = err.removesuffix("1 error; no run was started.\n").splitlines()
        assert len(problems) == 1, args


def test_what_is_printed_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "a\u202e\x1b[2Jb\x9bc\u2028d\ud800\re"
    escaped = "a\\u202e\\u001b[2Jb\\u009bc\\u2028d\\ud800\\u000de"
    assert printable(evil) == escaped
    assert json.loads(f'"{printable(evil)}"') == evil
    assert printable("é 中 · β\tx\n😀") == "é 中 · β\tx\n😀"
    console = Console()
    console.print(evil)
    console.note(evil)
    console.table(("x",), [(f"{evil}\nf",)], evil)
    captured = capsys.readouterr()
    assert captured.err == f"{escaped}\n"
    assert captured.out == f"{escaped}\n{escaped}\nx\n{escaped}\\nf\n"


def test_a_table_has_no_formula_in_it_and_its_numbers_stay() -> None:
    for text in ("=1+1", "+1", "-1", "@x", "\tx", "\rx"):
        row = next(csv.DictReader(io.StringIO(to_csv(table([a_record(model=text)])))))
        escaped = text.replace("\r", "\\r")
        assert row["model"] == f"'{escaped}"
        assert float(row["model_utility"]) == -0.5
    assert spreadsheet_cell("x=1") == "x=1"
    assert spreadsheet_cell(-3) == -3
    curves = {"=x": (Point(0.5, 0.0, 1.0, -1.0, 1.0),)}
    assert (
        GradientProfiles(curves, {}, None)
        .to_csv()
        .splitlines()[1]
        .startswith("'=x,0.5,0.0,1.0,-1.0")
    )
