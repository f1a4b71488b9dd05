"""The sentences of `unlearnbench attack`, and which answers it shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from unlearnbench.analysis.given_back import Attacked, Gain
from unlearnbench.api import registry
from unlearnbench.api.observations import Evaluation, Samples, SetEvaluation
from unlearnbench.cli import attack_report
from unlearnbench.cli.attack_report import AttackFindings, sentence
from unlearnbench.config.entries import attack_spec
from unlearnbench.testing import made_up_set

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
            {"points": 1, "retain_after": 0.05},
            "relearning@3: ES 0.100 → 0.400 over 40 questions, a change of +0.300 (95 % interval "
            "+0.200 to +0.400); the retain model's change is -0.050.\n"
            "It gives back what it was to forget: +0.300 (95 % interval +0.150 to +0.410) beyond "
            "the retain model, 50 % of the way to the start model's 0.700.",
        ),
        (
            {"points": 1, "start": None, "excess_interval": (-0.1, 0.41)},
            "relearning@3: ES 0.100 → 0.400 over 40 questions, a change of +0.300 (95 % interval "
            "+0.200 to +0.400); the retain model's change is +0.020.\n"
            "No sign that anything comes back: +0.280 (95 % interval -0.100 to +0.410) beyond the "
            "retain model.",
        ),
        (
            {"points": 1, "interval": None, "excess_interval": None, "start": None},
            "relearning@3: ES 0.100 → 0.400 over 40 questions, a change of +0.300; the retain "
            "model's change is +0.020.\nBeyond the retain model: +0.280; too few questions for an "
            "interval.",
        ),
        (
            {"points": 1, "before": None, "retain_before": None},
            "relearning@3: ES 0.400 over 40 questions (95 % interval 0.200 to 0.400); the retain "
            "model's 0.120.\nIt gives back what it was to forget: +0.280 (95 % interval +0.150 to "
            "+0.410) beyond the retain model.",
        ),
    ],
)
def test_a_sentence_has_the_gain_its_interval_and_the_null(
    changes: dict[str, Any], expected: str
) -> None:
    assert sentence(found(replace(GAIN, **changes)), retain=True) == expected


def test_without_the_null_the_sentence_says_how_to_get_it() -> None:
    bare = found(replace(GAIN, retain_after=None, excess_interval=None))
    unknown = "\nWhat a model gains that never knew the rows is not known: "
    assert sentence(bare, retain=False).endswith(f"{unknown}give it with --retain.")
    assert sentence(bare, retain=True).endswith(f"{unknown}it could not be measured there.")
    nothing = "paraphrase: no metric of the forget set could be measured under it"
    assert sentence(found(None), retain=True) == nothing


def test_the_answer_that_gains_most_is_shown_of_samples_the_best() -> None:
    def seen(recall: list[float], **more: Any) -> SetEvaluation:
        return replace(made_up_set(n=3), rouge_l_recall=np.array(recall), **more)

    texts = tuple(tuple(f"answer {i}, sample {k}" for k in range(3)) for i in range(3))
    samples = Samples(texts, np.array([[0.1, np.nan, 0.3], [0.2, 0.9, 0.1], [0.2, 0.2, 0.2]]))
    plain, attacked = seen([0.2, 0.1, 0.2], samples=None), seen([0.2, 0.1, 0.2], samples=samples)
    under = Evaluation("tofu@00", {"forget": attacked, "retain": attacked})
    model = Attacked(Evaluation("tofu@00", {"forget": plain, "retain": plain}), {"sampling": under})
    roles: Any = {"forget": "forget", "retain": "retain"}
    order: Any = attack_report._most_changed  # pyright: ignore[reportPrivateUsage]
    answer: Any = attack_report._answer  # pyright: ignore[reportPrivateUsage]
    assert order(model, roles, 2) == [("forget", 1), ("forget", 0)]
    assert answer(attacked, 1) == (", best of 3", "answer 1, sample 1", 0.9)
    assert answer(attacked, 0) == (", best of 3", "answer 0, sample 2", 0.3)
    assert answer(plain, 0) == ("", plain.generated[0], 0.2)
