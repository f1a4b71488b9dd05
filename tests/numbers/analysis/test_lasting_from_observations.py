"""Lasting of random records, recomputed from their observations with NumPy alone."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from unlearnbench.analysis.attack_text import attack_sentences, single_attack_sentences
from unlearnbench.analysis.lasting import AttackedSetting
from unlearnbench.analysis.results import Results
from unlearnbench.api.observations import Evaluation, FloatArray, IntArray, Samples, SetEvaluation
from unlearnbench.config.profiles import TOFU
from unlearnbench.results import asked_rows
from unlearnbench.results.records import EpochResult, Record, write_record
from unlearnbench.results.stored_table import write_table

from .conftest import record

COLUMN = "probability_forget"
POINTS = {
    "paraphrase": ("paraphrase",),
    "quantization": ("quantization@int8", "quantization@nf4"),
    "relearning": ("relearning@0", "relearning@1", "relearning@13"),
    "sampling": ("sampling",),
}
SAMPLES = 16
"""Sampled answers to each question, which is also the k of the metric: the best of all counts."""
LEAVE_ROWS_OUT = {"paraphrase", "relearning"}
LEAST_KEPT, LEAST_REMOVED = 0.8, 0.25


def evaluation(
    probabilities: FloatArray,
    questions: Sequence[str],
    rouge: FloatArray,
    places: IntArray | None = None,
    best: FloatArray | None = None,
) -> Evaluation:
    """The forget set with the probabilities of its true answers and ROUGE-L of the greedy ones.

    best  ROUGE-L of the best sampled answer to each question
    """
    n = len(probabilities)
    samples = None
    if best is not None:
        scores = best[:, None] * np.linspace(0, 1, SAMPLES)  # [n, s]
        samples = Samples((("",) * SAMPLES,) * n, scores)
    ones, losses = np.ones(n, dtype=np.int64), -np.log(probabilities)
    asked = range(n) if places is None else places.tolist()
    texts = tuple(str(questions[i]) for i in asked)
    rows = SetEvaluation(
        *(texts, texts, ("the same answer",) * n, losses, ones, losses, ones),
        *(np.full((n, 2), 10.0), np.ones((n, 2), dtype=np.int64), np.ones(n), rouge),
        places=places,
        samples=samples,
    )
    return Evaluation(TOFU.id, {"forget": rows})


@dataclass
class Model:
    """A model with what was observed of it."""

    kind: Any
    plain: FloatArray
    """Probabilities."""
    rouge: FloatArray
    """ROUGE-L of the greedy answers."""
    under: dict[str, FloatArray] = field(default_factory=dict[str, FloatArray])
    """By variant, of the rows that the attack asked: probabilities, or the best of samples."""
    kept: float = 0.9
    rate: float = 1e-5
    seed: int = 0

    @property
    def epoch(self) -> int:
        return int(self.kind == "run")


class RandomPanel:
    """Start and retain models and runs under attacks, some of which are missing."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        n = int(self.rng.integers(6, 25))
        # Few different texts, the empty one among them, so that rows are not told by their text.
        self.questions = [f"Who is {i}?" * bool(i) for i in self.rng.integers(0, 4, n)]
        self.places: dict[str, IntArray] = {}
        for attack in POINTS:
            size = int(self.rng.integers(3, n)) if attack in LEAVE_ROWS_OUT else n
            self.places[attack] = np.sort(self.rng.choice(n, size, replace=False))
        self.start = self.model("fine-tuned", 0.7, 1.0)
        self.retain = self.model("retain", 0.0, 0.3)
        self.runs = [
            self.model("run", low, low + 0.3, rate=rate, seed=s, kept=kept)
            for rate in (1e-5, 1e-4)
            for low, kept in [(self.rng.uniform(0, 0.6), self.rng.choice([0.9, 0.75, 0.5]))]
            for s in range(int(self.rng.integers(1, 4)))
        ]
        if self.rng.random() < 0.4:  # One run lacks an attack, or its last point.
            lacking = self.rng.choice(len(self.runs))
            attack = self.rng.choice([*POINTS])
            for variant in POINTS[attack][-int(self.rng.integers(1, 4)) :]:
                self.runs[lacking].under.pop(variant, None)

    def model(self, kind: str, low: float, high: float, **more: Any) -> Model:
        probabilities, rouge = self.rng.uniform(low, high, (2, len(self.questions))) + 1e-3
        made = Model(kind, probabilities, rouge, **more)
        for attack, points in POINTS.items():
            gain = self.rng.uniform(0, 0.5)
            before = rouge if attack == "sampling" else probabilities[self.places[attack]]
            for point in points:
                share = 0.0 if point.endswith("@0") else self.rng.uniform(-0.3, 1) * gain
                noise = self.rng.uniform(-0.05, 0.05, len(before))
                made.under[point] = np.clip(before + share + noise, 1e-3, 1.0)
        return made

    def records(self) -> Iterator[Record]:
        for model in (self.start, self.retain, *self.runs):
            yield from self._records(model)

    def _records(self, model: Model) -> Iterator[Record]:
        numbers = {
            "model_utility": model.kept,
            "log10_forget_quality": -5.0,
            COLUMN: float(model.plain.mean()),
            "rouge_forget": float(model.rouge.mean()),
        }
        name = f"{model.kind}-{round(1 / model.rate)}-{model.seed}"
        plain = {model.epoch: evaluation(model.plain, self.questions, model.rouge)}
        results: list[EpochResult] = []
        evaluations: dict[tuple[int, str], Evaluation] = {}
        for variant, values in model.under.items():
            places = self.places[variant.partition("@")[0]]
            metrics = {COLUMN: float(values.mean())}
            seen = evaluation(values, self.questions, np.ones(len(places)), places)
            if variant == "sampling":  # The greedy answers are as without it.
                best = {"expected_best_forget": float(values.mean())}
                metrics = numbers | best
                seen = evaluation(model.plain, self.questions, model.rouge, best=values)
            elif len(places) == len(self.questions):
                seen = evaluation(values, self.questions, np.ones(len(places)))
            results.append(EpochResult(model.epoch, metrics, 1.0, 1.0, variant))
            evaluations[model.epoch, variant] = seen
        attacked = {"attacked": tuple(results), "attacked_evaluations": evaluations}
        run = {"method": "npo", "learning_rate": model.rate, "seed": model.seed}
        if model.kind == "run":
            yield record(name, [numbers], "run", evaluations=plain, **run, **attacked)
        else:
            yield record(name, [numbers], model.kind, evaluations=plain)
            yield record(f"{name}-attacked", [], model.kind, **attacked)

    def before(self, model: Model, variant: str) -> FloatArray:
        attack = variant.partition("@")[0]
        if attack == "relearning":
            return model.under["relearning@0"]
        if attack == "sampling":
            return model.rouge
        return model.plain[self.places[attack]]

    def expected(self, runs: Sequence[Model]) -> tuple[float, str] | None:
        """Lasting and the worst variant of the runs of one setting, by the definition."""
        wanted = {v for run in self.runs for v in run.under if v != "relearning@0"}
        if np.mean([run.kept for run in runs]) < LEAST_KEPT * self.start.kept:
            return None
        if any(not wanted <= run.under.keys() for run in runs):
            return None
        if any("relearning@0" not in run.under and "relearning@1" in wanted for run in runs):
            return None
        shares: dict[str, float] = {}
        for variant in wanted:
            start, retain = (
                self.before(other, variant).mean() for other in (self.start, self.retain)
            )
            before = np.mean([self.before(run, variant).mean() for run in runs])
            after = np.mean([run.under[variant].mean() for run in runs])
            if (start - before) / (start - retain) < LEAST_REMOVED:
                continue
            taught = max(0.0, self.retain.under[variant].mean() - retain)
            shares[variant] = float(1 - (after - before - taught) / (start - before))
        if not shares:
            return None
        worst = min(shares, key=lambda variant: shares[variant])
        return shares[worst], worst

    def excess(self, run: Model, variant: str) -> FloatArray:
        """Gain of each question beyond the retain model's."""
        gains = run.under[variant] - self.before(run, variant)
        taught = self.retain.under[variant] - self.before(self.retain, variant)
        result: FloatArray = gains - taught if taught.mean() > 0 else gains
        return result


