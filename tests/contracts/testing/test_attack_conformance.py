"""Every installed attack conforms; attacks with mistakes that are easily made do not."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import Field
from torch import Tensor

from unlearnbench.analysis.attack_text import attack_sentences
from unlearnbench.analysis.attacked_panels import attacked_panels
from unlearnbench.analysis.best_settings import panels
from unlearnbench.api import registry
from unlearnbench.api.attack import (
    Attack,
    AttackRows,
    AttackTools,
    PromptAttack,
    SamplingAttack,
    WeightAttack,
    has_steps,
    only_samples,
)
from unlearnbench.api.benchmark import Question
from unlearnbench.results.asked_places import asked_places
from unlearnbench.testing import SUITES, AttackConformance, check_plugin
from unlearnbench.testing.attack_checks import TriedAttack

from ...numbers.analysis.conftest import table_row


class TestExamplesOfTheSubject(AttackConformance):
    """A subclass as a plug-in's author writes it, with settings."""

    attack = "in-context"
    settings = {"of": "subject"}  # noqa: RUF012  # as short as authors write it


FEW: dict[str, Any] = {"steps": (1, 3), "batch_size": 4}
"""Settings of attacks that train, for seconds less."""


@pytest.mark.parametrize("name", registry.names("attacks"))
def test_every_installed_attack_conforms(name: str) -> None:
    results = check_plugin("attacks", name, FEW if name in ("relearning", "fine-tuning") else {})
    assert [r.check.name for r in results] == [check.name for check in SUITES["attacks"]]
    wrong = [(r.check.name, r.outcome.seen) for r in results if r.outcome.verdict == "fault"]
    assert not wrong


@pytest.mark.parametrize("name", ["fine-tuning", "relearning"])
def test_a_search_conforms(name: str) -> None:
    """Also of the half of the rows that relearning measures, each part has a row."""
    search = {"search": {"learning_rate": (1e-4, 1e-3)}, "trials": 2, "steps": (1,)}
    results = check_plugin("attacks", name, FEW | search)
    seen = {r.check.name: r.outcome.verdict for r in results}
    assert seen == {check.name: "passed" for check in SUITES["attacks"]}


STEPPED = {"fine-tuning", "relearning"}
"""Attacks whose points are steps. All others have one point, or codes, depths or texts."""


@pytest.mark.parametrize("name", registry.names("attacks"))
def test_what_an_attack_is_measured_by_can_move_under_it(name: str) -> None:
    """Or it has no Lasting: equal numbers would say that nothing comes back, by construction."""
    kind: type[Attack] = registry.load("attacks", name)
    assert has_steps(kind) is (name in STEPPED)

    attack = kind.model_validate(FEW if name in STEPPED else {})
    tried = TriedAttack(attack, name)
    evaluations, plain, moved = tried.whole.evaluations, tried.plain, False
    for evaluation in evaluations.values():
        for set_name, seen in evaluation.sets.items():
            whole = plain.sets[set_name]
            places = asked_places(whole, seen)
            assert places is not None
            # Batches of other rows round otherwise.
            same = np.allclose(seen.answer_loss, whole.answer_loss[places], rtol=1e-4)
            moved = moved or not same
    assert moved is not only_samples(kind), "what the class says holds for a model"

    numbers = {"extraction_strength_forget": 0.1, "model_utility": 0.9}
    models = [
        table_row("fine-tuned", "fine-tuned", {**numbers, "extraction_strength_forget": 0.9}),
        table_row("retain", "retain", numbers),
        table_row("run", "npo", {**numbers, "log10_forget_quality": -5.0}),
    ]
    variants = [variant for variant in evaluations if not variant.endswith("@0")]
    unmoved = [replace(model, variant=variant) for model in models for variant in variants]
    (panel,) = attacked_panels(panels(models), unmoved)
    (setting,) = panel.settings
    (sentence, *_) = attack_sentences(panel)
    assert (setting.lasting is None) is only_samples(kind)
    assert ("comes back" not in sentence) is only_samples(kind)
    assert len(setting.curves) == (name in STEPPED)


class Polite(PromptAttack):
    """Own work."""

    label = "Politely"

    words: str = Field(default="Please: ", description="in front of the question")

    def asked(self, row: Question, point: str, rows: AttackRows) -> Question:
        del point, rows
        return replace(row, question=self.words + row.question)


class Same(Polite):
    """Own work."""

    def points(self) -> tuple[str, ...]:
        return "polite", "same"

    def asked(self, row: Question, point: str, rows: AttackRows) -> Question:
        return row if point == "same" else super().asked(row, point, rows)


_clock = itertools.count()


class Asked(SamplingAttack):
    """Own work."""

    label = "Asked otherwise, and often"

    def asked(self, row: Question, point: str, rows: AttackRows) -> Question:
        del point, rows
        return replace(row, question=f"Please: {row.question}")


