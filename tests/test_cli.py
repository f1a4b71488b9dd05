"""Commands print results, user errors are one line and exit code 2, and nothing is written then."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from unlearnbench import registry
from unlearnbench.cli import main
from unlearnbench.console import Console
from unlearnbench.ledger import SweepResult
from unlearnbench.outcomes import Outcome

Run = Callable[..., tuple[int, str, str]]

SMALL = """\
name: small
data: {authors: 10, questions_per_author: 2, pretraining_authors: 2}
models: [{name: tiny, base: tiny}]
forget_fractions: [0.1, 0.2]
methods: [ce-u, {method: npo, beta: [0.1, 0.5], retain: {term: nll, weight: 2.0}}]
learning_rates: [1.0e-5, 2.0e-5]
epochs: 2
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in an empty folder that holds `small.yaml`: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_files", {})
    Path("small.yaml").write_text(SMALL)

    def ran(*args: str) -> tuple[int, str, str]:
        code = main(args)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return ran


def test_help_is_worth_reading(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run()
    assert code == 0
    for command in ("quickstart", "plan", "sweep", "run", "evaluate", "score", "report", "track"):
        assert f"\n    {command} " in out or f"\n    {command}\n" in out
        with pytest.raises(SystemExit) as caught:
            main([command, "--help"])
        assert caught.value.code == 0
    assert "unlearnbench sweep my.yaml --set epochs=10" in out
    assert "--set models.0.base=./my-model" in capsys.readouterr().out


def test_help_is_immediate() -> None:
    code = (
        "import sys; from unlearnbench.cli import main\n"
        "try: main(['sweep', '--help'])\nexcept SystemExit: pass\n"
        "sys.exit(' '.join({'torch', 'transformers', 'ray', 'mlflow', 'numpy'} & "
        "sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


class TestBadInput:
    """One line each, exit code 2, nothing written."""

    @pytest.mark.parametrize("command", ["plan", "sweep", "run"])
    @pytest.mark.parametrize(
        ("changes", "lines"),
        [
            (["methods=[ce-x]"], ["methods.0  unknown method 'ce-x'; did you mean 'ce-u'?"]),
            (["trainin.batch_size=3"], ["unknown key; did you mean 'training'?"]),
            (["epochs=many"], ["epochs  expected a whole number, got the text 'many'"]),
            (
                ["forget_fractions=[0.15]"],
                ["0.15 of 10 authors is 1.5 authors, which is not whole"],
            ),
            (["learning_rates=['1e-5']"], ["got the text '1e-5' (without the quotes it"]),
            (["seeds=[]"], ["seeds  is empty: a sweep of zero runs"]),
            (
                ["epochs=0", "methods=[x, y]", "models.0.base=1"],
                ["epochs", "methods.0", "methods.1", "models.0.base"],
            ),
        ],
    )
    def test_in_a_config(
        self, run: Run, command: str, changes: list[str], lines: list[str]
    ) -> None:
        sets = [text for change in changes for text in ("--set", change)]
        code, out, err = run(command, "small.yaml", *sets)
        *told, last = err.splitlines()
        assert (code, out) == (2, "")
        assert len(told) == len(lines)
        for line in lines:
            assert any(line in one for one in told)
        assert last == f"{len(lines)} error{'s' * (len(lines) > 1)}; nothing was run."
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
            (["report", "runs/x"], "runs/x is no sweep's folder: it has no records/"),
            (["track", "runs/x"], "runs/x is no sweep's folder"),
            (["ui"], "runs/quickstart is no sweep's folder"),
            (
                [
                    "plan",
                    "small.yaml",
                    "--set",
                    "data.source=tofu",
                    "--set",
                    "data.path=x",
                    "--set",
                    "forget_fractions=[0.1]",
                ],
                "x",
            ),
        ],
    )
    def test_elsewhere(self, run: Run, args: list[str], message: str) -> None:
        code, out, err = run(*args)
        assert (code, out) == (2, "")
        assert message in err
        assert "Traceback" not in err
        assert [path.name for path in Path().iterdir()] == ["small.yaml"]

    @pytest.mark.parametrize("command", ["plan", "run"])
    def test_a_folder_of_another_sweep(self, run: Run, command: str) -> None:
        folder = Path("runs/small")
        folder.mkdir(parents=True)
        (folder / "plan.json").write_text('{"name": "small", "data": {"0.1": "else"}}')
        select = ["--select", "0"] if command == "run" else []
        code, out, err = run(command, "small.yaml", *select)
        assert (code, out) == (2, "")
        assert "runs/small holds sweep 'small' on other data" in err
        assert len(err.splitlines()) == 1
        assert [path.name for path in folder.iterdir()] == ["plan.json"]


