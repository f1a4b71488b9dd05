"""The contract of a benchmark: rows to forget and to retain, evaluation sets, and what they show.

A `Benchmark` is a frozen value whose fields are the `data:` section of a configuration, where
`source:` names the benchmark. It declares its evaluation sets, its metrics and the two numbers that
methods are ranked by, and loads a `Dataset`. The code that reads a `Dataset` does not depend on the
source.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from unlearnbench.api.hyperparameters import HyperParameters
from unlearnbench.api.metric import Better, Role
from unlearnbench.api.plugin_code import plugin_code, source_file
from unlearnbench.base.errors import did_you_mean
from unlearnbench.base.hub import Repository

if TYPE_CHECKING:
    from unlearnbench.api.profile import Profile

Reference = Literal["start", "retain"]
"""A model that runs are compared with. Runs begin from the start model, which has learned all rows.
The retain model never saw the forget rows."""

Format = Literal["chat", "text"]
"""How a row becomes a text, see `Question.format`."""

SplitKey = float | str
"""A split: the fraction of rows to forget, such as 0.1, or a name that its benchmark declares."""

SPLIT_NAME = r"[A-Za-z][A-Za-z0-9_.-]{0,63}"
"""Pattern of a split's name, which is a part of file names and never read as a number."""

_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")


@dataclass(frozen=True)
class HeadlineTest:
    """A significance test whose p-value a headline number is the logarithm of."""

    kind: Literal["ks-truth-ratio"]
    """`ks-truth-ratio` is the Kolmogorov-Smirnov test between the truth ratios of the model and of
    the retain model."""
    label: str
    """Name of the p-value, for example `Forget Quality`."""
    short: str
    """Short name of the p-value, for example `FQ`."""
    p_value: str
    """Column of the p-value."""
    distance: str
    """Column of the test's statistic. It is 0 if there is no distance from the retain model."""
    questions: str
    """Column of the number of questions."""
    level: float = 0.05
    """Significance level."""


@dataclass(frozen=True)
class HeadlineMetric:
    """One of the two numbers that a benchmark is ranked by."""

    column: str
    """Name in tables and records, for example `log10_forget_quality`."""
    label: str
    """Name for people, for example `log₁₀ Forget Quality`."""
    short: str
    """Name in narrow tables and in sentences, for example `log₁₀ FQ`."""
    digits: int = 3
    """Decimal places in tables."""
    better: Better = "higher"
    test: HeadlineTest | None = None
    """Test behind the number; None if methods are ranked by the value alone."""

    @property
    def plain_label(self) -> str:
        """The label without subscripts, for terminals: `log10 Forget Quality`."""
        return self.label.translate(_SUBSCRIPTS)

    @property
    def plain_short(self) -> str:
        """The short label without subscripts: `log10 FQ`."""
        return self.short.translate(_SUBSCRIPTS)

    @property
    def name(self) -> str:
        """Name in sentences: the label of the test if there is one, or the plain label."""
        return self.plain_label if self.test is None else self.test.label

    @property
    def best_word(self) -> Literal["highest", "lowest"]:
        """Adjective of the best value."""
        return "highest" if self.better == "higher" else "lowest"

    def text(self, value: float | None) -> str:
        """Return a value as tables and the terminal print it; `-` if it is undefined."""
        return "-" if value is None else f"{value:.{self.digits}f}"

    def oriented(self, value: float) -> float:
        """Return the value, negated if lower is better, so that larger is always better.

        Order, Pareto front, hypervolume and searches take numbers in this direction. The function
        is its own inverse.
        """
        return value if self.better == "higher" else -value


@dataclass(frozen=True)
class Headline:
    """The two numbers of a benchmark that ranking, selection, search, page and comparison read."""

    kept: HeadlineMetric
    """Metric of what a model keeps. Higher is better.

    A setting counts only if it keeps a fraction of the start model's value. A model for which the
    metric is undefined has collapsed.
    """
    forgotten: HeadlineMetric
    """Metric of what a model has forgotten, by which the settings that count are ranked."""
    least_kept: float | None = None
    """Value of `kept` below which a start model has learned nothing; None if only 0 is nothing."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of both numbers, followed by the columns of the test."""
        test = self.forgotten.test
        tested = () if test is None else (test.p_value, test.distance)
        return (self.kept.column, self.forgotten.column, *tested)

    def __post_init__(self) -> None:
        """Refuse a metric of what is kept for which lower is better."""
        if self.kept.better != "higher":
            raise ValueError(
                f"headline: {self.kept.column} is better where lower, so that no share of it can "
                "be kept; name a metric that is better where higher"
            )