def test_an_attack_that_samples_and_asks_otherwise_moves_greedy_answers_as_well() -> None:
    assert only_samples(registry.load("attacks", "sampling"))
    assert not only_samples(Asked)
    assert not only_samples(Polite)


class Clocked(Polite):
    """Own work."""

    def content(self) -> str:
        return str(next(_clock))


class Rewriting(Polite):
    """Own work."""

    def asked(self, row: Question, point: str, rows: AttackRows) -> Question:
        del point, rows
        return replace(row, answer=f"Sure: {row.answer}")


class Leading(Polite):
    """Own work."""

    def asked(self, row: Question, point: str, rows: AttackRows) -> Question:
        del point, rows
        return replace(row, examples=(("What do you think?", f"Well, {row.answer.upper()}!"),))


def nothing(*_: object) -> None:
    """A hook that does nothing."""


class Noise(WeightAttack):
    """Own work."""

    label = "Noise"

    def points(self) -> tuple[str, ...]:
        return ("1", "2")

    def change(self, model: Any, tools: AttackTools) -> Iterator[str]:
        del tools
        generator = self.generator()
        for point in self.points():
            with torch.no_grad():
                for weight in model.parameters():
                    weight.add_(0.01 * torch.randn(weight.shape, generator=generator))
            yield point

    def generator(self) -> torch.Generator | None:
        return torch.Generator().manual_seed(0)


class Short(Noise):
    """Own work."""

    def change(self, model: Any, tools: AttackTools) -> Iterator[str]:
        del model, tools
        yield "1"


class Training(Noise):
    """Own work."""

    def change(self, model: Any, tools: AttackTools) -> Iterator[str]:
        model.train()
        yield from super().change(model, tools)


class Stepped(Noise):
    """Own work."""

    points_are = "steps"

    def points(self) -> tuple[str, ...]:
        return "1", "end"


class PoliteSteps(Polite):
    """Own work."""

    points_are = "steps"


class Trained(Noise):
    """Own work."""

    trains = True


def test_points_are_steps_of_attacks_that_train_unless_they_say_something_else() -> None:
    assert has_steps(Trained)
    assert not has_steps(Noise)
    assert not has_steps(Polite)


class Hurried(Noise):
    """Own work."""

    def change(self, model: Any, tools: AttackTools) -> Iterator[str]:
        handle = model.lm_head.register_forward_hook(nothing)
        yield from super().change(model, tools)
        handle.remove()


class Unseeded(Noise):
    """Own work."""

    def generator(self) -> torch.Generator | None:
        generator = torch.Generator()
        generator.seed()
        return generator


class Seeding(Noise):
    """Own work."""

    def generator(self) -> torch.Generator | None:
        torch.manual_seed(0)
        return None


class Borrowing(Noise):
    """Own work."""

    def change(self, model: Any, tools: AttackTools) -> Iterator[str]:
        start = tools.start_model()
        with torch.no_grad():
            start.lm_head.weight.mul_(0.5)
        yield from super().change(model, tools)


_first: dict[str, Tensor] = {}


class Carrying(Noise):
    """Own work."""

    def change(self, model: Any, tools: AttackTools) -> Iterator[str]:
        if not _first:
            _first.update({name: w.detach().clone() for name, w in model.named_parameters()})
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(_first[name])
        yield from super().change(model, tools)


def faults(kind: type[Attack]) -> dict[str, str]:
    found = check_plugin("attacks", kind)
    return {r.check.name: r.outcome.seen for r in found if r.outcome.verdict == "fault"}


@pytest.mark.parametrize(
    ("kind", "checks", "seen"),
    [
        (Short, "restored", "ends before its point '2'"),
        (Training, "restored", "Noise@1: a module is in training mode"),
        (Stepped, "points", "points_are is steps, and its points are '1', 'end'"),
        (PoliteSteps, "points", "only a WeightAttack trains"),
        (Same, "answers", "at point 'same' no prompt differs from the row's"),
        (Rewriting, "answers", "answer of "),
        (Leading, "answers", "has its answer in it"),
        (Hurried, "restored", "closed at its first point: hooks of 'lm_head'"),
        (Borrowing, "restored", "of the start model: values of 'model.embed_tokens.weight'"),
        (Clocked, "repeatable", "of an equal attack"),
        (Unseeded, "repeatable", "other values of Unseeded@1 on set"),
        (Seeding, "repeatable", "uses or seeds torch's global generator"),
        (Carrying, "null", "the retain model has the losses of another model on set forget"),
    ],
)
def test_a_mistake_is_found_by_the_check_that_is_for_it(
    kind: type[Attack], checks: str, seen: str
) -> None:
    found = faults(kind)
    assert [*found] == checks.split(), found
    assert seen.replace("Noise", kind.__name__) in found[checks.split()[0]], found


@pytest.mark.parametrize("kind", [Polite, Noise])
def test_an_attack_without_a_mistake_has_no_fault(kind: type[Attack]) -> None:
    assert faults(kind) == {}
