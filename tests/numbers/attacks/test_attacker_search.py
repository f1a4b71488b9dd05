"""The attackers of a search: which there are, and what a search refuses."""

from typing import Any

import pytest
from pydantic import ValidationError

from unlearnbench.api.attack import searches
from unlearnbench.attacks.fine_tuning import UnrelatedFineTuning
from unlearnbench.attacks.relearning import Relearning
from unlearnbench.config.entries import attack_from_spec, attack_spec

RATES = {"low": 1e-6, "high": 1e-3, "log": True}
SEARCH = {"learning_rate": RATES, "lora_rank": (None, 8)}


def relearning(**settings: Any) -> Relearning:
    """The attack with these settings, checked as a configuration's are."""
    return Relearning.model_validate(settings)


def test_the_first_attacker_is_the_stated_one_and_the_others_fill_the_space() -> None:
    attack = relearning(search=SEARCH, trials=9, learning_rate=5e-5, steps=(2, 4))
    attackers = attack.attackers()
    assert [*attackers] == [*"123456789"]
    assert attackers["1"] == relearning(learning_rate=5e-5, steps=(2, 4))
    drawn = [attackers[number] for number in [*attackers][1:]]
    assert all(1e-6 <= one.learning_rate <= 1e-3 for one in drawn)
    assert {one.lora_rank for one in drawn} == {None, 8}
    # Each quarter of the logarithms has two of eight rates, and both ranks have four of them.
    for low in (1e-6, 10**-5.25, 10**-4.5, 10**-3.75):
        assert sum(low <= one.learning_rate < low * 10**0.75 for one in drawn) == 2
    assert sum(one.lora_rank == 8 for one in drawn) == 4
    assert len({(one.learning_rate, one.lora_rank) for one in attackers.values()}) == 9
    assert attack.points() == ("0", *(f"t{n}.{step}" for n in attackers for step in (2, 4)))


def test_more_trials_keep_the_first_ones() -> None:
    few = relearning(search=SEARCH, trials=3).attackers()
    many = relearning(search=SEARCH, trials=12).attackers()
    assert {number: many[number] for number in few} == dict(few)


def test_a_spec_makes_the_same_attackers_again() -> None:
    for attack in (
        relearning(search=SEARCH, trials=4, keeps=0.5),
        UnrelatedFineTuning.model_validate({"search": SEARCH, "trials": 4}),
    ):
        name = "relearning" if isinstance(attack, Relearning) else "fine-tuning"
        spec = attack_spec(name, attack)
        stored = type(spec).model_validate_json(spec.model_dump_json())
        again = attack_from_spec(stored)
        assert again.attackers() == attack.attackers()
        assert again.least_utility == attack.least_utility


def test_without_a_search_nothing_changes() -> None:
    attack = relearning(steps=(3,))
    assert not searches(attack)
    assert attack.attackers() == {"": attack}
    assert attack.points() == ("0", "3")
    assert attack.least_utility is None
    assert attack.evaluated_roles == {"forget"}
    assert not {"search", "trials", "keeps"} & attack_spec("relearning", attack).settings.keys()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"search": {}}, "names no setting"),
        ({"search": {"rows": ("half", "forget")}}, "rows is no setting of an attacker"),
        ({"search": {"learning_rate": 1e-4}}, "learning_rate needs a range"),
        ({"search": {"lora_rank": (8, 8)}}, "lora_rank needs a range, .* or a list of two"),
        ({"search": {"learning_rate": {"low": 1.0, "high": 0.1}}}, "low must be below high"),
        ({"search": {"batch_size": (0, 8)}, "trials": 2}, "search: batch_size"),
        ({"search": {"optimizer": ("muon", {"a": 1})}, "trials": 2}, "search: optimizer"),
        ({"search": {"lora_rank": (None, 8)}}, "only 2 different attackers .* trials is 8"),
        ({"trials": 4}, "trials has no effect without search"),
        ({"keeps": 0.5}, "keeps has no effect without search"),
        ({"search": SEARCH, "trials": 1}, "trials"),
        ({"search": SEARCH, "keeps": 1.5}, "keeps"),
    ],
)
def test_what_a_search_refuses(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=f"(?s){message}"):
        relearning(**settings)
