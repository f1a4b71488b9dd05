"""A model under the attackers of a search: each one is the plain attack, on rows in two parts."""

import copy
from typing import Any

import numpy as np
import pytest
import torch

from unlearnbench.api.attack import CHOICE, AttackRows
from unlearnbench.api.observations import Evaluation
from unlearnbench.attacks.relearning import Relearning
from unlearnbench.base import deferred_warnings
from unlearnbench.base.errors import EvaluationError
from unlearnbench.models.encoding import Encoder
from unlearnbench.runs.attack_model import Tools
from unlearnbench.runs.under_attack import evaluations_under
from unlearnbench.training.fine_tuning import FineTuner

from .test_under_attack import FORGET, RETAIN, evaluator

SEARCH = {"learning_rate": (1e-3, 1e-2), "lora_rank": (None, 2)}


def attacked(attack: Relearning, model: Any, tokenizer: Any) -> dict[str, Evaluation]:
    """Evaluate a model under an attack; it must be the same afterwards."""
    rules = evaluator(tokenizer)
    tuner = FineTuner(Encoder(tokenizer, rules.encoder.template, 60), rules.pad)
    tools = Tools(AttackRows(FORGET, RETAIN, subject_rows=1), tuner, lambda: None)
    plain = rules(model)
    before = copy.deepcopy(model.state_dict())
    found = dict(evaluations_under("relearning", attack, model, rules, tools, plain))
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    return found


def test_each_attacker_equals_the_plain_attack_with_its_settings(
    sharp: Any, tokenizer: Any
) -> None:
    """Each one begins from the whole model, whatever the one before it has done."""
    search = Relearning.model_validate(
        {"rows": "forget", "steps": (1, 3), "search": SEARCH, "trials": 4}
    )
    found = attacked(search, sharp, tokenizer)
    points = ["0", *(f"t{trial}.{step}" for trial in (1, 2, 3, 4) for step in (1, 3))]
    assert [*found] == [f"relearning@{point}{part}" for point in points for part in ("", CHOICE)]
    for trial, attacker in search.attackers().items():
        alone = attacked(attacker, sharp, tokenizer)
        for step in ("0", "1", "3"):
            point = "0" if step == "0" else f"t{trial}.{step}"
            whole = alone[f"relearning@{step}"].sets["forget"]
            reported = found[f"relearning@{point}"].sets
            choosing = found[f"relearning@{point}{CHOICE}"].sets
            assert [*choosing] == ["forget"]
            assert {*reported} == {"forget", "retain"}, "what is left of the utility"
            for part, places in ((reported["forget"], [0, 2]), (choosing["forget"], [1, 3])):
                assert part.places is not None
                assert part.places.tolist() == places
                assert part.questions == tuple(whole.questions[i] for i in places)
                assert part.generated == tuple(whole.generated[i] for i in places)
                # Other batches than the whole set's: some CPUs round their sums otherwise.
                np.testing.assert_allclose(part.answer_loss, whole.answer_loss[places], rtol=1e-6)


def test_an_attacker_that_diverges_leaves_the_others_their_results(
    sharp: Any, tokenizer: Any
) -> None:
    search = Relearning.model_validate(
        {
            "rows": "forget",
            "steps": (1, 4),
            "search": {"learning_rate": (1e-3, 1e30)},
            "trials": 3,
            "learning_rate": 1e-4,
        }
    )
    rates = {number: one.learning_rate for number, one in search.attackers().items()}
    diverging = next(number for number, rate in rates.items() if rate == 1e30)
    found = attacked(search, sharp, tokenizer)
    for number in rates:
        assert (f"relearning@t{number}.4" in found) == (number != diverging)
    (warning,) = deferred_warnings.drain()
    assert f"no results for relearning@t{diverging}." in warning


def test_a_set_with_one_row_cannot_be_divided(sharp: Any, tokenizer: Any) -> None:
    rules = evaluator(tokenizer).with_sets({"forget": FORGET[:1]}, {"forget": FORGET[:1]})
    search = Relearning.model_validate({"rows": "forget", "search": SEARCH, "trials": 2})
    tools: Any = Tools(AttackRows(FORGET, RETAIN), lambda *_, **__: iter(()), lambda: None)  # type: ignore[arg-type]
    with pytest.raises(EvaluationError, match="search needs two rows of forget or more"):
        list(evaluations_under("relearning", search, sharp, rules, tools))


def test_sets_of_the_utility_alone_are_not_attacked(sharp: Any, tokenizer: Any) -> None:
    """Once, such a search went on and ended in an unexpected error."""
    rules = evaluator(tokenizer).with_sets({"retain": RETAIN}, {"retain": RETAIN})
    search = Relearning.model_validate({"rows": "forget", "search": SEARCH, "trials": 2})
    tools: Any = Tools(AttackRows(FORGET, RETAIN), lambda *_, **__: iter(()), lambda: None)  # type: ignore[arg-type]
    with pytest.raises(EvaluationError, match="no row to evaluate in sets of role forget "):
        list(evaluations_under("relearning", search, sharp, rules, tools))
