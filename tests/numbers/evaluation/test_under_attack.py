"""Evaluations under attacks by prompts: aligned with the plain one, and as long."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from unlearnbench.api.attack import Attack, AttackRows, AttackTools, PromptAttack, WeightAttack
from unlearnbench.api.benchmark import Question
from unlearnbench.api.observations import Evaluation
from unlearnbench.attacks.assistant_prefix import AssistantPrefix
from unlearnbench.attacks.in_context import InContext
from unlearnbench.attacks.paraphrase import Paraphrase
from unlearnbench.attacks.second_turn import SecondTurn
from unlearnbench.base import deferred_warnings
from unlearnbench.base.errors import EvaluationError
from unlearnbench.config.profiles import get_profile
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.observation_file import read_observations, write_observations
from unlearnbench.models.limits import pad_id
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.runs.under_attack import evaluations_under
from unlearnbench.training.fine_tuning import FineTuner

from ...conftest import QUESTIONS

FORGET, RETAIN = QUESTIONS[:4], QUESTIONS[4:]


@dataclass(frozen=True)
class Rows:
    """The rows, of the tools for attacks; nothing here trains."""

    rows: AttackRows


class SamePrompt(PromptAttack):
    label = "The plain prompt"

    def asked(self, row: Question, point: str, rows: AttackRows) -> Question:
        del point, rows
        return row


class SameWeights(WeightAttack):
    label = "The weights as they are"

    def points(self) -> tuple[str, ...]:
        return ("once", "twice")

    def change(self, model: Any, tools: AttackTools) -> Iterator[str]:
        del model, tools
        yield from self.points()


class MovedWeights(WeightAttack):
    """Puts other weights into other memory, as `Module.to` does."""

    label = "Weights in other memory"

    def points(self) -> tuple[str, ...]:
        return ("moved",)

    def change(self, model: Any, tools: AttackTools) -> Iterator[str]:
        del tools
        with torch.no_grad():
            for weight in model.parameters():
                weight.data = weight + 1
        yield "moved"


def evaluator(tokenizer: Any, max_length: int = 60) -> Evaluator:
    return Evaluator(
        {"retain": RETAIN, "forget": FORGET},
        tokenizer,
        TEMPLATES["plain"],
        get_profile("tofu", max_length=max_length),
        pad_id(tokenizer),
        roles={"retain": "retain", "forget": "forget"},
    )


def under(attack: Attack, model: Any, rules: Evaluator) -> dict[str, Evaluation]:
    plain, tools = (
        rules(model),
        cast("AttackTools", Rows(AttackRows(FORGET, RETAIN, subject_rows=2))),
    )
    return dict(evaluations_under("it", attack, model, rules, tools, plain))


@pytest.mark.parametrize("attack", [SamePrompt(), SameWeights()])
def test_an_identity_has_the_plain_evaluation(attack: Attack, sharp: Any, tokenizer: Any) -> None:
    rules = evaluator(tokenizer)
    plain = rules(sharp).sets["forget"]
    found = under(attack, sharp, rules)
    assert [*found] == (["it"] if attack.points() == ("",) else ["it@once", "it@twice"])
    for evaluation in found.values():
        seen = evaluation.sets["forget"]
        assert [*evaluation.sets] == ["forget"]
        assert (seen.questions, seen.generated) == (plain.questions, plain.generated)
        # Other batches than the plain one's: some CPUs round their sums otherwise.
        np.testing.assert_allclose(seen.answer_loss, plain.answer_loss, rtol=1e-6)
        np.testing.assert_allclose(seen.perturbed_loss, plain.perturbed_loss, rtol=1e-6)


def test_weights_that_an_attack_has_moved_are_restored_as_well(sharp: Any, tokenizer: Any) -> None:
    model = copy.deepcopy(sharp)
    left = [weight.detach() for weight in model.parameters()]  # keeps the memory from new use
    rules = evaluator(tokenizer)
    (found,) = under(MovedWeights(), model, rules).values()
    for weight, old in zip(model.parameters(), left, strict=True):
        assert weight.data_ptr() != old.data_ptr()
    plain = rules(sharp).sets["forget"]
    assert not np.allclose(found.sets["forget"].answer_loss, plain.answer_loss), "it has changed"
    before = {**dict(sharp.named_parameters()), **dict(sharp.named_buffers())}
    after = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    assert [*after] == [*before]
    for name, tensor in after.items():
        assert torch.equal(tensor, before[name]), name


def test_what_an_attack_adds_to_a_prompt_does_not_shorten_its_answer(
    sharp: Any, tokenizer: Any
) -> None:
    rules = evaluator(tokenizer)
    plain = rules(sharp)
    lengths = plain.sets["forget"].answer_tokens
    assert max(len(item.prompt) for item in rules.sets["forget"]) + lengths.max() > 55
    limits = [60 - len(item.prompt) for item in rules.sets["forget"]]
    for attack in (InContext(k=2), SecondTurn(), AssistantPrefix()):
        (found,) = under(attack, sharp, rules).values()
        np.testing.assert_array_equal(found.sets["forget"].answer_tokens, lengths)
        assert found.answers is not None
        pairs = zip(found.answers["forget"], limits, strict=True)
        room = [limit - len(answer) for answer, limit in pairs]
        assert min(room) >= 0, "each answer has the plain one's limit"
        assert max(map(len, found.answers["forget"])) > 20
        own = next(iter(found.sets.values()))
        assert own.questions == tuple(q.question for q in FORGET), "the original ones"
        assert (own.answer_loss != plain.sets["forget"].answer_loss).any()


def test_rows_that_are_left_out_are_left_out_of_the_evaluation(sharp: Any, tokenizer: Any) -> None:
    with pytest.raises(EvaluationError, match="no row to evaluate in sets of role forget"):
        under(Paraphrase(), sharp, evaluator(tokenizer))
    rules = evaluator(tokenizer)
    two = tuple(replace(q, paraphrased_question=f"Tell: {q.question}") for q in FORGET[1:3])
    rules = rules.with_sets({"forget": (FORGET[0], *two)}, {"forget": FORGET[:3]})
    (found,) = under(Paraphrase(), sharp, rules).values()
    assert found.sets["forget"].questions == tuple(q.question for q in FORGET[1:3])
    assert found.sets["forget"].places is not None
    assert found.sets["forget"].places.tolist() == [1, 2]


def test_rows_with_one_question_are_told_apart_by_their_places(
    sharp: Any, tokenizer: Any, tmp_path: Path
) -> None:
    """Their texts are equal, the reference too, and only the second one has another wording."""
    first = FORGET[0]
    second = replace(first, paraphrased_question=f"Tell: {first.question}")
    rows = (first, second, FORGET[1])
    rules = evaluator(tokenizer).with_sets({"forget": rows}, {"forget": rows})
    (found,) = under(Paraphrase(), sharp, rules).values()
    asked = found.sets["forget"]
    assert (asked.questions, asked.references) == ((first.question,), (first.answer,))
    assert asked.places is not None
    assert asked.places.tolist() == [1]
    write_observations(found, tmp_path / "part.safetensors")
    stored = read_observations(tmp_path / "part.safetensors").sets["forget"].places
    assert stored is not None
    assert stored.tolist() == [1]


def test_an_evaluation_of_all_rows_stores_no_places(
    sharp: Any, tokenizer: Any, tmp_path: Path
) -> None:
    """Its file has the bytes that it had before places were stored."""
    (found,) = under(SamePrompt(), sharp, evaluator(tokenizer)).values()
    assert found.sets["forget"].places is None
    write_observations(found, tmp_path / "all.safetensors")
    assert b"places" not in (tmp_path / "all.safetensors").read_bytes()


def test_an_attack_that_is_short_of_memory_has_results_up_to_there(
    sharp: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Large(WeightAttack):
        label = "Training that does not fit"

        def points(self) -> tuple[str, ...]:
            return ("0", "1")

        def change(self, model: Any, tools: AttackTools) -> Iterator[str]:
            yield "0"
            tuner = FineTuner(rules.encoder, rules.pad)
            how: Any = {"steps": 1, "learning_rate": 1e-3, "batch_size": 4}
            yield from map(str, tuner(model, tools.rows.forget, **how))

    def no_memory(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    rules = evaluator(tokenizer)
    monkeypatch.setattr(torch.optim.AdamW, "step", no_memory)
    assert [*under(Large(), sharp, rules)] == ["it@0"]
    (notice,) = deferred_warnings.drain()
    assert notice.startswith("no results for it@1: step 1: out of memory in the optimiser")


def test_a_model_that_an_attack_destroys_has_results_up_to_there(
    sharp: Any, tokenizer: Any
) -> None:
    class Destroying(WeightAttack):
        label = "Training that diverges"

        def points(self) -> tuple[str, ...]:
            return ("0", "1", "2", "3")

        def change(self, model: Any, tools: AttackTools) -> Iterator[str]:
            yield "0"
            tuner = FineTuner(rules.encoder, rules.pad)
            how: Any = {"steps": 3, "learning_rate": 1e30, "batch_size": 4}
            yield from map(str, tuner(model, tools.rows.forget, **how))

    rules = evaluator(tokenizer)
    before = {name: value.clone() for name, value in sharp.state_dict().items()}
    plain = rules(sharp).sets["forget"]
    found = under(Destroying(), sharp, rules)
    assert [*found] == ["it@0", "it@1"]
    np.testing.assert_array_equal(found["it@0"].sets["forget"].answer_loss, plain.answer_loss)
    assert (found["it@1"].sets["forget"].answer_loss != plain.answer_loss).all()
    (notice,) = deferred_warnings.drain()
    assert notice.startswith("no results for it@2, it@3: fine-tuning by an attack: NaN gr")
    for name, value in sharp.state_dict().items():
        assert torch.equal(value, before[name])
