"""Profiles: their values, their ids, and what an override does to them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from unlearnbench.api.profile import Profile
from unlearnbench.config.profiles import (
    OPEN_UNLEARNING,
    PROFILES,
    TOFU,
    TOFU_PAPER,
    differences,
    get_profile,
    profile_of_id,
)
from unlearnbench.errors import EvaluationError


def test_ids_are_pinned() -> None:
    # An id in an old record must go on meaning the same rules: change a rule, change `version`.
    assert [profile.id for profile in PROFILES.values()] == [
        "tofu@2923316c",
        "open-unlearning@83c46b72",
        "tofu-paper@6a03271f",
    ]


def test_differences_of_tofu_and_open_unlearning() -> None:
    differ = {
        field.name: (getattr(TOFU, field.name), getattr(OPEN_UNLEARNING, field.name))
        for field in fields(Profile)
        if getattr(TOFU, field.name) != getattr(OPEN_UNLEARNING, field.name)
    }
    assert differ == {
        "name": ("tofu", "open-unlearning"),
        "version": (1, 2),
        "rows": (300, None),
        "max_length": (200, 512),
        "eos_after_cut": (False, True),
        "max_new_tokens": (None, 200),
        "truth_ratio_epsilon": (0.0, 1e-10),
        "options_epsilon": (0.0, 1e-10),
        "eos_as_padding": (False, True),
    }


def test_tofu_paper_differs_in_the_mean_alone() -> None:
    assert replace(TOFU_PAPER, name="tofu", perturbed_mean="geometric") == TOFU


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
    }
    assert set(changed) | {"name"} == {field.name for field in fields(Profile)}
    hashes = {replace(TOFU, **{key: value}).hash for key, value in changed.items()}
    assert len(hashes | {TOFU.hash}) == len(changed) + 1
    assert replace(TOFU, name="other").hash == TOFU.hash


@pytest.mark.parametrize("name", list(PROFILES))
def test_get_by_name(name: str) -> None:
    assert get_profile(name) is PROFILES[name]
    assert get_profile(name).id.startswith(f"{name}@")


def test_overrides_give_another_name_and_id() -> None:
    profile = get_profile("tofu", rows=50)
    assert (profile.name, profile.rows, profile.max_length) == ("tofu+rows=50", 50, 200)
    assert profile.id.startswith("tofu+rows=50@")
    assert profile.hash != TOFU.hash
    both = get_profile("open-unlearning", rows=5, max_length=64)
    assert both.name == "open-unlearning+rows=5+max_length=64"
    assert (both.rows, both.max_length, both.max_new_tokens) == (5, 64, 200)


def test_override_with_the_profiles_own_value_changes_nothing() -> None:
    assert get_profile("tofu", rows=300, max_length=200) is TOFU


def test_every_choice_has_a_value_and_a_meaning_in_words() -> None:
    choices = {choice.key: choice for choice in OPEN_UNLEARNING.choices()}
    assert list(choices) == [field.name for field in fields(Profile)][1:]
    assert all(choice.meaning for choice in choices.values())
    assert {key: choice.text for key, choice in choices.items()} == {
        "version": "2",
        "rows": "all",
        "max_length": "512",
        "eos_after_cut": "yes",
        "max_new_tokens": "200",
        "perturbed_mean": "geometric",
        "truth_ratio_epsilon": "1e-10",
        "options_epsilon": "1e-10",
        "question_key": "question",
        "eos_as_padding": "yes",
    }
    texts = {choice.key: choice.text for choice in TOFU.choices()}
    assert (texts["max_new_tokens"], texts["eos_after_cut"]) == (
        "what the prompt leaves of max_length",
        "no",
    )


def test_differences_are_only_those() -> None:
    (pair,) = differences(TOFU, TOFU_PAPER)
    assert [(one.key, one.value) for one in pair] == [
        ("perturbed_mean", "geometric"),
        ("perturbed_mean", "arithmetic"),
    ]
    assert differences(TOFU, TOFU) == ()


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
