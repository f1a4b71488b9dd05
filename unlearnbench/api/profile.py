"""A profile: the rules by which a model is evaluated, and their hash.

Profiles with a name, such as `tofu`, are in `config/profiles.py`.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from unlearnbench.base.errors import EvaluationError, shortened

if TYPE_CHECKING:
    from unlearnbench.stats.text_overlap import WordRule

QuestionKey = Literal["question", "paraphrased_question"]

WHOLE_CONTEXT = sys.maxsize
"""`max_length` of a profile by which a text may be as long as the model's context."""


def _choice(meaning: str) -> Any:
    """Return a field without a default, and what it means for people."""
    return field(metadata={"meaning": meaning})


@dataclass(frozen=True)
class Profile:
    """The rules of an evaluation. `choices` explains each field.

    A field that is added needs a default under which all numbers are as before. Hashes leave it out
    if it has its default, so profiles keep their hashes.
    """

    name: str = _choice("for people; not part of the hash")
    version: int = _choice("raised when the code comes to read the same choices differently")
    rows: int | None = _choice("first rows of each set that are evaluated")
    max_length: int = _choice(
        "tokens of prompt and answer that are scored; longer texts are cut at the end"
    )
    eos_after_cut: bool = _choice(
        "whether a cut answer still ends with a scored EOS, beyond max_length"
    )
    max_new_tokens: int | None = _choice("longest generated answer, in tokens")
    perturbed_mean: Literal["geometric", "arithmetic"] = _choice(
        "mean over the probabilities of a question's perturbed answers, in the truth ratio"
    )
    truth_ratio_epsilon: float = _choice("added to the denominators of the truth ratio")
    options_epsilon: float = _choice(
        "added to the denominator of the true facts' probability among their options"
    )
    question_key: QuestionKey = field(
        default="question",
        metadata={
            "meaning": "column with the questions of the forget and retain sets, for every metric; "
            "true facts have one question each"
        },
    )
    eos_as_padding: bool = field(
        default=False,
        metadata={
            "meaning": "whether EOS that serves as padding is masked inside texts, too, and "
            "another is scored behind a chat template's last line break"
        },
    )
    words: WordRule = field(
        default="ascii",
        metadata={
            "meaning": "what metrics of text count as a word; ascii: as each metric's source does, "
            "for ROUGE runs of a-z and 0-9; unicode: words of all scripts, and each character of "
            "scripts without spaces (Chinese, Japanese, Thai)"
        },
    )

    protocol: Literal["tofu", "closer-look"] = field(
        default="tofu",
        metadata={
            "meaning": "whose scores benchmarks with TOFU's sets report; closer-look: also those "
            "of Yuan et al. 2025, from up to six metrics on each set"
        },
    )

    def __post_init__(self) -> None:
        """Refuse rules by which an answer may never end.

        Raises:
            EvaluationError: Neither the text nor the answer has a bound.
        """
        if self.reads_whole_context and self.max_new_tokens is None:
            raise EvaluationError(
                f"evaluation profile {shortened(self.name)}: max_length is the model's context and "
                "max_new_tokens None, so that an answer may have a million tokens; set "
                "max_new_tokens"
            )

    @property
    def reads_whole_context(self) -> bool:
        """Whether texts are as long as the model can read."""
        return self.max_length == WHOLE_CONTEXT

    @property
    def follows_generate(self) -> bool:
        """Whether answers stop and are penalised as by transformers' `generate`.

        True for profiles with `eos_as_padding`. Both rules are those of one harness. A field of its
        own would change the hash of its profile, although most numbers stay the same.
        """
        return self.eos_as_padding

    @property
    def hash(self) -> str:
        """First 8 hex digits of the SHA-256 of all fields except the name, as canonical JSON."""
        rules = asdict(self)
        del rules["name"]
        for item in fields(self):
            # As in hashes from before the field existed.
            if item.name in rules and rules[item.name] == item.default:
                del rules[item.name]
        text = json.dumps(rules, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @property
    def id(self) -> str:
        """Name and hash, as evaluations and records have them: `tofu@1a2b3c4d`."""
        return f"{self.name}@{self.hash}"

    def choices(self) -> tuple[ProfileRule, ...]:
        """Return every field except the name, with its value and meaning."""
        rules: list[ProfileRule] = []
        for item in fields(self):
            if item.name == "name":
                continue
            value = getattr(self, item.name)
            if value == WHOLE_CONTEXT:
                value = None
            text = _text(item.name, value)
            rules.append(ProfileRule(item.name, value, text, item.metadata["meaning"]))
        return tuple(rules)


_TEXT_OF_NONE = {
    "rows": "all",
    "max_length": "the model's context",
    "max_new_tokens": "what the prompt leaves of max_length",
}
"""What None means, by field."""


def _text(key: str, value: float | str | bool | None) -> str:
    """Return the value of a field as text."""
    if value is None:
        return _TEXT_OF_NONE[key]
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


class ProfileRule(NamedTuple):
    """One rule of a profile.

    Attributes:
        key: Name of the field.
        value: Its value. None if it has no bound, or if the bound is the model's context.
        text: The value as text.
        meaning: What the field means.
    """

    key: str
    value: int | float | str | bool | None
    text: str
    meaning: str
