"""Profiles: named sets of evaluation rules, so that a number names the rules behind it.

Harnesses agree on the names of TOFU's metrics, but differ in rows, lengths, means and epsilons.
These differences are larger than the differences between methods. So a profile states each rule,
and its hash is part of every evaluation. Numbers of different profiles cannot be compared.

`COMMON` lists the rules that all profiles share. The text around question and answer is no rule of
a profile but a setting of the model (`ModelSettings.template`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, get_args

from unlearnbench.api.profile import WHOLE_CONTEXT, Profile, ProfileRule, QuestionKey
from unlearnbench.base.errors import EvaluationError, did_you_mean, shortened
from unlearnbench.config.evaluation_settings import EvaluationSettings

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
"""The rules of open-unlearning: every row, a limit on only new tokens, epsilons, EOS as padding.

Source: locuslab/open-unlearning@d3d7cf9:src/data/collators.py, src/data/utils.py.
"""

TOFU_PAPER = replace(TOFU, name="tofu-paper", perturbed_mean="arithmetic")
"""TOFU's rules with the arithmetic mean of the paper's formula. It lowers Model Utility by 0.02 to
0.04.

Source: Maini et al. 2024, arXiv:2401.06121, section 2.2.1.
"""

CLOSER_LOOK = replace(TOFU, name="closer-look", protocol="closer-look")
"""TOFU's rules with the scores of "A Closer Look at Machine Unlearning for Large Language Models".

The rows, lengths, losses and greedy answers are TOFU's.

Source: Yuan et al. 2025, arXiv:2410.08109;
sail-sg/closer-look-LLM-unlearning@b622294:config/tofu.yaml, metrics/metrics.py.
"""

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
"""Our own rules, for data of any language and length whose numbers are compared with no published
table.

Answers may have 512 new tokens, because tokenizers need several tokens for a character of some
scripts. There is a limit because a damaged model may never end an answer, and a context may have a
million tokens.
"""

PROFILES = {
    profile.name: profile
    for profile in (TOFU, OPEN_UNLEARNING, TOFU_PAPER, CLOSER_LOOK, UNLEARNBENCH)
}
SUMMARIES: Mapping[str, str] = {
    "tofu": "The rules of TOFU's published logs and of the CE-U paper",
    "open-unlearning": "The rules of open-unlearning's published numbers",
    "tofu-paper": "TOFU's rules, with the mean of its paper's formula",
    "closer-look": "TOFU's rules, with the scores of Yuan et al. 2025",
    "unlearnbench": "Our own rules, for your own data in every language",
}
"""The purpose of each profile, in one line."""
_EARLIER = {
    ("open-unlearning", 1): replace(OPEN_UNLEARNING, version=1, eos_as_padding=False),
}
"""Earlier versions of profiles, by name and version. There are records of them."""


def get_profile(
    name: str,
    *,
    rows: int | None = None,
    max_length: int | None = None,
    question_key: str | None = None,
    version: int | None = None,
) -> Profile:
    """Return a profile, with changed rules if any are given.

    Changed rules appear in the profile's name, such as `tofu+rows=50`, and change its id.

    Args:
        name: Name of the profile.
        rows: First rows of each set that are evaluated; None: as the profile says.
        max_length: Tokens of prompt and answer that are scored; None: as the profile says.
        question_key: Column with the questions; None: as the profile says.
        version: Version of the profile; None: the latest.

    Raises:
        EvaluationError: There is no such profile or version.
    """
    if name not in PROFILES:
        near = did_you_mean(name, PROFILES) or ";"
        raise EvaluationError(
            f"evaluation profile {shortened(name)} is unknown{near} "
            f"there are {', '.join(sorted(PROFILES))}"
        )
    profile = PROFILES[name]
    if version is not None and version != profile.version:
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
    """Return the profile that evaluation settings name, with the rules that they change."""
    return get_profile(
        settings.profile,
        rows=settings.rows,
        max_length=settings.max_length,
        question_key=settings.question_key,
    )


_OVERRIDE = re.compile(
    r"(rows|max_length)=[1-9][0-9]{0,8}|question_key=(question|paraphrased_question)"
)


def profile_named(text: str, version: int | None = None) -> Profile:
    """Return the profile of a name with changed rules.

    Args:
        text: A name such as `tofu+rows=50`. Names in ids have this form.
        version: Version of the profile; None: the latest.

    Raises:
        EvaluationError: There is no such profile or version, or a rule cannot be changed.
    """
    name, *changes = text.split("+")
    overrides: dict[str, Any] = {}
    for change in changes:
        if not _OVERRIDE.fullmatch(change):
            raise EvaluationError(
                f"evaluation profile {text!r}: expected +rows=N, +max_length=N or "
                f"+question_key={'|'.join(get_args(QuestionKey))}"
            )
        key, _, value = change.partition("=")
        overrides[key] = int(value) if value.isdigit() else value
    return get_profile(name, version=version, **overrides)


def profile_of_id(identity: str) -> Profile:
    """Return the profile of an evaluation.

    Args:
        identity: Id of the profile, such as `tofu+rows=50@1a2b3c4d`.

    Raises:
        EvaluationError: No version that is known here has these rules.
    """
    name, _, _ = identity.partition("@")
    earlier_versions = {version for _, version in _EARLIER}
    for version in (None, *earlier_versions):
        with suppress(EvaluationError):
            profile = profile_named(name, version)
            if profile.id == identity:
                return profile
    raise EvaluationError(
        f"profile {shortened(identity)} is none of those known here "
        f"({', '.join(profile.id for profile in PROFILES.values())}); evaluate the model again"
    )


def differences(first: Profile, second: Profile) -> tuple[tuple[ProfileRule, ProfileRule], ...]:
    """Return the rules in which two profiles differ, as pairs."""
    pairs = zip(first.choices(), second.choices(), strict=True)
    return tuple((one, other) for one, other in pairs if one.value != other.value)