@dataclass(frozen=True)
class MetricUse:
    """A metric that a benchmark reports, with sets and settings."""

    metric: str
    """Name in the registry."""
    sets: tuple[str, ...] = ()
    """Evaluation sets on which the metric is reported; empty for a summary."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of the metric that differ from their defaults."""
    name: str = ""
    """First part of the columns' names. Defaults to the metric's name with underscores."""
    unless: Reference | None = None
    """Model in whose presence the metric is left out, because another metric is better then."""
    if_named: tuple[str, ...] = ()
    """Metrics that a configuration has to name (`evaluation.metrics`). Without one of them, this
    metric is left out."""


_PROMPT_SETTINGS = (
    *("format", "examples", "max_new_tokens", "prefix", "system"),
    *("max_length", "answer_index", "stops", "max_answer_tokens", "labels", "tag"),
)


@dataclass(frozen=True)
class Question:
    """One row: a question and its answer, in evaluation sets with variants of the answer.

    In the format `text`, the question is any text that the answer continues. If it is empty, the
    row is plain text.
    """

    question: str
    answer: str
    paraphrased_answer: str | None = None
    perturbed_answers: tuple[str, ...] = ()
    """Wrong answers, or the wrong options of a multiple choice. Their number may differ between the
    rows of a set."""
    paraphrased_question: str | None = None
    format: Format = "chat"
    """With `chat`, question and answer stand in the model's template. With `text`, the answer
    follows the question, and both stay as they are."""
    examples: tuple[tuple[str, str], ...] = ()
    """Questions with their answers that come before the question, in the format of the row."""
    prefix: str = ""
    """Beginning of the answer that the prompt already contains. It is not scored. If an answer
    begins with it, only the rest of the answer is scored."""
    system: str | None = None
    """Text of the system message; None for the template's own message."""
    max_new_tokens: int | None = None
    """Most tokens of the generated answer; None for the rule of the profile."""
    max_length: int | None = None
    """Most tokens of the row in an evaluation; None for the rule of the profile."""
    answer_index: int | None = None
    """Position of the answer among the options of a multiple choice, from 0; None for other rows.

    `perturbed_answers` are the other options, in their order. An option continues the prompt, after
    a space if no template separates the two. No EOS ends an option, and no answer is generated. A
    row that is too long loses its beginning.
    """
    stops: tuple[str, ...] = ()
    """Texts at which the generated answer is cut, one text after the other."""
    max_answer_tokens: int | None = None
    """Most tokens of the answer that are scored; None for all.

    The reference text has the first tokens of the answer, encoded without the prompt. There are as
    many tokens if BOS comes first, and one more if there is no BOS, as in MUSE.
    """
    tag: str = ""
    """Text before the answers of the row and of its examples, such as `Answer:`. It is scored and
    generated together with an answer, but it is not a part of the reference."""
    sentence_answer: str = ""
    """The answer as a whole sentence, with which metrics of meaning compare a generated answer.

    Empty if the answer itself is one. It is neither scored nor a reference of ROUGE, and no part of
    fingerprints.
    """
    labels: tuple[str, ...] = ()
    """Names, such as a task or a subject, by which metrics select some rows of a set."""
    score: float | tuple[float, ...] | None = field(default=None, compare=False)
    """Degree to which the answer is to be learned (1) or unlearned (0); None if the row has none.

    Either one number, or a number for each token including the token that ends the answer. Equality
    of rows ignores the score.
    """
    subject: str = field(default="", compare=False)
    """Subject of the row. Attacks that divide the forget rows keep the rows of a subject together.
    Empty if the rows have no such column, see `Dataset.subject_rows`."""
    place: str = field(default="", compare=False)
    """File and line of the row; empty if it was not read from a file."""

    @property
    def scored_answers(self) -> tuple[str, ...]:
        """The answers to score: the true one, the base of the truth ratio, the perturbed ones.

        The base is the paraphrased answer. Facts have no paraphrase, so their base is the answer.
        """
        return (self.answer, self.paraphrased_answer or self.answer, *self.perturbed_answers)

    @property
    def options(self) -> tuple[str, ...]:
        """The options of a multiple choice in their order; empty for other rows."""
        if self.answer_index is None:
            return ()
        options = [*self.perturbed_answers]
        options.insert(self.answer_index, self.answer)
        return tuple(options)

    def behind_prefix(self, answer: str) -> str:
        """Return the part of an answer that follows `prefix`, with a space between the two."""
        if answer.startswith(self.prefix):
            return answer.removeprefix(self.prefix)
        apart = self.prefix[-1].isspace() or answer[:1].isspace()
        return answer if apart else f" {answer}"

    def continuation(self, answer: str) -> str:
        """Return another answer, after a space if no template separates it from the question."""
        text = f"{self.question}{self.tag}"
        joined = self.format == "text" and text and not text[-1].isspace()
        return f" {answer}" if joined else answer

    @property
    def is_plain_text(self) -> bool:
        """Whether there is no prompt. Every token is scored then, and no answer is generated."""
        return self.format == "text" and not self.question and not self.prefix

    @property
    def is_scored_only(self) -> bool:
        """Whether no answer is generated, as for plain text and for a multiple choice."""
        return self.is_plain_text or self.answer_index is not None

    @property
    def prompt_settings(self) -> dict[str, Any]:
        """Settings of the prompt and of the answer's limits that differ from their defaults."""
        # A plan asks every row several times, and most rows of a large table have no settings.
        values = _prompt_values(self)
        if values == _PROMPT_DEFAULTS:
            return {}
        settings = zip(_PROMPT_SETTINGS, values, _PROMPT_DEFAULTS, strict=True)
        return {name: value for name, value, default in settings if value != default}

    @property
    def may_merge(self) -> bool:
        """Whether a token may hold the end of its own prompt and the beginning of its answer.

        A row has a prompt of its own if it is text, or if the beginning of the answer is given. All
        other prompts end with the model's template.
        """
        if self.answer_index is not None:
            return False
        if self.prefix:
            return self.prefix.endswith(" ")
        if self.format != "text" or not self.question:
            return False
        is_divided = self.question.endswith("\n") or f"{self.tag}{self.answer}"[:1].isspace()
        return not is_divided

    @property
    def opening(self) -> str:
        """Beginning of the question, or of plain text, for messages."""
        return (self.question or self.answer)[:60]