class TestPlan:
    """`unlearnbench plan` spends and writes nothing."""

    def test_a_value_of_a_grid_is_printed_though_it_is_the_default(self, run: Run) -> None:
        _, out, _ = run("plan", "small.yaml", "--set", "methods=[{method: npo, beta: [0.1, 0.5]}]")
        assert registry.default_hyperparameters("npo")["beta"] == 0.1
        assert [line.split()[3] for line in out.splitlines()[2:4]] == ["beta=0.1", "beta=0.5"]
        _, out, _ = run("plan", "small.yaml", "--set", "methods=[{method: npo, beta: 0.1}]")
        assert "beta" not in out, "one default value tells nothing"

    def test_prints_a_line_per_method_and_the_work(self, run: Run) -> None:
        code, out, err = run("plan", "small.yaml")
        assert (code, err) == (0, "")
        lines = out.splitlines()
        assert lines[0] == "small: 12 runs into runs/small"
        assert lines[1].split()[:3] == ["model", "forget", "method"]
        assert len(lines) == 2 + 6 + 2
        assert any("npo+nll" in line and "beta=0.5, retain.weight=2.0" in line for line in lines)
        # 2 of 20 rows and 4 of 20: a step an epoch. NPO with a retain term reads both parts.
        assert lines[-2] == "training: 24 optimiser steps, 120 rows"
        assert lines[-1].startswith("evaluation: 24 times, ")
        assert [path.name for path in Path().iterdir()] == ["small.yaml"]

    def test_says_how_many_runs_each_stage_has(self, run: Run) -> None:
        search = "search={kind: optuna, trials: 5}"
        rates = "learning_rates={low: 1.0e-5, high: 1.0e-4}"
        both = (
            "--set",
            "seeds=[0, 1, 2]",
            "--set",
            "select={seeds: [0]}",
            "--set",
            "methods=[npo]",
        )
        _, out, _ = run("plan", "small.yaml", *both, "--set", search, "--set", rates)
        lines = out.splitlines()
        assert lines[0] == "small: up to 14 runs into runs/small"
        assert lines[2:5] == [
            "optuna search: 5 settings of each method entry at most, on seeds 0: up to 10 runs",
            "the best of each method by forget-quality, on seeds 1, 2: up to 4 runs",
            "work of the first of these stages:",
        ]
        assert lines[5] == "training: 20 optimiser steps, 60 rows"

    def test_json_has_every_run(self, run: Run) -> None:
        _, out, _ = run("plan", "small.yaml", "--json", "--set", "epochs_as=runs")
        plan = json.loads(out)
        assert len(plan["runs"]) == plan["work"]["runs"] == plan["counts"]["runs"] == 24
        assert plan["config"]["epochs_as"] == "runs"
        assert plan["recorded"] == 0
        assert set(plan["data"]) == {"0.1", "0.2"}

    def test_tells_what_is_recorded(self, run: Run) -> None:
        from unlearnbench.config import load_config
        from unlearnbench.data.loading import fingerprint, load_benchmark
        from unlearnbench.folder import claim_folder
        from unlearnbench.plan import make_plan
        from unlearnbench.records import EpochResult, run_record, write_record

        config = load_config("small.yaml")
        rows = load_benchmark(config.data, config.forget_fractions)
        plan = make_plan(config, {f: fingerprint(rows, f) for f in rows.splits})
        result = EpochResult(2, {"model_utility": 0.5}, 8.0, 2.0)
        record = run_record(
            plan.runs[3], status="finished", profile="tofu", epochs=(result,), error=None
        )
        place = write_record(record, claim_folder(plan))
        _, out, _ = run("plan", "small.yaml")
        assert out.splitlines()[-2:] == [
            "1 of 12 runs are recorded already and are not run again",
            "the others take about 1 min 04 s, 2 at a time, as those did",
        ]
        (place / "record.json").write_text("{}")
        _, out, _ = run("plan", "small.yaml")
        assert out.splitlines()[-1].startswith("how long the others take is not known: ")


