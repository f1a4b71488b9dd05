"""Profiles: named sets of evaluation rules, so that a number names the rules behind it.

Harnesses agree on the names of TOFU's metrics and differ in rows, lengths, means and epsilons; the
differences are larger than those between methods. A profile states each rule, and its hash is part
of every evaluation: numbers of different profiles cannot be compared.

`COMMON` lists the rules that all profiles share. The text around question and answer belongs to the
model (`ModelSettings.template`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, get_args

from unlearnbench.api.profile import WHOLE_CONTEXT, Profile, ProfileRule, QuestionKey
from unlearnbench.base.errors import EvaluationError, did_you_mean, shortened
from unlearnbench.config.schema import EvaluationSettings

COMMON = {
    "questions": "as written in the column that `question_key` names",
    "template": "the model's own (`template` of its settings, --template), with its BOS",
    "masked": "as many tokens as the prompt has alone; an answer's label (phi's `Answer:`) is "
    "scored with it",
    "EOS": "what ends a turn by the model's chat template (EOS for other templates) is scored and "
    "counted behind every answer; open-unlearning: all that the template writes there, and EOS",
    "loss": "mean negative log-likelihood of an answer's scored tokens; probability exp(-loss)",
    "generation": "greedy, from the prompt alone, up to the turn's end, EOS or an id of the "
    "model's generation_config.eos_token_id; open-unlearning: as transformers' generate does, with "
    "the stops and penalties of generation_config alone",
    "ROUGE": "recall with the Porter stemmer for English words, against the text of the answer",
    "truth ratio": "of the paraphrased answer; of the answer itself for true facts",
    "Forget Quality": "two-sided exact KS test on the forget set's truth ratios",
}
"""Rules that all profiles share."""


TOFU = Profile(
    name="tofu",
    version=1,
    rows=300,
    max_length=200,
    eos_after_cut=False,
    max_new_tokens=None,
    perturbed_mean="geometric",
    truth_ratio_epsilon=0.0,
    options_epsilon=0.0,
)
"""The rules of TOFU's published logs, its leaderboard and the CE-U paper's tables.

Source: locuslab/tofu@8c49eee:evaluate_util.py, aggregate_eval_stat.py.
"""

OPEN_UNLEARNING = Profile(
    name="open-unlearning",
    version=2,
    rows=None,
    max_length=512,
    eos_after_cut=True,
    max_new_tokens=200,
    perturbed_mean="geometric",
    truth_ratio_epsilon=1e-10,
    options_epsilon=1e-10,
    eos_as_padding=True,
)
"""locuslab/open-unlearning@d3d7cf9: every row, a limit on new tokens alone, epsilons, EOS as
padding (src/data/collators.py, src/data/utils.py)."""

TOFU_PAPER = replace(TOFU, name="tofu-paper", perturbed_mean="arithmetic")
"""TOFU's rules with the arithmetic mean that the paper's formula has (Maini et al. 2024,
arXiv:2401.06121, section 2.2.1); lowers Model Utility by 0.02 to 0.04."""

UNLEARNBENCH = Profile(
    name="unlearnbench",
    version=1,
    rows=None,
    max_length=WHOLE_CONTEXT,
    eos_after_cut=False,
    max_new_tokens=512,
    perturbed_mean="geometric",
    truth_ratio_epsilon=0.0,
    options_epsilon=0.0,
    words="unicode",
)
"""Our own rules, for data of any language and length that no published table is compared with.

Answers may have 512 new tokens, because tokenizers need several tokens for a character of some
scripts. There is a limit at all because a damaged model may never end an answer, and contexts have
up to a million tokens.
"""

PROFILES = {profile.name: profile for profile in (TOFU, OPEN_UNLEARNING, TOFU_PAPER, UNLEARNBENCH)}
SUMMARIES: Mapping[str, str] = {
    "tofu": "The rules of TOFU's published logs and of the CE-U paper",
    "open-unlearning": "The rules of open-unlearning's published numbers",
    "tofu-paper": "TOFU's rules, with the mean of its paper's formula",
    "unlearnbench": "Our own rules, for your own data in every language",
}
"""What each profile is for, in a line."""
_EARLIER = {
    ("open-unlearning", 1): replace(OPEN_UNLEARNING, version=1, eos_as_padding=False),
}
"""Earlier versions of these, by which records were made."""


def get_profile(
    name: str,
    *,
    rows: int | None = None,
    max_length: int | None = None,
    question_key: str | None = None,
    version: int | None = None,
) -> Profile:
    """The profile called `name`; overrides appear in its name and change its id.

    version  default: the latest
    """
    if name not in PROFILES:
        raise EvaluationError(
            f"evaluation profile {shortened(name)} is unknown{did_you_mean(name, PROFILES) or ';'} "
            f"there are {', '.join(sorted(PROFILES))}"
        )
    profile = PROFILES[name]
    if version not in (None, profile.version):
        if (name, version) not in _EARLIER:
            raise EvaluationError(f"evaluation profile {name} has no version {version}")
        profile = _EARLIER[name, version]
    overrides = {"rows": rows, "max_length": max_length, "question_key": question_key}
    for key, value in overrides.items():
        if value is not None and value != getattr(profile, key):
            changed: dict[str, Any] = {"name": f"{profile.name}+{key}={value}", key: value}
            profile = replace(profile, **changed)
    return profile


def profile_of(settings: EvaluationSettings) -> Profile:
    """The profile that settings name, with what they override."""
    return get_profile(
        settings.profile,
        rows=settings.rows,
        max_length=settings.max_length,
        question_key=settings.question_key,
    )


def profile_named(text: str, version: int | None = None) -> Profile:
    """A profile by its name with overrides, as its id begins: `tofu+rows=50`."""
    name, *overrides = text.split("+")
    if not all(map(_OVERRIDE, overrides)):
        raise EvaluationError(
            f"evaluation profile {text!r}: expected +rows=N, +max_length=N or "
            f"+question_key={'|'.join(get_args(QuestionKey))}"
        )
    pairs = (override.split("=") for override in overrides)
    values: dict[str, Any] = {k: int(v) if v.isdigit() else v for k, v in pairs}
    return get_profile(name, version=version, **values)


def profile_of_id(identity: str) -> Profile:
    """The profile with the id of an evaluation. Raises: EvaluationError where its rules changed."""
    for version in (None, *{version for _, version in _EARLIER}):
        with suppress(EvaluationError):
            profile = profile_named(identity.partition("@")[0], version)
            if profile.id == identity:
                return profile
    raise EvaluationError(
        f"profile {shortened(identity)} is none of those known here "
        f"({', '.join(p.id for p in PROFILES.values())}); evaluate the model again"
    )


_OVERRIDE = re.compile(
    r"(rows|max_length)=[1-9][0-9]{0,8}|question_key=(question|paraphrased_question)"
).fullmatch


def differences(first: Profile, second: Profile) -> tuple[tuple[ProfileRule, ProfileRule], ...]:
    """The rules in which two profiles differ."""
    pairs = zip(first.choices(), second.choices(), strict=True)
    return tuple((a, b) for a, b in pairs if a.value != b.value)