_prompt_values = attrgetter(*_PROMPT_SETTINGS)
_PROMPT_DEFAULTS = _prompt_values(Question)


def split_text(key: SplitKey) -> str:
    """Return a split as it stands in a line of text or a key of JSON: `0.1`, `books`."""
    return key if isinstance(key, str) else f"{key:g}"


def is_split_name(key: object) -> bool:
    """Whether a value is a text that can name a split."""
    return isinstance(key, str) and re.fullmatch(SPLIT_NAME, key) is not None


def split_label(key: SplitKey) -> str:
    """Return a split for people: `forget 0.1`, `books`."""
    return key if isinstance(key, str) else f"forget {key:g}"


def split_percent(key: SplitKey) -> str:
    """Return a split for people who read percentages: `forget 10 %`, `books`."""
    return key if isinstance(key, str) else f"forget {100 * key:g} %"


def split_order(key: SplitKey) -> tuple[bool, SplitKey]:
    """Return the sort key of a split: fractions by size, then names by the alphabet."""
    return isinstance(key, str), key


def split_name(role: Literal["forget", "retain", "holdout"], key: SplitKey) -> str:
    """Return the name of a split's rows.

    The names for fractions are TOFU's, with at least two digits of the percentage: `forget05`,
    `retain95` and `holdout05` for 0.05. The names for the split `books` are `books`, `books-retain`
    and `books-holdout`.
    """
    if isinstance(key, str):
        return key if role == "forget" else f"{key}-{role}"
    percent = f"{round((1 - key if role == 'retain' else key) * 100, 6):g}"
    whole, dot, rest = percent.partition(".")
    return f"{role}{whole.zfill(2)}{dot}{rest}"


