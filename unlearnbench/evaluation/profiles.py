"""Named sets of evaluation rules, so that a number says by which rules it came about.

Harnesses agree on the names of TOFU's metrics and differ in rows, lengths, means and epsilons; the
differences are larger than those between methods. A profile spells its choices out, and its hash
travels with every evaluation: numbers of different profiles refuse to be compared.

The same in every profile, and so no field: original questions, greedy decoding, ROUGE-L recall
with the Porter stemmer, length-normalised probabilities, the two-sided exact KS test. How question
and answer become text belongs to the model (`ModelSettings.template`).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Literal

from unlearnbench.errors import EvaluationError, did_you_mean


@dataclass(frozen=True)
class Profile:
    """One way to compute TOFU's metrics from a model."""

    name: str
    """For people; not part of the hash."""
    version: int
    """Raised when the code comes to read the same fields differently."""
    rows: int | None
    """First rows of each set that are evaluated; None: all."""
    max_length: int
    """Tokens of prompt and answer that are scored; what is longer is cut at its end."""
    eos_after_cut: bool
    """A cut answer still ends with a scored EOS, beyond `max_length`; False: EOS is cut as well."""
    max_new_tokens: int | None
    """Longest generated answer in tokens; None: prompt and answer share `max_length`."""
    perturbed_mean: Literal["geometric", "arithmetic"]
    """Mean over the probabilities of a question's perturbed answers, in the truth ratio."""
    truth_ratio_epsilon: float
    """Added to the denominators of the truth ratio."""
    options_epsilon: float
    """Added to the denominator of the true facts' probability among their options."""

    @property
    def hash(self) -> str:
        """First 8 hex digits of the SHA-256 of all fields but the name, as canonical JSON."""
        rules = {key: value for key, value in asdict(self).items() if key != "name"}
        text = json.dumps(rules, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @property
    def id(self) -> str:
        """What evaluations and records carry: `tofu@1a2b3c4d`."""
        return f"{self.name}@{self.hash}"


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
"""What gave TOFU's published logs, its leaderboard and the CE-U paper's tables.

Source: locuslab/tofu@8c49eee:evaluate_util.py, aggregate_eval_stat.py.
"""

OPEN_UNLEARNING = Profile(
    name="open-unlearning",
    version=1,
    rows=None,
    max_length=512,
    eos_after_cut=True,
    max_new_tokens=200,
    perturbed_mean="geometric",
    truth_ratio_epsilon=1e-10,
    options_epsilon=1e-10,
)
"""locuslab/open-unlearning@d3d7cf9: every row, new tokens counted by themselves, epsilons."""

TOFU_PAPER = replace(TOFU, name="tofu-paper", perturbed_mean="arithmetic")
"""TOFU's rules with the arithmetic mean that the paper's formula has (Maini et al. 2024,
arXiv:2401.06121, section 2.2.1); lowers Model Utility by 0.02 to 0.04."""

PROFILES = {profile.name: profile for profile in (TOFU, OPEN_UNLEARNING, TOFU_PAPER)}


def get_profile(name: str, *, rows: int | None = None, max_length: int | None = None) -> Profile:
    """The profile called `name`; what is overridden shows in its name and changes its id."""
    if name not in PROFILES:
        raise EvaluationError(
            f"evaluation profile {name!r} is unknown{did_you_mean(name, PROFILES)}; "
            f"there are: {', '.join(sorted(PROFILES))}"
        )
    profile = PROFILES[name]
    if rows is not None and rows != profile.rows:
        _check_at_least_one("rows", rows)
        profile = replace(profile, name=f"{profile.name}+rows={rows}", rows=rows)
    if max_length is not None and max_length != profile.max_length:
        _check_at_least_one("max_length", max_length)
        changed = f"{profile.name}+max_length={max_length}"
        profile = replace(profile, name=changed, max_length=max_length)
    return profile


def _check_at_least_one(key: str, value: int) -> None:
    if value < 1:
        raise EvaluationError(f"evaluation {key} {value}: must be at least 1")
