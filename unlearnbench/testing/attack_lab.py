"""The models, rows and tools that attacks are checked on: small Llamas that have learned some rows.

Three models: the start model has learned all rows, the model under attack has moved a little away
from it, and the retain model never saw the forget rows.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, Literal

import numpy as np
import torch

from unlearnbench.api.attack import Attack, AttackRows
from unlearnbench.api.benchmark import Benchmark, Question
from unlearnbench.api.observations import Evaluation
from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.config.profiles import get_profile
from unlearnbench.config.schema import Architecture
from unlearnbench.data.encoding import Encoder, resolve_template
from unlearnbench.data.loading import load_benchmark
from unlearnbench.data.other_rows import other_rows
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.under_attack import attack_rows, evaluations_under
from unlearnbench.models.loading import pad_id
from unlearnbench.models.tiny import build_model, build_tokenizer
from unlearnbench.testing.model_snapshot import ModelSnapshot
from unlearnbench.training.fine_tuning import FineTuner

Target = Literal["model", "start", "retain"]

_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
_SHAPE = Architecture(
    vocabulary=400, hidden_size=32, layers=2, heads=2, intermediate_size=64, context=1024
)
_LENGTH, _ANSWER, _STEPS, _ROWS = 200, 6, 15, 4


@dataclass(frozen=True)
class _Models:
    """The models that all attacks are tried on; made once in a process, and only copied."""

    evaluator: Evaluator
    rows: AttackRows
    tuner: FineTuner
    models: Mapping[Target, Any]
    plain: Mapping[Target, Evaluation]


@cache
def _prepared() -> _Models:
    data = Synthetic(authors=4, questions_per_author=3, pretraining_authors=0)
    benchmark = load_benchmark(data, (0.5,))
    rows = attack_rows(benchmark, 0.5)
    tokenizer = build_tokenizer((f"{q.question} {q.answer}" for q in benchmark.full), 400)
    tokenizer.chat_template = _TEMPLATE
    template, pad = resolve_template("chat", tokenizer), pad_id(tokenizer)
    roles = data.roles
    # The holdout set is only scored, and no attack has its role.
    sets = {
        name: tuple(replace(q, max_new_tokens=_ANSWER) for q in own[:_ROWS])
        for name, own in benchmark.splits[0.5].sets.items()
        if roles[name] != "holdout"
    }
    profile = get_profile("tofu", max_length=_LENGTH)
    evaluator = Evaluator(sets, tokenizer, template, profile, pad, roles=roles)
    tuner = FineTuner(Encoder(tokenizer, template, _LENGTH), pad)

    def learned(known: tuple[Question, ...]) -> Any:
        model: Any = build_model(_SHAPE, tokenizer, seed=0).eval()
        for _ in tuner(model, known, steps=_STEPS, learning_rate=1e-2, batch_size=len(known)):
            pass
        return model

    start = learned((*rows.forget, *rows.retain))
    moved = copy.deepcopy(start)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in moved.parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.add_(0.1 * parameter.abs().mean() * drawn)
    models: dict[Target, Any] = {"model": moved, "start": start, "retain": learned(rows.retain)}
    plain: dict[Target, Evaluation] = {name: evaluator(model) for name, model in models.items()}
    return _Models(evaluator, rows, tuner, models, plain)


@dataclass
class LabTools:
    """The tools of attacks, which count what is taken from them."""

    rows: AttackRows
    tuner: FineTuner
    start: Any
    """A copy of the start model."""
    fine_tunings: int = 0

    def fine_tune(self, model: Any, rows: Any, **how: Any) -> Generator[int, None, None]:
        """Train the model, see `api.attack.FineTune`."""
        self.fine_tunings += 1
        yield from self.tuner(model, rows, **how)

    def start_model(self) -> Any:
        """The start model."""
        return self.start

    def other_rows(self, source: Benchmark | str) -> tuple[Question, ...]:
        """The rows of another benchmark or of a file."""
        return other_rows(source)


@dataclass
class LabRun:
    """One model under the attack, up to a point or to its end."""

    evaluations: dict[str, Evaluation] = field(default_factory=dict[str, Evaluation])
    """By variant."""
    unready: str = ""
    """The first variant at which the model is not ready to be evaluated, and why."""
    changed: str = ""
    """What of the model is not what it was; empty if all is."""
    start_changed: str = ""
    """The same of the start model."""
    drawn: tuple[str, ...] = ()
    """Global generators of random numbers that were used or seeded."""
    error: BaseException | None = None
    """What was raised in place of the error of an evaluation."""


class _EvaluationError(Exception):
    """The error of an evaluation that fails."""


class AttackLab:
    """An attack with models, rows and tools to run it on."""

    def __init__(self, attack: Attack, name: str = "attack") -> None:
        self.attack, self.name = attack, name

    @property
    def rows(self) -> AttackRows:
        """The rows that the attack may use, with answers that are nobody's."""
        rows = _prepared().rows
        questions = [q.question for own in self.sets.values() for q in own]
        return replace(rows, answers=dict.fromkeys(questions, "I am not sure."))

    @property
    def sets(self) -> dict[str, tuple[Question, ...]]:
        """The rows of the sets that are evaluated under the attack."""
        evaluator = _prepared().evaluator
        return {
            name: tuple(item.question for item in items)
            for name, items in evaluator.sets.items()
            if evaluator.roles[name] in self.attack.roles
        }

    def plain(self, of: Target) -> Evaluation:
        """The evaluation of a model without the attack."""
        return _prepared().plain[of]

    @cached_property
    def whole(self) -> LabRun:
        """The model under the whole attack."""
        return self.run()

    def run(
        self, of: Target = "model", *, until: int | None = None, fails: bool = False, seed: int = 0
    ) -> LabRun:
        """Attack a copy of a model.

        until  number of evaluations after which the attack is closed
        fails  the last of these raises an error in place of that
        seed   of the global generators of random numbers

        Raises: whatever the attack raises, unless an evaluation fails.
        """
        made, found = _prepared(), LabRun()
        model, start = copy.deepcopy(made.models[of]), copy.deepcopy(made.models["start"])
        tools = LabTools(made.rows, made.tuner, start)
        before, start_before = ModelSnapshot(model), ModelSnapshot(start)
        # Of its own, because the shared one remembers the rows as an attack of this name asks them.
        evaluator = copy.copy(made.evaluator)
        evaluator.derived = {}
        attacked: Any = evaluations_under(
            self.name, self.attack, model, evaluator, tools, made.plain[of]
        )
        with seeded(seed) as unchanged:
            try:
                with closing(attacked) as evaluations:
                    for name, evaluation in evaluations:
                        found.evaluations[name] = evaluation
                        reason = _unready(model, trained=tools.fine_tunings > 0)
                        found.unready = found.unready or (reason and f"{name}: {reason}")
                        if len(found.evaluations) == until:
                            if fails:
                                attacked.throw(_EvaluationError())
                            break
            except _EvaluationError:
                pass
            except Exception as error:
                if not fails:
                    raise
                found.error = error
            found.drawn = tuple(name for name, same in unchanged().items() if not same)
        found.changed = before.difference(model)
        found.start_changed = start_before.difference(start)
        return found


def _unready(model: Any, *, trained: bool) -> str:
    """The reason why a model is not ready to be evaluated; empty if it is.

    trained  gradients may be left, of the step that was taken
    """
    for name, module in model.named_modules():
        if module.training:
            return f"module {name!r} is in training mode"
    for name, parameter in model.named_parameters():
        if not trained and parameter.grad is not None:
            return f"weight {name!r} has a gradient"
    return ""


@contextmanager
def seeded(seed: int) -> Generator[Callable[[], dict[str, bool]], None, None]:
    """Seed the global generators inside; the yielded function compares them with then."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed)  # the global one is what is watched
    torch.manual_seed(seed)
    numpy_state: Any = np.random.get_state()
    then = random.getstate(), numpy_state, torch.get_rng_state()

    def unchanged() -> dict[str, bool]:
        state: Any = np.random.get_state()
        return {
            "random": random.getstate() == then[0],
            "numpy.random": state[2:] == then[1][2:] and np.array_equal(state[1], then[1][1]),
            "torch": torch.equal(torch.get_rng_state(), then[2]),
        }

    try:
        yield unchanged
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