@dataclass(frozen=True)
class Split:
    """The forget rows and retain rows of one split."""

    key: SplitKey
    forget: tuple[Question, ...]
    """Training rows to forget (TOFU's forget01, forget05, forget10)."""
    retain: tuple[Question, ...]
    """Training rows to retain (TOFU's retain99, retain95, retain90)."""
    sets: Mapping[str, tuple[Question, ...]]
    """The evaluation sets by the names in the benchmark's `set_roles`, in the order of evaluation.

    The set `holdout`, if there is one, has rows like the forget rows that no model was trained on.
    It is used for membership inference, and is not a part of fingerprints.
    """

    @property
    def name(self) -> str:
        """Name of the forget rows: `forget10` for 0.10, `forget12.5` for 0.125, or `books`."""
        return split_name("forget", self.key)

    @property
    def retain_name(self) -> str:
        """Name of the retain rows: `retain90` for 0.10, or `books-retain`."""
        return split_name("retain", self.key)

    @property
    def holdout_name(self) -> str:
        """Name of the holdout rows: `holdout10` for 0.10, or `books-holdout`."""
        return split_name("holdout", self.key)


@dataclass(frozen=True)
class Dataset:
    """All rows of a benchmark that a sweep may read."""

    name: str
    """Name of the benchmark, for example `tofu`."""
    full: tuple[Question, ...]
    """The rows that the start model was trained on: forget rows and retain rows."""
    splits: Mapping[SplitKey, Split]
    """Splits by fraction, or by name."""
    refusals: tuple[str, ...] = ()
    """Answers such as "I don't know", which IDK and DPO train."""
    facts: tuple[Question, ...] = ()
    """Rows of general knowledge, on which a tiny base model is trained in addition."""
    pretraining: tuple[Question, ...] = ()
    """Rows outside all splits, from which a tiny base model learns the questions' language."""
    subject_rows: int = field(default=1, compare=False)
    """Number of consecutive training rows about one subject (TOFU: 20 for each author).

    Attacks that train on some subjects and measure others divide the forget rows by it, unless rows
    name their subjects (`Question.subject`).
    """
    notes: tuple[str, ...] = field(default=(), compare=False)
    """Lines for people on how the rows were read, such as which columns were taken."""
    fingerprint: str = field(default="", compare=False)
    """Hash of all rows, which is a part of each run's id."""

    def sizes(self, key: SplitKey) -> dict[str, int]:
        """Return the numbers of rows of a split: forget rows, retain rows and evaluation sets."""
        split = self.splits[key]
        training = {"forget": len(split.forget), "retain": len(split.retain)}
        # If a set has the same name as training rows, it gets the name of TOFU's file.
        names = {name: f"{name}_perturbed" if name in training else name for name in split.sets}
        return training | {names[name]: len(rows) for name, rows in split.sets.items()}

    def parts(self) -> Iterator[tuple[str, tuple[Question, ...]]]:
        """Yield all rows with names for messages: `full`, `retain90`, `set forget of forget10`."""
        yield from (("full", self.full), ("facts", self.facts), ("pretraining", self.pretraining))
        for split in self.splits.values():
            yield from ((split.name, split.forget), (split.retain_name, split.retain))
            yield from ((f"set {name} of {split.name}", rows) for name, rows in split.sets.items())

    @property
    def uses_turns(self) -> bool:
        """Whether a row has examples in the model's template."""
        rows = (row for _, part in self.parts() for row in part)
        return any(row.examples and row.format == "chat" for row in rows)


