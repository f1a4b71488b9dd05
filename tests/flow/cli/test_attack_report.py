"""The sentences of `unlearnbench attack`, and which answers it shows."""

from dataclasses import replace
from typing import Any

import pytest

from unlearnbench.analysis.given_back import Attacked, Gain
from unlearnbench.api import registry
from unlearnbench.api.observations import Evaluation
from unlearnbench.cli.attack_report import AttackFindings, sentence
from unlearnbench.config.entries import attack_spec

PLAIN = Attacked(Evaluation("tofu@00", {}), {})
GAIN = Gain("relearning@3", "ES", 40, 4, 0.1, 0.4, (0.2, 0.4), 0.7, 0.1, 0.12, (0.15, 0.41))


def found(gain: Gain | None) -> AttackFindings:
    spec = attack_spec("paraphrase", registry.load("attacks", "paraphrase")())
    return AttackFindings(spec, PLAIN, (), gain)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {},
            "relearning@3, the largest of 4 points: ES 0.100 → 0.400 over 40 questions, a change "
            "of +0.300 (95 % interval +0.200 to +0.400); the retain model's change is +0.020.\n"
            "It gives back what it was to forget: +0.280 (95 % interval +0.150 to +0.410) beyond "
            "the retain model, 47 % of the way to the start model's 0.700.",
        ),
        (
            {"points": 1, "start": None, "excess_interval": (-0.1, 0.41)},
            "relearning@3: ES 0.100 → 0.400 over 40 questions, a change of +0.300 (95 % interval "
            "+0.200 to +0.400); the retain model's change is +0.020.\n"
            "No sign that anything comes back: +0.280 (95 % interval -0.100 to +0.410) beyond the "
            "retain model.",
        ),
    ],
)
def test_a_sentence_has_the_gain_its_interval_and_the_null(
    changes: dict[str, Any], expected: str
) -> None:
    assert sentence(found(replace(GAIN, **changes)), retain=True) == expected