def by_setting(panel: RandomPanel) -> Mapping[float, list[Model]]:
    settings: dict[float, list[Model]] = {}
    for run in panel.runs:
        settings.setdefault(run.rate, []).append(run)
    return settings


@pytest.mark.parametrize("seed", range(80))
def test_lasting_is_what_the_observations_say(seed: int) -> None:
    panel = RandomPanel(seed)
    if any("relearning@0" not in run.under and "relearning@1" in run.under for run in panel.runs):
        pytest.skip("an attack that trains always has its point 0")
    (found,) = Results.of(panel.records(), name="").lasting
    settings = {item.setting.learning_rate: item for item in found.settings}
    assert found.column.name == COLUMN
    for rate, runs in by_setting(panel).items():
        setting, expected = settings[rate], panel.expected(runs)
        if expected is None:
            assert (setting.lasting, setting.worst) == (None, None)
            assert setting.why_not
            continue
        assert setting.worst is not None, setting.why_not
        assert setting.lasting == pytest.approx(expected[0])
        assert setting.worst.variant == expected[1]
        if len(runs) == 1:
            check_questions(setting, panel.excess(runs[0], expected[1]))
    best = {item.setting.learning_rate: item.lasting for item in found.best}
    assert best.items() <= {rate: item.lasting for rate, item in settings.items()}.items()
    assert attack_sentences(found)


