"""The measurements of a tiny case, and that the ways which they compare compute the same."""

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import (
    decoding,
    evaluation,
    gpu_sharing,
    losses,
    modifiers,
    peer,
    replays,
    step,
    sweep,
    tables,
    timer,
)
from benchmarks.models import random_model
from benchmarks.plain_evaluator import PlainEvaluator, PlainResult
from benchmarks.plain_losses import PlainPredictions
from tests.factories.graphs import graphs_on_cpu
from tests.factories.marks import with_mlflow
from unlearnbench.api import registry
from unlearnbench.api.benchmark import Question
from unlearnbench.api.observations import Evaluation, SetName
from unlearnbench.api.profile import Profile
from unlearnbench.cli.main import main as unlearnbench
from unlearnbench.config.plan import make_plan
from unlearnbench.config.profiles import OPEN_UNLEARNING, get_profile
from unlearnbench.losses.lm_head import Projection
from unlearnbench.losses.predictions import Predictions, Reference
from unlearnbench.results.records import EpochResult, Record, run_record

from .flow.sweep.noop_sweep import noop_config

pytestmark = pytest.mark.speed

Both = tuple[PlainEvaluator, PlainResult, Evaluation]
TRAINED = [
    name
    for name in registry.names("methods")
    if registry.trains(name) and not step.objective_of(name).needs.parts & {"sample", "alternative"}
]


def measured(
    capsys: pytest.CaptureFixture[str], main: Callable[[list[str]], int], *words: str, code: int = 0
) -> dict[str, Any]:
    assert main([*words]) == code
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert {"started", "device", "git", "versions", "settings"} <= result.keys()
    assert result["agree"] is (code == 0)
    return result


@pytest.fixture(scope="module")
def case() -> step.Case:
    return step.Case("quick", "synthetic", 4)


@pytest.fixture(scope="module", params=["tofu", "open-unlearning"])
def profile(request: pytest.FixtureRequest) -> Profile:
    """Rules short enough for a test."""
    if request.param == "tofu":
        return get_profile("tofu", max_length=60)
    return replace(OPEN_UNLEARNING, max_new_tokens=12)


@pytest.fixture(scope="module")
def asked(make_model: Callable[[], Any]) -> Any:
    """One model for all tests; none changes it."""
    return make_model()


@pytest.fixture(scope="module")
def both(asked: Any, tokenizer: Any, questions: tuple[Question, ...], profile: Profile) -> Both:
    """A model with random weights, asked all four sets in both ways."""
    facts = [Question(q.question, q.answer, None, q.perturbed_answers) for q in questions[:3]]
    sets: dict[SetName, tuple[Question, ...]] = {
        "retain": questions[5:],
        "forget": questions[:5],
        "real_authors": tuple(facts),
        "world_facts": tuple(facts[:2]),
    }
    plain, fast = evaluation.evaluators(sets, tokenizer, profile)
    return plain, plain(asked), fast(asked)


class TestTimer:
    def test_ways_take_turns_after_a_turn_to_warm_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        turns: list[str] = []
        ways = {"a": lambda: turns.append("a"), "b": lambda: turns.append("b")}
        with monkeypatch.context() as patch:
            patch.setattr(timer, "now", iter([0, 9, 0, 9, 0, 1, 0, 2, 0, 3, 0, 2]).__next__)
            found = timer.in_turn(ways, 2)
        assert "".join(turns) == "ababab"
        assert found["a"] == {"median": 2, "p20": pytest.approx(1.4), "p80": pytest.approx(2.6)}
        assert found["b"]["median"] == 2

    def test_a_short_peak_is_seen_and_what_was_there_before_is_not(self) -> None:
        kept = torch.ones(1 << 24)  # 64 MiB
        small = timer.peak_bytes(partial, torch.ones, 1 << 10, here=True)
        if small is None:
            pytest.skip("this system has no VmHWM")
        assert 0 <= small < 1 << 24
        large = timer.peak_bytes(partial, torch.ones, 1 << 24, here=True)
        assert large == pytest.approx(1 << 26, rel=0.1)
        assert kept[0] == 1

    def test_memory_is_measured_in_a_process_of_its_own(self) -> None:
        found = timer.peak_bytes(partial, torch.ones, 1 << 26)
        # The first use of an operator maps some megabytes of the library besides.
        assert found is None or found == pytest.approx(1 << 28, rel=0.1)