class TestRun:
    """`unlearnbench run` does one run."""

    @pytest.fixture
    def done(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        calls: list[Any] = []

        def run_single(spec: Any, config: Any, folder: Any, told: Any) -> Any:
            calls.append((spec, config, folder))
            told("epoch 1")
            metrics = {"model_utility": 0.5, "log10_forget_quality": float("-inf")}
            epoch = SimpleNamespace(epoch=1, metrics=metrics)
            return SimpleNamespace(id=spec.id, status="finished", epochs=(epoch,))

        fake = ModuleType("unlearnbench.running")
        fake.run_single = run_single  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "unlearnbench.running", fake)
        return calls

    def test_lists_the_runs_where_none_is_chosen(self, run: Run, done: list[Any]) -> None:
        code, out, err = run("run", "small.yaml")
        assert (code, out) == (2, "")
        lines = err.splitlines()
        assert len(lines) == 13
        assert lines[0].split()[0] == "0"
        assert lines[0].endswith("ce-u · tiny · forget 0.1 · lr 1e-05 · 2 epochs · seed 0")
        assert lines[-1] == "small is more than one run; choose one with --select POSITION or ID"
        assert done == []
        identity = lines[5].split()[1]
        code, out, err = run("run", "small.yaml", "--select", identity[:8], "--json")
        assert code == 0
        assert [call[0].id for call in done] == [identity]
        epochs = [{"epoch": 1, "model_utility": 0.5, "log10_forget_quality": None}]
        assert json.loads(out) == {"id": identity, "status": "finished", "epochs": epochs}
        assert "epoch 1" in err
        assert done[0][2] == Path("runs/small")
        assert Path("runs/small/plan.json").is_file()

    def test_by_position(self, run: Run, done: list[Any]) -> None:
        code, out, _ = run("run", "small.yaml", "--select", "3")
        assert code == 0
        assert done[0][0].learning_rate == 2e-5
        assert out.splitlines()[0].split()[0] == "epoch"
        assert run("run", "small.yaml", "--select", "12")[0] == 2


