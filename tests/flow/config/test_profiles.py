"""Profiles: their values, their ids, and what an override does to them."""

from dataclasses import fields, replace
from typing import Any

import pytest

from unlearnbench.api.profile import WHOLE_CONTEXT, Profile
from unlearnbench.base.errors import EvaluationError
from unlearnbench.config.profiles import (
    PROFILES,
    TOFU,
    get_profile,
    profile_of_id,
)


def test_ids_are_pinned() -> None:
    # An id in an old record must go on meaning the same rules: change a rule, change `version`.
    assert [profile.id for profile in PROFILES.values()] == [
        "tofu@2923316c",
        "open-unlearning@83c46b72",
        "tofu-paper@6a03271f",
        "closer-look@06ca7494",
        "unlearnbench@9c13ccc5",
    ]


def test_hash_covers_every_field_but_the_name() -> None:
    changed: dict[str, Any] = {
        "version": 2,
        "rows": 7,
        "max_length": 7,
        "eos_after_cut": True,
        "max_new_tokens": 7,
        "perturbed_mean": "arithmetic",
        "question_key": "paraphrased_question",
        "truth_ratio_epsilon": 0.5,
        "options_epsilon": 0.5,
        "eos_as_padding": True,
        "words": "unicode",
        "protocol": "closer-look",
    }
    assert set(changed) | {"name"} == {field.name for field in fields(Profile)}
    hashes = {replace(TOFU, **{key: value}).hash for key, value in changed.items()}
    assert len(hashes | {TOFU.hash}) == len(changed) + 1
    assert replace(TOFU, name="other").hash == TOFU.hash


def test_an_answer_without_any_bound_is_refused() -> None:
    replace(TOFU, max_length=WHOLE_CONTEXT, max_new_tokens=20)
    with pytest.raises(EvaluationError, match="set max_new_tokens"):
        replace(TOFU, max_length=WHOLE_CONTEXT)


def test_an_id_leads_back_to_its_profile() -> None:
    earlier = get_profile("open-unlearning", version=1), get_profile("tofu", version=1)
    small = [get_profile("open-unlearning", rows=5, version=n) for n in (1, 2)]
    for profile in (*PROFILES.values(), *earlier, *small):
        assert profile_of_id(profile.id) == profile
    assert earlier[0].id == "open-unlearning@553d2179", "as in records of 0.2"
    with pytest.raises(EvaluationError, match="open-unlearning has no version 3"):
        get_profile("open-unlearning", version=3)
    for identity in ("tofu@12345678", "tofu+rows=0@1", "tofu+epsilon=1@1", "mine@2923316c", ""):
        with pytest.raises(EvaluationError, match="is none of those known here"):
            profile_of_id(identity)