class TestLosses:
    @pytest.mark.parametrize("name", [*losses.PRIMITIVES, "lowered", "raw", "unlikelihood"])
    def test_the_usual_way_computes_the_same(self, name: str) -> None:
        generator = torch.Generator().manual_seed(0)
        hidden, weight, other = (
            torch.randn(*shape, generator=generator, dtype=torch.float64)
            for shape in ((9, 4), (11, 4), (9, 4))
        )
        rows = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 1])
        labels = torch.randint(11, (9,), generator=generator)
        more: dict[str, losses.Primitive] = {
            "lowered": lambda p, r: p.kl_from(r, lowered=2.0).sum(),
            "raw": lambda p, _: p.unified_cross_entropy(0.4, raw=True).sum(),
            "unlikelihood": lambda p, _: p.unlikelihood.sum(),
        }
        primitive: Any = {**losses.PRIMITIVES, **more}[name]
        values = []
        for kind in (Predictions, PlainPredictions):
            leaves = [t.clone().requires_grad_() for t in (hidden, weight)]
            part = kind(leaves[0], Projection(leaves[1]), labels, rows, 2, 9, 2)
            start = Reference(torch.zeros(9), rows, 2, other, Projection(weight))
            value = primitive(part, start)
            values.append([value, *torch.autograd.grad(value, leaves)])
        for ours, usual in zip(*values, strict=True):
            torch.testing.assert_close(ours, usual.to(ours))

    def test_it_measures(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        words = ("--sizes", "64x8x50", "--repeats", "2", "--names", "KL")
        (each,) = measured(capsys, losses.main, *words)["results"]
        assert (each["name"], each["size"]) == ("KL", [64, 8, 50])
        median = {way: seconds["median"] for way, seconds in each["seconds"].items()}
        assert each["ratio"] == pytest.approx(median["ours"] / median["usual"])
        assert max(each["error"].values()) < 1e-3
        monkeypatch.setitem(losses.AGREE, "float32", -1.0)
        measured(capsys, losses.main, *words, code=1)

    def test_tokens_are_halved_until_the_usual_way_fits(self) -> None:
        size = losses.size_of("4096x2048x128256")
        assert losses.fitting(size, 10**12) == size
        assert losses.fitting(size, 10 * 2**30) == (2048, 2048, 128256)
        assert losses.fitting(size, 1)[0] == 32


class TestStep:
    @pytest.fixture(autouse=True)
    def _few_epochs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(step, "EPOCHS", 2)  # each has 20 steps

    @pytest.mark.parametrize("name", [*TRAINED, "npo+nll", "ce-u+kl"])
    def test_all_ways_have_the_same_first_loss(self, name: str, case: step.Case) -> None:
        seconds, first = case.measured(name, 1)
        assert seconds.keys() == first.keys() >= {"usual", "ours"}
        for loss in first.values():
            assert loss == pytest.approx(first["usual"], rel=1e-4, abs=1e-6)

    def test_it_measures(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        words = ["--size", "quick", "--batch-size", "4", "--repeats", "1", "--methods"]
        first, second = measured(capsys, step.main, *words, "npo+nll", "kto")["results"]
        assert first["faster"] > 0
        assert first["overhead"] is not None
        assert second["overhead"] is None, "there is no bare loop with statistics"
        words[1:2] = ["llama3-quick", "--precision", "bf16"]
        monkeypatch.setattr(step, "LARGE", ("llama3-quick",))  # a way at a time
        (half,) = measured(capsys, step.main, *words, "npo+nll")["results"]
        assert half["seconds"].keys() == {"usual", "ours", "bare"}
        words[1:4] = ["quick"]
        monkeypatch.setitem(step.AGREE, "fp32", -1.0)
        measured(capsys, step.main, *words, "ce-u", code=1)

    def test_replayed_steps_are_equal_and_timed(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        words = ["--size", "quick", "--batch-size", "4", "--repeats", "2", "--warm-up", "2"]
        monkeypatch.setattr(replays, "EQUAL_STEPS", 7)
        graphs = graphs_on_cpu(monkeypatch)
        (found,) = measured(capsys, replays.main, *words, "--methods", "npo+nll")["results"]
        assert graphs.replays > 4
        assert found["deterministic"]["replayed_passes"] > 0
        assert found["deterministic"]["largest_difference"] == 0.0
        assert found["timed"]["first_losses"][0] == found["timed"]["first_losses"][1]
        assert found["timed"]["seconds"].keys() == {"plain", "replayed"}
        assert not replays.are_equal({**found["deterministic"], "largest_difference": 1e-9})


class TestEvaluation:
    def test_both_ways_are_the_same(self, asked: Any, both: Both) -> None:
        plain, slow, fast = both
        found = evaluation.compare(asked, plain, slow, fast)
        assert found.agree
        assert found.largest_difference is not None
        assert found.largest_difference < 1e-6
        assert (found.ties, found.different_answers) == (0, 0)
        for name, reference in slow.evaluation.sets.items():
            seen = fast.sets[name]
            assert seen.generated == reference.generated
            np.testing.assert_array_equal(seen.perturbed_tokens, reference.perturbed_tokens)

    @pytest.mark.parametrize("first", [0.1, np.nan])
    def test_a_wrong_loss_is_found(self, asked: Any, both: Both, first: float) -> None:
        plain, slow, fast = both
        moved = fast.sets["retain"].answer_loss + np.array([first, 0, 0, 0, 0])
        retain = replace(fast.sets["retain"], answer_loss=moved)
        wrong = replace(fast, sets={**fast.sets, "retain": retain})
        found = evaluation.compare(asked, plain, slow, wrong)
        assert not found.agree
        assert (found.largest_difference is None) is bool(np.isnan(first))

    def test_a_wrong_answer_is_found_unless_it_departs_at_a_tie(
        self, asked: Any, both: Both, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain, slow, fast = both
        assert fast.answers is not None
        first, *others = fast.answers["forget"]
        changed = (*first[:3], (first[3] + 1) % 300, *first[4:])
        wrong = replace(fast, answers={**fast.answers, "forget": (changed, *others)})
        found = evaluation.compare(asked, plain, slow, wrong)
        assert (found.agree, found.ties, found.different_answers) == (False, 0, 1)
        tied: Callable[..., Any] = lambda *_: np.array([1.0, 1.0, 1.0, 0.0, 1.0])  # noqa: E731
        monkeypatch.setattr(evaluation, "top_gaps", tied)
        found = evaluation.compare(asked, plain, slow, wrong)
        assert (found.agree, found.ties, found.different_answers) == (True, 1, 0)

    def test_gaps_are_those_of_the_largest_two_logits(self, asked: Any) -> None:
        prompt, answer = (1, 40, 41), (50, 60)
        logits = asked(torch.tensor([[*prompt, *answer]])).logits[0, 2:].detach().double()
        two = logits.sort(dim=1, descending=True).values[:, :2]
        gaps = evaluation.top_gaps(asked, prompt, answer)
        np.testing.assert_allclose(gaps, two[:, 0] - two[:, 1], atol=1e-6)

    def test_the_plain_way_computes_what_the_usual_one_does(self, asked: Any, both: Both) -> None:
        """Labels are passed, every variant by itself in dataset order, prompts padded left."""
        plain, _, _ = both
        inputs: list[dict[str, Any]] = []

        class Watched(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = asked

            def forward(self, **given: Any) -> Any:
                inputs.append(given)
                return self.inner(**given)

            def generate(self, **given: Any) -> Any:
                inputs.append(given)
                return self.inner.generate(**given)

        plain(Watched())
        scored = [given for given in inputs if "labels" in given]
        generated = [given for given in inputs if "max_new_tokens" in given]
        # Five variants of two sets; of facts, whose base is the answer, four.
        assert len(scored) == 2 * 5 + 2 * 4
        pairs = zip(scored[0]["input_ids"], scored[0]["attention_mask"], strict=True)
        rows = [ids[: mask.sum()].tolist() for ids, mask in pairs]
        assert rows == [list(several[0].ids) for several in plain.rows["retain"]]
        assert len(generated) == 4
        assert all(given["use_cache"] and not given["do_sample"] for given in generated)
        assert all(given["attention_mask"][:, -1].all() for given in generated)

    def test_it_measures_a_model_in_each_state(self, capsys: pytest.CaptureFixture[str]) -> None:
        words = ("--size", "quick", "--rows", "1", "--repeats", "1")
        states = measured(capsys, evaluation.main, *words)["states"]
        assert [each["state"] for each in states] == ["random", "memorised", "unlearned"]
        for each in states:
            median = {way: seconds["median"] for way, seconds in each["seconds"].items()}
            assert each["faster"] == pytest.approx(median["plain"] / median["fast"])
            assert each["agreement"]["agree"]
            assert each["peak_bytes"].keys() == {"plain", "fast"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, questions: Any) -> str:
    """A random model whose heads share keys and values, in a folder."""
    folder = tmp_path_factory.mktemp("model")
    for part in random_model("llama3-quick", questions):
        part.save_pretrained(folder)
    return str(folder)


class TestModelFolder:
    def test_a_plain_loop_has_the_same_first_loss(
        self, folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        words = (folder, "--forget", "0.05", "--epochs", "1", "--rows", "1", "--repeats", "1")
        result = measured(capsys, peer.main, *words)
        first = result["first_losses"]
        assert first["ours"] == pytest.approx(first["usual"], abs=1e-4)
        for phases in result["seconds"].values():
            assert phases.keys() == {"start", "training", "evaluation"}
        monkeypatch.setattr(peer, "AGREE", -1.0)
        assert "seconds" not in measured(capsys, peer.main, *words, code=1)

    def test_decoding_steps_are_profiled(
        self, folder: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        result = measured(capsys, decoding.main, folder, "--after", "1", "--rows", "60")
        assert result["seconds_a_step"] > 0
        assert any("attention" in name for name in result["attention"])


class TestSweep:
    @staticmethod
    def record(index: int, *, process: int = 1, end: int = 0, value: float = 0.5) -> Record:
        run = make_plan(noop_config(Path(), 8), "none").runs[index]
        made = {"process": process, "finished": f"2026-01-01T00:00:{end:02}+00:00"}
        result = EpochResult(1, {"model_utility": value, "ks_n": None}, 2.0, 1.0)
        return run_record(run, status="finished", profile="p", epochs=(result,), provenance=made)

    def test_two_ways_are_as_far_apart_as_their_metrics(self) -> None:
        runs = [self.record(0), self.record(1)]
        assert sweep.apart(runs, runs) == 0
        assert sweep.apart(runs, [runs[0], self.record(1, value=0.51)]) == pytest.approx(0.01)
        assert sweep.apart(runs, runs[:1]) == float("inf")
        nothing = EpochResult(1, {"model_utility": None, "ks_n": None}, 0, 0)
        assert sweep.apart(runs, [runs[0], replace(runs[1], epochs=(nothing,))]) == float("inf")

    def test_overhead_is_what_a_process_did_between_two_ends_beside_its_work(self) -> None:
        ends = [(0, 1, 10), (1, 2, 11), (2, 1, 14), (3, 1, 19)]
        records = [self.record(index, process=process, end=end) for index, process, end in ends]
        assert sweep.overheads(records) == pytest.approx([14 - 10 - 3, 19 - 14 - 3])

    @pytest.mark.usefixtures("empty_store", "shared_ray")
    @with_mlflow
    def test_both_ways_agree_and_runs_that_do_nothing_are_recorded_once_each(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def here(*words: str) -> None:
            """Run a command in this process: to start another takes seconds."""
            assert unlearnbench([*words]) == 0
            capsys.readouterr()

        monkeypatch.setattr(sweep, "_command", here)
        result = measured(capsys, sweep.main, "--quick", "--repeats", "1", "--noop", "4")
        assert result["runs"] == 1
        assert result["seconds"].keys() == {"loop", "sweep"}
        counts = result["noop"]
        assert counts["runs"] == 4
        assert {v for k, v in counts.items() if k.endswith(("lost", "double"))} == {0}
        assert 0 < counts["driver_peak_bytes"] < 2**33


def test_a_modifier_that_evaluates_twice_takes_longer(capsys: pytest.CaptureFixture[str]) -> None:
    assert modifiers.main(["sam", "--size", "quick", "--repeats", "3"]) == 0
    plain, sam = (line.split() for line in capsys.readouterr().out.splitlines())
    assert (plain[0], plain[-1], sam[0]) == ("plain", "1.00", "sam")
    assert float(sam[-1]) > 1


def test_the_table_of_a_large_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    found = measured(capsys, tables.main, "--runs", "40")
    assert found["rows"] == 2 * 2 + 40 * 6
    assert sum(found["cpu_seconds"].values()) < 10, "10,000 runs take about this time"


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv"])
def test_a_table_of_100_000_rows_is_read_in_seconds_and_little_memory(
    suffix: str, tmp_path: Path
) -> None:
    rows = [{"question": f"Question {i}?", "answer": f"Answer {i}. " * 10} for i in range(100_000)]
    path = tmp_path / f"rows.{suffix}"
    with path.open("w", newline="") as file:
        if suffix == "csv":
            writer = csv.DictWriter(file, ["question", "answer"])
            writer.writeheader()
            writer.writerows(rows)
        elif suffix == "json":
            json.dump(rows, file)
        else:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    code = (
        "import time, unlearnbench.base.tables as t; "
        f"rows = t.read_table(t.TableSource({str(path)!r}), text_columns=['question', 'answer']); "
        "count = sum(1 for _ in rows); "
        # `resource` would know the peak of the process that made this one, if it was higher.
        "peak = open('/proc/self/status').read().partition('VmHWM:')[2].split()[0]; "
        "print(count, time.process_time(), peak)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, seconds, kibibytes = done.stdout.split()
    assert int(count) == 100_000
    assert float(seconds) < 5
    assert int(kibibytes) < 500 * 1024


def test_runs_beside_other_runs_are_compared_with_themselves() -> None:
    def reports(*values: float | None) -> list[dict[str, Any]]:
        return [{"run": str(index), "metrics": {"m": value}} for index, value in enumerate(values)]

    alone, two = {"runs": reports(0.5)}, {"runs": reports(0.5, 0.1)}
    assert gpu_sharing.largest_difference([alone, two]) == 0
    assert gpu_sharing.largest_difference([alone, {"runs": reports(0.25, 0.1)}, two]) == 0.25
    assert gpu_sharing.largest_difference([alone, {"runs": reports(None)}]) == float("inf")
