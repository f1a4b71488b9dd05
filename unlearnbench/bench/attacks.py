"""`unlearnbench bench attacks`: what evaluations under attacks cost beside the plain one.

Each attack is measured as a run carries it out, and again without its evaluations, so that the
share of the rest is known: rounding or training, copies of the weights, putting them back.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from unlearnbench.api import registry
from unlearnbench.api.attack import Attack, AttackRows, FineTune, SamplingAttack, WeightAttack
from unlearnbench.api.benchmark import Benchmark, Question
from unlearnbench.api.observations import Evaluation
from unlearnbench.bench.evaluation_case import EvaluationBenchSettings, EvaluationCase
from unlearnbench.bench.measured_models import MeasuredModels
from unlearnbench.bench.measurement import PrintLine, ResultTable, circumstances, now
from unlearnbench.config.training_settings import MAX_LENGTH
from unlearnbench.data.encoding import Encoder
from unlearnbench.data.loading import load_benchmark
from unlearnbench.data.other_rows import other_rows
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.under_attack import attack_rows, evaluations_under
from unlearnbench.models.loading import quiet_transformers
from unlearnbench.models.restored import restored
from unlearnbench.training.fine_tuning import FineTuner


@dataclass(frozen=True)
class _Tools:
    """Help for attacks on weights, see `api.attack.AttackTools`."""

    rows: AttackRows
    fine_tune: FineTune
    models: MeasuredModels
    state: str

    def start_model(self) -> Any:
        """The measured model, loaded again."""
        return self.models.load(self.state)[0]

    def other_rows(self, source: Benchmark | str) -> tuple[Question, ...]:
        """The training rows of another benchmark, or the rows of a file."""
        return other_rows(source)


@dataclass(frozen=True, eq=False)
class AttackCase:
    """A model to attack, and all that an attack needs."""

    model: Any
    evaluator: Evaluator
    tools: _Tools
    plain: Evaluation

    def evaluated(self, name: str, attack: Attack) -> None:
        """Evaluate the model under an attack, as a run does."""
        of = self.model, self.evaluator, self.tools, self.plain
        for _ in evaluations_under(name, attack, *of):
            pass

    def changed(self, attack: WeightAttack) -> None:
        """Carry out what the attack does to the weights, and restore them."""
        with restored(self.model):
            for _ in attack.change(self.model, self.tools):
                pass

    def seconds(self, work: Callable[[], object]) -> float:
        """The time that some work takes."""
        begin = now(self.model.device)
        work()
        return now(self.model.device) - begin


def bench_attacks(
    settings: EvaluationBenchSettings,
    names: Sequence[str],
    repeats: int,
    folder: Path | None,
    print_line: PrintLine,
) -> dict[str, Any]:
    """Measure attacks with their default settings on a model in each state of the settings.

    folder      where prepared models are stored for later calls; a temporary folder by default
    print_line  called with each line of progress

    Returns the result, ready for JSON.
    """
    quiet_transformers()
    attacks: dict[str, Attack] = {name: registry.load("attacks", name)() for name in names}
    sets = settings.sets()
    roles = settings.benchmark().roles
    rows = attack_rows(load_benchmark(settings.benchmark(), (settings.forget,)), settings.forget)
    states: list[dict[str, Any]] = []
    with ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unlearnbench-")))
        models = MeasuredModels(settings, sets, folder, print_line)
        models.check()
        for state in settings.states:
            model, tokenizer = models.load(state)
            how = settings.precision
            questions = EvaluationCase(sets, tokenizer, settings.rules(), how)
            evaluator = Evaluator(*questions.arguments, precision=how, roles=roles)
            encoder = Encoder(tokenizer, evaluator.encoder.template, MAX_LENGTH)
            tools = _Tools(rows, FineTuner(encoder, evaluator.pad, how), models, state)
            case = AttackCase(model, evaluator, tools, evaluator(model))
            before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            results: list[dict[str, Any]] = []
            for name, attack in attacks.items():
                print_line(f"measuring {name} on the {state} model, {repeats} times")
                results.append(_measured(case, name, attack, repeats))
                after = model.state_dict()
                same = all(torch.equal(tensor, after[name]) for name, tensor in before.items())
                results[-1]["restored"] = same
            count = sum(p.numel() for p in model.parameters())
            states.append({"state": state, "parameters": count, "attacks": results})
    return {
        "bench": "attacks",
        **circumstances(),
        "settings": asdict(settings) | {"repeats": repeats},
        "profile": settings.rules().id,
        "questions": {name: len(questions) for name, questions in sets.items()},
        "states": states,
    }


def _measured(case: AttackCase, name: str, attack: Attack, repeats: int) -> dict[str, Any]:
    """Seconds of each repeat: of a plain evaluation, of the attack, of it without evaluations."""
    case.evaluated(name, attack)  # imports, thread pools and the rows as tokens are not counted
    ways: dict[str, Callable[[], object]] = {
        "plain": lambda: case.evaluator(case.model),
        "attack": lambda: case.evaluated(name, attack),
    }
    if isinstance(attack, WeightAttack):
        ways["weights"] = lambda: case.changed(attack)
    if isinstance(attack, SamplingAttack):
        one = attack.model_copy(update={"samples": 1})
        ways["one_sample"] = lambda: case.evaluated(name, one)
    taken = [{way: case.seconds(work) for way, work in ways.items()} for _ in range(repeats)]
    seconds = {way: [one[way] for one in taken] for way in ways}
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    return {
        "name": name,
        "settings": attack.model_dump(mode="json"),
        "points": len(attack.points()),
        "seconds": seconds,
        "median_seconds": medians,
        "limit": asdict(LIMITS[name](attack, medians)) if name in LIMITS else None,
    }


@dataclass(frozen=True)
class Limit:
    """A claim about the cost of an attack, and what was measured."""

    claim: str
    measured: float
    most: float


Medians = Mapping[str, float]


def _quantization(_: Attack, seconds: Medians) -> Limit:
    evaluations = max(seconds["attack"] - seconds["weights"], 1e-9)
    return Limit("attack, of its evaluations", seconds["attack"] / evaluations, 1.05)


def _relearning(attack: Attack, seconds: Medians) -> Limit:
    share = (seconds["attack"] - seconds["weights"]) / seconds["plain"]
    return Limit(f"evaluations at {len(attack.points())} points, of a plain one", share, 1.5)


def _sampling(attack: Attack, seconds: Medians) -> Limit:
    samples = getattr(attack, "samples", 1)
    share = seconds["attack"] / (samples * seconds["one_sample"])
    return Limit(f"attack, of {samples} attacks with a sample each", share, 0.5)


LIMITS: Mapping[str, Callable[[Attack, Medians], Limit]] = {
    "quantization": _quantization,
    "relearning": _relearning,
    "sampling": _sampling,
}
"""Claims by attack, in terms of the medians of its seconds."""


def tables(result: dict[str, Any]) -> tuple[ResultTable, ...]:
    """Seconds of each attack; then what is claimed of them."""
    first, how = result["states"][0], result["settings"]
    questions = sum(result["questions"].values())
    title = (
        f"{first['parameters'] / 1e6:.3g}M parameters, {how['dtype']}, {questions} questions, "
        f"profile {result['profile']}"
    )
    found = [(state["state"], one) for state in result["states"] for one in state["attacks"]]
    seconds = [_seconds(*pair) for pair in found]
    columns = ("model", "attack", "points", "plain", "attack", "without evaluations", "weights")
    claims = [_claim(state, one, one["limit"]) for state, one in found if one["limit"]]
    limits = ResultTable(("model", "attack", "claim", "measured", "at most"), claims)
    return ResultTable(columns, seconds, title), limits


def _seconds(state: str, one: dict[str, Any]) -> tuple[str, ...]:
    medians = one["median_seconds"]
    took = [f"{medians[way]:.3g} s" for way in ("plain", "attack")]
    took.append(f"{medians['weights']:.3g} s" if "weights" in medians else "")
    kept = "as before" if one["restored"] else "CHANGED"
    return state, one["name"], str(one["points"]), *took, kept


def _claim(state: str, one: dict[str, Any], claim: dict[str, Any]) -> tuple[str, ...]:
    measured, most = claim["measured"], claim["most"]
    verdict = "" if measured <= most else ", MORE"
    return state, one["name"], claim["claim"], f"{measured:.3f}{verdict}", f"{most:g}"