def check_questions(setting: AttackedSetting, excess: FloatArray) -> None:
    """Compare the interval with Student's t over questions, widened for the number of points."""
    interval = setting.lasting_interval
    assert interval is not None
    assert (interval.over, interval.n) == ("questions", len(excess))
    level = 1 - 0.05 / len(setting.scored)
    low, high = stats.t.interval(level, len(excess) - 1, excess.mean(), stats.sem(excess))
    assert setting.worst is not None
    removed = (setting.worst.start.before or 0.0) - (setting.worst.before or 0.0)
    lasting = setting.lasting or 0.0
    ends = [1 - high / removed, 1 - low / removed]
    # An end is cut at 0 or 1, unless lasting itself lies beyond it.
    if lasting >= 0:
        ends[0] = max(0.0, ends[0])
    if lasting <= 1:
        ends[1] = min(1.0, ends[1])
    assert (interval.low, interval.high) == pytest.approx(tuple(ends))
    assert interval.low <= lasting <= interval.high
    assert setting.comes_back is bool(low > 0)
    assert not setting.gives_little


@pytest.mark.parametrize("seed", range(20))
def test_plain_numbers_are_of_the_rows_that_were_asked(seed: int) -> None:
    """By their places: several rows have one text, and some have none."""
    panel = RandomPanel(seed)
    results = Results.of(panel.records(), name="")
    places = panel.places["paraphrase"]
    before = {
        (row.kind, row.learning_rate, row.seed): row.metrics[COLUMN]
        for row in results.before
        if row.variant == "paraphrase"
    }
    for model in (panel.start, panel.retain):
        assert before[model.kind, None, 0] == pytest.approx(model.plain[places].mean())
    for run in panel.runs:
        if "paraphrase" in run.under:
            assert before["run", run.rate, run.seed] == pytest.approx(run.plain[places].mean())
    assert not [row for row in results.before if row.variant.startswith("quantization")]


def test_epoch_0_of_a_run_stands_for_a_start_model_without_a_row() -> None:
    """Of a start model with a row, epoch 0 of each run would be computed in vain."""
    panel = RandomPanel(1)
    start = panel.start
    epoch_0 = {0: evaluation(start.plain, panel.questions, start.rouge)}
    numbers = {"model_utility": 0.9, COLUMN: float(start.plain.mean())}

    def begun(one: Record) -> Record:
        if one.kind != "run":
            return one
        epochs = (EpochResult(0, numbers, 1.0, 1.0), *one.epochs)
        return replace(one, epochs=epochs, evaluations={**epoch_0, **one.evaluations})

    records = [begun(one) for one in panel.records()]
    with_start = Results.of(records, name="").before
    assert not [row for row in with_start if row.kind == "run" and row.epoch == 0]
    lacking = [one for one in records if one.kind != "fine-tuned"]
    without = [row for row in Results.of(lacking, name="").before if row.epoch == 0]
    expected = start.plain[panel.places["paraphrase"]].mean()
    of_runs = [row.metrics[COLUMN] for row in without if row.variant == "paraphrase"]
    assert expected in [pytest.approx(value) for value in of_runs]