class TestSweep:
    """`unlearnbench sweep` and `quickstart` end with what was made."""

    def fake(self, monkeypatch: pytest.MonkeyPatch, failed: int) -> list[Any]:
        calls: list[Any] = []

        def run_sweep(config: Any, _: Console) -> Any:
            calls.append(config)
            folder = Path("runs") / config.name
            ends = [Outcome(f"npo {i}", "failed", "no memory") for i in range(failed)]
            ends += [Outcome("ce-u at 0.001", "collapsed", "NaN loss at step 1 (epoch 1)")]
            ends += [Outcome(f"idk {i}", "finished") for i in range(3)]
            return SweepResult(
                folder=folder,
                total=len(ends),
                ends=tuple(ends),
                report=folder / "report.html",
                csv=folder / "results.csv",
                mlflow_command=f"unlearnbench ui {folder}",
                seconds={"training": 2.0},
                busy={"here, 2 slots": 0.9},
            )

        module = ModuleType("unlearnbench.sweep")
        module.run_sweep = run_sweep  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "unlearnbench.sweep", module)
        return calls

    def test_quickstart_is_a_sweep(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        calls = self.fake(monkeypatch, failed=0)
        code, out, _ = run("quickstart", "--set", "epochs=1")
        assert code == 0
        assert (calls[0].name, calls[0].epochs) == ("quickstart", 1)
        assert out.splitlines()[-3:] == [
            "page    runs/quickstart/report.html",
            "table   runs/quickstart/results.csv",
            "MLflow  unlearnbench ui runs/quickstart",
        ]

    def test_what_was_chosen_is_told_with_its_rule(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.fake(monkeypatch, failed=0)
        numbers = {"mean": 0.5, "standard_deviation": None}
        place = {"model": "tiny", "forget_fraction": 0.1, "learning_rate": 1e-5, "epoch": 2}
        reported = {"seeds": [1], "model_utility": numbers, "log10_forget_quality": numbers}
        known = {"setting": "npo (beta=0.1)", "method": "npo", "why_not": "", "reported": reported}
        none = {"setting": "", "method": "ce-u", "why_not": "no setting keeps 0.8"}
        choices = [place | known, place | known | none]
        folder = Path("runs/small")
        folder.mkdir(parents=True)
        held = {"rule": "the best", "chosen_on_seeds": [0], "choices": choices}
        (folder / "selection.json").write_text(json.dumps(held), encoding="utf-8")
        both = ("--set", "seeds=[0, 1]", "--set", "select={seeds: [0]}")
        _, out, _ = run("sweep", "small.yaml", *both)
        title, _, npo, ceu, rule, *_ = out.splitlines()
        assert title == "best of each method, chosen on seeds 0, reported on others"
        assert " ".join(npo.split()) == "tiny 0.1 npo (beta=0.1) 1e-05 2 0.5 - 0.5 - 1"
        assert " ".join(ceu.split()).endswith(" - - - - no setting keeps 0.8")
        assert rule == "rule: the best"
        _, out, _ = run("sweep", "small.yaml", "--json", *both)
        assert json.loads(out)["selection"] == held
        _, out, _ = run("sweep", "small.yaml", "--json")
        assert "selection" not in json.loads(out), "nothing was to be chosen now"

    def test_failed_runs_show_in_the_exit_code(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.fake(monkeypatch, failed=1)
        code, out, _ = run("sweep", "small.yaml", "--json")
        assert code == 1
        told = json.loads(out)
        counts = {name: told[name] for name in ("finished", "collapsed", "stopped", "failed")}
        assert counts == {"finished": 3, "collapsed": 1, "stopped": 0, "failed": 1}
        assert [one["status"] for one in told["without_result"]] == ["failed", "collapsed"]

    def test_what_failed_or_collapsed_is_counted_and_named(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.fake(monkeypatch, failed=1)
        _, out, _ = run("sweep", "small.yaml")
        assert out.splitlines()[:3] == [
            "3 of 5 runs finished; 1 collapsed; 1 failed",
            "failed: npo 0: no memory",
            "collapsed: ce-u at 0.001: NaN loss at step 1 (epoch 1)",
        ]

    def test_an_interrupted_sweep_says_how_to_go_on(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.fake(monkeypatch, failed=0)

        def interrupted(*_: Any) -> Any:
            raise KeyboardInterrupt

        monkeypatch.setattr(sys.modules["unlearnbench.sweep"], "run_sweep", interrupted)
        code, _, err = run("sweep", "small.yaml")
        assert code == 130
        assert err == "interrupted; the same command goes on where this one stopped\n"


class TestScore:
    """`unlearnbench score` on TOFU's published logs."""

    def test_gives_the_published_numbers(self, run: Run, eval_logs_folder: Path) -> None:
        full, retain = (
            str(eval_logs_folder / f"llama2-7b_{name}.json.gz") for name in ("full", "retain90")
        )
        code, out, _ = run("score", full, "--retain", retain, "--json")
        metrics = json.loads(out)
        assert code == 0
        assert round(metrics["model_utility"], 4) == 0.6227
        assert round(metrics["log10_forget_quality"], 4) == -20.7366
        assert metrics["profile"].startswith("tofu@")
        code, out, err = run("score", retain)
        assert "model_utility" in out
        assert "--retain" in err

    def test_a_truncated_log_is_one_line(self, run: Run) -> None:
        Path("cut.json.gz").write_bytes(gzip.compress(b'{"eval_log.json": ' * 50)[:40])
        code, out, err = run("score", "cut.json.gz")
        assert (code, out) == (2, "")
        assert len(err.splitlines()) == 1
        assert "cut.json.gz" in err


class TestEvaluate:
    """`unlearnbench evaluate`: metrics, log, table of questions; the retain model or its log."""

    ASKED = ("--data", "synthetic", "--rows", "1", "--max-length", "120")

    @pytest.fixture
    def folder(self, tmp_path: Path, model: Any, tokenizer: Any) -> str:
        place = tmp_path / "model"
        model.save_pretrained(place)
        tokenizer.save_pretrained(place)
        return str(place)

    def test_gives_metrics_log_and_questions(self, run: Run, folder: str) -> None:
        code, out, err = run(
            *("evaluate", folder, *self.ASKED),
            *("--out", "log.json.gz", "--questions", "q.parquet", "--json"),
        )
        assert code == 0
        told = json.loads(out)
        assert told["questions"] == {
            "retain": 1, "forget": 1, "real_authors": 1, "world_facts": 1,
        }  # fmt: skip
        assert 0 <= told["model_utility"] <= 1
        lines = err.splitlines()
        assert [line for line in lines if line.startswith("evaluating ")][-1].endswith(": 100 %")
        assert "log: log.json.gz" in lines
        assert "questions: q.parquet" in lines
        assert any("generated tokens came from drafts" in line for line in lines)
        _, again, _ = run(
            *("score", "log.json.gz", "--rows", "1", "--max-length", "120", "--json"),
        )
        assert json.loads(again)["model_utility"] == told["model_utility"]

        import pandas

        assert len(pandas.read_parquet("q.parquet")) == 4

    def test_against_a_retain_model_and_against_its_log(self, run: Run, folder: str) -> None:
        run("evaluate", folder, *self.ASKED, "--out", "retain.json")
        for retain in (folder, "retain.json"):
            code, out, _ = run("evaluate", folder, *self.ASKED, "--retain", retain, "--json")
            assert code == 0
            told = json.loads(out)
            assert (told["forget_quality"], told["ks_n"]) == (1.0, 1)

    def test_without_a_retain_model_the_missing_metrics_are_named(
        self, run: Run, folder: str
    ) -> None:
        run("evaluate", folder, *self.ASKED, "--out", "log.json")
        _, out, err = run("score", "log.json", "--rows", "1", "--max-length", "120")
        assert err.splitlines()[-1] == (
            "not measured: forget_quality, log10_forget_quality, ks_statistic, ks_n (need the "
            "retain model: --retain MODEL_OR_LOG)"
        )
        assert not [line for line in out.splitlines() if line.endswith(" -")]

    def test_a_retain_log_of_other_questions_is_refused(self, run: Run, folder: str) -> None:
        run("evaluate", folder, *self.ASKED, "--out", "retain.json", "--forget", "0.5")
        code, _, err = run("evaluate", folder, *self.ASKED, "--retain", "retain.json")
        assert code == 2
        assert "needs the same questions on both sides" in err.splitlines()[-1]

    def test_a_log_for_open_unlearning(self, run: Run, folder: str) -> None:
        asked = ("evaluate", folder, "--data", "synthetic", "--layout", "open-unlearning")
        code, _, err = run(*asked, "--rows", "1", "--max-length", "120", "--out", "TOFU_EVAL.json")
        assert code == 2
        assert "use --profile open-unlearning" in err
        assert "evaluating" not in err

    def test_a_retain_log_of_other_rules_is_refused_before_the_work(
        self, run: Run, folder: str
    ) -> None:
        run("evaluate", folder, *self.ASKED, "--out", "retain.json")
        code, out, err = run("evaluate", folder, *self.ASKED[:4], "--retain", "retain.json")
        assert (code, out) == (2, "")
        assert "retain.json is by profile tofu+rows=1+max_length=120@" in err
        assert "evaluating" not in err

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            (["--questions", "q.csv"], "q.csv: questions are written as .parquet or .jsonl"),
            (
                ["--out", "small.yaml/log.json"],
                "small.yaml/log.json: cannot write the evaluation log",
            ),
            (["--retain", "./gone"], "no model folder './gone'"),
            (["--retain", "gone.json"], "gone.json: cannot read the evaluation log"),
        ],
    )
    def test_mistakes_are_one_line(
        self, run: Run, folder: str, more: list[str], message: str
    ) -> None:
        code, out, err = run("evaluate", folder, *self.ASKED, *more)
        assert (code, out) == (2, "")
        (line,) = err.splitlines()  # nothing was evaluated before it was said
        assert message in line

    def test_a_collapsed_model_is_told(self, run: Run, folder: str, model: Any) -> None:
        model.model.norm.weight.data.fill_(float("nan"))
        model.save_pretrained(folder)
        code, out, err = run("evaluate", folder, *self.ASKED, "--json")
        assert code == 0
        assert json.loads(out)["model_utility"] is None
        assert "the model's outputs are not finite, first at '" in err

    def test_a_log_of_the_forget_set_alone_has_no_metrics(self, run: Run) -> None:
        losses = {"value_by_index": {"0": {"avg_loss": 1.0}}}
        perturbed = {"value_by_index": {"0": {"avg_loss": [1.0, 2.0]}}}
        log = {"forget_Q_A_PARA_Prob": losses, "forget_Q_A_PERT_Prob": perturbed}
        Path("TOFU_EVAL.json").write_text(json.dumps(log))
        code, _, err = run("score", "TOFU_EVAL.json", "--profile", "open-unlearning")
        assert code == 2
        assert "it serves as --retain alone" in err


def test_a_reader_that_leaves_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "unlearnbench.cli", "configs", "show", "quickstart"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--forget", "1.5"], "1.5 is no number between 0 and 1"),
        (["--template", "llama"], "invalid choice: 'llama'"),
        (["--rows", "few"], "few is no whole number above 0"),
    ],
)
def test_evaluate_takes_no_nonsense(
    capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["evaluate", "model", *args])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_a_plan_tells_what_each_kind_of_run_takes(run: Run) -> None:
    code, out, _ = run("plan", "small.yaml", "--memory", "--flops", "50e9")
    assert code == 0
    for word in ("gradients", "peak GiB", "hours a run", "npo+nll", "6·N", "assumed: 5e+10 FLOP/s"):
        assert word in out
    code, out, _ = run("plan", "small.yaml", "--memory", "--json")
    told = json.loads(out)["memory"]
    assert told["flops"] == 400e12
    kinds = {(kind["model"], kind["method"]): kind for kind in told["kinds"]}
    assert kinds["tiny", "ce-u"]["runs"] == 4
    one, two = (kinds["tiny", name] for name in ("ce-u", "npo+nll"))
    assert two["memory_mib"]["activations"] >= one["memory_mib"]["activations"] > 0
    assert two["hours"] >= one["hours"] > 0, "both wait for launches"
    assert sum(one["hours_by_work"].values()) == pytest.approx(one["hours"])
    _, out, _ = run("plan", "small.yaml", "--memory", "--json", "--flops", "1e7")
    slow = {(kind["model"], kind["method"]): kind for kind in json.loads(out)["memory"]["kinds"]}
    assert slow["tiny", "npo+nll"]["hours"] > slow["tiny", "ce-u"]["hours"]
    assert told["unknown"] == []


def test_a_plan_tells_what_it_cannot_know(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    code, out, _ = run(
        "plan", "small.yaml", "--memory", "--set", "models.0.base=nobody/nothing@main"
    )
    assert code == 0
    assert "not known: tiny: nobody/nothing: its config is not to be had" in out
    assert "GPU hours" not in out


def test_flops_are_a_number_above_zero(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("0", "-1", "inf", "fast"):
        with pytest.raises(SystemExit):
            run("plan", "small.yaml", "--memory", "--flops", text)
        assert "is no number above 0" in capsys.readouterr().err