class Benchmark(HyperParameters, ABC):
    """Base of benchmarks. A subclass declares `roles` and `headline`, and loads rows."""

    roles: ClassVar[Mapping[str, Role]]
    """Roles of the evaluation sets by name, in the order of a table."""
    headline: ClassVar[Headline]
    """The two numbers that methods are ranked by."""
    references: ClassVar[frozenset[Reference]] = frozenset({"start", "retain"})
    """Models that runs are compared with."""
    splits: ClassVar[tuple[str, ...]] = ()
    """Names of the splits; empty if splits are fractions of the rows."""
    needs_base: ClassVar[bool] = True
    """Whether each model needs a `base`. If not, `fine_tuned` is enough, but there is no retain
    model then."""
    default_profile: ClassVar[str] = "tofu"
    """Profile of evaluation rules if a configuration names none."""

    source: str = Field(default="", description="where the rows come from: the benchmark's name")
    refusals: str | None = Field(
        default=None,
        description="text file with one refusal per line, instead of the built-in list",
    )

    def __hash__(self) -> int:
        # The values of fields may not be hashable.
        return hash((type(self), self.model_dump_json()))

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names of the splits with these settings; empty if splits are fractions of the rows."""
        return self.splits

    @property
    def set_roles(self) -> Mapping[str, Role]:
        """Roles of the evaluation sets with these settings, in the order of a table."""
        return self.roles

    def headline_with(self, references: frozenset[Reference]) -> Headline:
        """Return the two numbers that methods are ranked by.

        Args:
            references: Models that runs are compared with. They are `references`, or without the
                retain model if there is none.
        """
        return self.headline

    @model_validator(mode="after")
    def _has_usable_splits(self) -> Self:
        names = self.split_names
        for index, name in enumerate(names):
            if not is_split_name(name) or name in names[:index]:
                raise ValueError(
                    f"{type(self).__name__}.splits: {name!r} is no name for a split: a letter, "
                    "then letters, digits, '_', '.' or '-', 64 at most, each name once; rename it"
                )
        return self

    @abstractmethod
    def metrics(self, profile: Profile) -> tuple[MetricUse, ...]:
        """Return the metrics to report, in the order of a table.

        Metrics that apply to the roles of the sets follow without being named here.

        Args:
            profile: Rules of evaluation, from which metrics may take their settings.
        """

    @abstractmethod
    def load(self, splits: Sequence[Any], /) -> Dataset:
        """Load the rows of some splits, without refusals and fingerprint.

        Args:
            splits: Fractions of the rows to forget such as 0.01, or some of `split_names`.

        Raises:
            DataError: A file or row is missing or malformed.
        """

    def split_problem(self, fraction: float) -> str:
        """Return why a forget fraction is not valid; empty if it is valid up to rounding."""
        return ""

    def problem_with(self, key: SplitKey) -> str:
        """Return why a split does not exist, with the splits that do; empty if it exists."""
        if names := self.split_names:
            if key in names:
                return ""
            near = did_you_mean(key, names) if isinstance(key, str) else ""
            given = split_text(key)
            return f"{self.source} has the splits {', '.join(names)}, got {given}{near}"
        if isinstance(key, str):
            return f"{self.source} has no named splits, got {key!r}; give a fraction, such as 0.1"
        with guarded_call(self, "split_problem"):
            return self.split_problem(key)

    @property
    def folder(self) -> str | None:
        """Local folder or file that rows are read from: the field `path`, if it exists."""
        return getattr(self, "path", None)

    @property
    def repository(self) -> Repository | None:
        """Repository of the hub that rows are read from; None if there is not exactly one."""
        return None

    @property
    def repositories(self) -> Mapping[str, Repository]:
        """Repositories of the hub that rows are read from, by the setting that names each.

        A plan finds the commit of each one, and every process of a sweep reads that commit. The
        setting is `hub_id`, or for example `questions.hub_id` if it belongs to a section.
        """
        return {} if self.repository is None else {"hub_id": self.repository}


def references_with(benchmark: Benchmark, *, has_retain: bool) -> frozenset[Reference]:
    """Return the models that runs on a benchmark are compared with.

    Args:
        benchmark: With its settings.
        has_retain: Whether there is a retain model. It only matters for a benchmark that can do
            without one. On all others, what is relative to a missing retain model is undefined.
    """
    if has_retain or benchmark.needs_base:
        return benchmark.references
    return benchmark.references - {"retain"}


def guarded_call(benchmark: Benchmark, name: str) -> AbstractContextManager[None]:
    """Return a context in which exceptions of a benchmark become a PluginError with their place.

    Args:
        benchmark: The benchmark.
        name: The function that is called, for the message.
    """
    kind = type(benchmark)
    return plugin_code(f"`{name}` of benchmark {kind.__name__}", source_file(kind))
