"""Every installed attack conforms; attacks with mistakes that are easily made do not."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic import Field
from torch import Tensor

from unlearnbench.api import registry
from unlearnbench.api.attack import (
    Attack,
    AttackRows,
    AttackTools,
    PromptAttack,
    WeightAttack,
)
from unlearnbench.api.benchmark import Question
from unlearnbench.testing import SUITES, AttackConformance, check_plugin


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


class Polite(PromptAttack):
    """Own work."""

    label = "Politely"

    words: str = Field(default="Please: ", description="in front of the question")

    def asked(self, row: Question, point: str, rows: AttackRows) -> Question:
        del point, rows
        return replace(row, question=self.words + row.question)


_clock = itertools.count()


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