def test_numbers_before_attacks_are_stored_with_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = RandomPanel(3)
    for one in panel.records():
        write_record(one, tmp_path)
    first = Results.read(tmp_path)
    assert {row.variant for row in first.before} == {"paraphrase"}
    assert all(row.key for row in first.before)
    assert len({row.key for row in first.before}) == len(first.before)
    write_table(first.table, tmp_path)

    def fail(*_: Any) -> Any:
        raise AssertionError("they are in the stored table")

    monkeypatch.setattr(asked_rows, "_numbers_before", fail)
    again = Results.read(tmp_path)
    assert [(row.run_id, row.key, row.metrics[COLUMN]) for row in again.before] == [
        (row.run_id, row.key, row.metrics[COLUMN]) for row in first.before
    ]
    assert [item.lasting for item in again.lasting[0].settings] == [
        item.lasting for item in first.lasting[0].settings
    ]


def test_a_file_that_cannot_be_read_is_named_in_a_note(tmp_path: Path) -> None:
    for one in RandomPanel(3).records():
        write_record(one, tmp_path)
    folder = next((tmp_path / "records").glob("run-*"))
    (folder / "epoch-1.safetensors").write_bytes(b"damaged")
    results = Results.read(tmp_path)
    (note,) = (note for note in results.table.notes if "before attacks" in note)
    assert note.startswith("numbers before attacks are not known of 1 evaluations, because")
    assert "epoch-1.safetensors" in note


class Single:
    """A model that was evaluated by itself, plain and under two points of one attack."""

    def __init__(self, *, before: float = 0.2, after: float = 0.6, kept: float = 0.9) -> None:
        noise = np.linspace(-0.05, 0.05, 12)
        self.panel = RandomPanel(0)
        self.panel.questions = [f"Who is {i}?" for i in range(12)]
        self.panel.places = {"quantization": np.arange(12)}
        weak, strong = "quantization@int8", "quantization@nf4"

        def model(kind: str, low: float, high: float, kept: float = 0.9) -> Model:
            spread = noise if kind == "run" else noise / 2
            under = {weak: low + spread, strong: high - spread}
            return Model(kind, low + spread, low + spread, under, kept=kept)

        self.panel.start = model("fine-tuned", 0.9, 0.9)
        self.panel.retain = model("retain", 0.1, 0.2)
        self.panel.runs = [model("run", before, after, kept)]

    def sentences(self, *without: str) -> tuple[str, ...]:
        records = [one for one in self.panel.records() if one.kind not in without]
        (found,) = Results.of(records, name="").lasting
        return single_attack_sentences(found, "quantization")


def test_an_attack_on_one_model_says_what_it_gives_back_with_an_interval() -> None:
    single = Single()
    verdict, change = single.sentences()
    worst = "quantization, nf4, the worst of 2 points"
    excess = single.panel.excess(single.panel.runs[0], "quantization@nf4")
    interval = stats.t.interval(1 - 0.05 / 2, 11, excess.mean(), stats.sem(excess))
    low, high = map(float, interval)
    percent = f"{round(100 * low / 0.7)}, {round(100 * high / 0.7)} % over questions"
    assert verdict == (
        f"{worst}: it gives back 43 % [{percent}] of what was removed: probability, forget goes "
        "from 0.200 to 0.600 (retain model, which never saw these rows: 0.100 to 0.200; start "
        "model: 0.900)."
    )
    assert change.startswith("Gain over 12 questions: +0.400 [")
    assert f"; the retain model's: +0.100; beyond it: +0.300 [{low:+.3f}, {high:+.3f}]." in change


@pytest.mark.parametrize(
    ("single", "without", "reason"),
    [
        (Single(kept=0.6), (), "it keeps less than 80 % of utility."),
        (Single(before=0.75, after=0.9), (), "it forgot too little (less than 25 %) to measure"),
        (Single(), ("retain",), "the retain model was not attacked"),
        (Single(), ("fine-tuned",), "the start model was not evaluated"),
    ],
)
def test_an_attack_on_one_model_is_not_scored_where_the_page_does_not(
    single: Single, without: Sequence[str], reason: str
) -> None:
    verdict, change = single.sentences(*without)
    assert f": not scored: {reason}" in verdict
    assert "gives back" not in verdict
    assert change.startswith("Gain over 12 questions: +")


def test_no_more_than_the_retain_model_gains_is_no_sign() -> None:
    verdict, change = Single(after=0.301).sentences()
    assert ": no sign that anything comes back (0 % [" in verdict
    assert "beyond it: +0.001 [-" in change
