"""The contract of a benchmark: rows to forget and to retain, evaluation sets, and what they show.

A `Benchmark` is a frozen value whose fields are the `data:` section of a configuration, with
`source: <its name>`. It declares its evaluation sets, metrics and the two numbers that methods are
ranked by, and loads a `Dataset`; the code after it does not depend on the source.
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
"""A model that runs are compared with: the one that they begin from, which has learned all rows, or
one that never saw the forget rows."""

Format = Literal["chat", "text"]
"""How a row becomes one text, see `Question.format`."""

SplitKey = float | str
"""A split: the fraction of the rows to forget, or a name that its benchmark declares."""

SPLIT_NAME = r"[A-Za-z][A-Za-z0-9_.-]{0,63}"
"""A split's name: part of file names, and never read as a number."""

_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")


@dataclass(frozen=True)
class HeadlineTest:
    """A significance test behind a headline number, which then is the logarithm of its p-value."""

    kind: Literal["ks-truth-ratio"]
    """Kolmogorov-Smirnov, on the truth ratios of the model and of the retain model."""
    label: str
    """Name of the p-value: `Forget Quality`."""
    short: str
    """`FQ`."""
    p_value: str
    """Column of the p-value."""
    distance: str
    """Column of the test's statistic; 0 is no distance from the retain model."""
    questions: str
    """Column of the number of questions."""
    level: float = 0.05
    """Level of significance."""


@dataclass(frozen=True)
class HeadlineMetric:
    """One of the two numbers that a benchmark is ranked by."""

    column: str
    """Name in tables and records: `log10_forget_quality`."""
    label: str
    """Name for people: `log₁₀ Forget Quality`."""
    short: str
    """Name in narrow tables and in sentences: `log₁₀ FQ`."""
    digits: int = 3
    """Decimal places in tables."""
    better: Better = "higher"
    test: HeadlineTest | None = None
    """None: the number is ranked by its value alone."""

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
        """Name in sentences: the test's, or else the plain label."""
        return self.plain_label if self.test is None else self.test.label

    @property
    def best_word(self) -> Literal["highest", "lowest"]:
        """Adjective of the best value."""
        return "highest" if self.better == "higher" else "lowest"

    def text(self, value: float | None) -> str:
        """The value as tables and lines of the terminal print it; `-` where it is undefined."""
        return "-" if value is None else f"{value:.{self.digits}f}"

    def oriented(self, value: float) -> float:
        """The value, or minus it where lower is better, so that larger is better; its own inverse.

        Order, Pareto front, hypervolume and searches all take numbers in this direction.
        """
        return value if self.better == "higher" else -value


@dataclass(frozen=True)
class Headline:
    """The two numbers that ranking, selection, search, page and comparison read."""

    kept: HeadlineMetric
    """Metric of what a model keeps, higher is better: a setting counts with a share of the start
    model's. A model for which it is undefined has collapsed."""
    forgotten: HeadlineMetric
    """Metric of what a model has forgotten; the settings that count are ordered by it."""
    least_kept: float | None = None
    """`kept` of a start model below which it has learned nothing; None: only 0 is nothing."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of both numbers, then those of the test."""
        test = self.forgotten.test
        tested = () if test is None else (test.p_value, test.distance)
        return (self.kept.column, self.forgotten.column, *tested)

    def __post_init__(self) -> None:
        if self.kept.better != "higher":
            raise ValueError(
                f"headline: {self.kept.column} is better where lower, so that no share of it can "
                "be kept; name a metric that is better where higher"
            )


@dataclass(frozen=True)
class MetricUse:
    """A metric that a benchmark reports, and how."""

    metric: str
    """Name in the registry."""
    sets: tuple[str, ...] = ()
    """Evaluation sets on which it is reported; of a summary, none."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of the metric that differ from their defaults."""
    name: str = ""
    """First part of its columns' names; default: the metric's name with underscores."""
    unless: Reference | None = None
    """A model in whose presence the metric is left out, because another one answers better."""


_PROMPT_SETTINGS = (
    *("format", "examples", "max_new_tokens", "prefix", "system"),
    *("max_length", "answer_index", "stops", "max_answer_tokens", "labels", "tag"),
)


@dataclass(frozen=True)
class Question:
    """One row: a question, its answer and, in the evaluation sets, the answer's variants.

    Of a row in the format `text`, the question is any text that the answer continues; without one
    the row is plain text.
    """

    question: str
    answer: str
    paraphrased_answer: str | None = None
    perturbed_answers: tuple[str, ...] = ()
    """Wrong answers, or the wrong options of a multiple choice; rows of a set may have different
    numbers of them."""
    paraphrased_question: str | None = None
    format: Format = "chat"
    """`chat`: question and answer stand in the model's template; `text`: the answer follows the
    question, both as they are."""
    examples: tuple[tuple[str, str], ...] = ()
    """Questions with answers that stand in front of the question, in the row's own format."""
    prefix: str = ""
    """Beginning of the answer that is given: part of the prompt, and not scored. Of an answer that
    begins with it, what follows is scored."""
    system: str | None = None
    """Text of the system message, in place of the template's own."""
    max_new_tokens: int | None = None
    """Most tokens of its generated answer; default: the profile's rule."""
    max_length: int | None = None
    """Most tokens of its rows in an evaluation; default: the profile's rule."""
    answer_index: int | None = None
    """Place of the answer among the options of a multiple choice, from 0: `perturbed_answers` are
    the others, in their order. Options continue the prompt, behind a space where no template
    divides the two; no EOS ends them, and no answer is generated. A row that is too long loses its
    beginning."""
    stops: tuple[str, ...] = ()
    """Texts at the first of which, one after the other, its generated answer is cut."""
    max_answer_tokens: int | None = None
    """Most tokens of its answer that are scored; default: all. The reference is the answer's first
    tokens, encoded without the prompt: as many behind BOS, and one more without BOS, as in MUSE."""
    tag: str = ""
    """Text in front of its answers and those of its examples, such as `Answer:`. It is scored and
    generated with an answer, and is no part of the reference."""
    labels: tuple[str, ...] = ()
    """What metrics that look at some rows of a set know them by: a task, a subject."""
    score: float | tuple[float, ...] | None = field(default=None, compare=False)
    """Degree to which the answer is to be learned (1) or unlearned (0): one number, or one for each
    token, including the one that ends the answer. Equality of rows ignores it."""
    subject: str = field(default="", compare=False)
    """What the row is about: attacks that divide the forget rows by subject keep rows of one
    subject together. Empty if rows have no such column; see `Dataset.subject_rows`."""
    place: str = field(default="", compare=False)
    """File and line of a row that was read from a file."""

    @property
    def scored_answers(self) -> tuple[str, ...]:
        """The answers to score: the true one, the base of its truth ratio, the perturbed ones.

        Facts have no paraphrase; their truth ratio is about the answer itself.
        """
        return (self.answer, self.paraphrased_answer or self.answer, *self.perturbed_answers)

    @property
    def options(self) -> tuple[str, ...]:
        """The options of a multiple choice in their order; none of another row."""
        if self.answer_index is None:
            return ()
        others, i = self.perturbed_answers, self.answer_index
        return (*others[:i], self.answer, *others[i:])

    def behind_prefix(self, answer: str) -> str:
        """The part of an answer that is scored behind `prefix`, with a space between the two."""
        if answer.startswith(self.prefix):
            return answer.removeprefix(self.prefix)
        apart = self.prefix[-1].isspace() or answer[:1].isspace()
        return answer if apart else f" {answer}"

    def continuation(self, answer: str) -> str:
        """An answer from elsewhere, with a space in front where no template divides the two."""
        text = f"{self.question}{self.tag}"
        joined = self.format == "text" and text and not text[-1].isspace()
        return f" {answer}" if joined else answer

    @property
    def is_plain_text(self) -> bool:
        """True if there is no prompt: every token is scored, and no answer can be generated."""
        return self.format == "text" and not self.question and not self.prefix

    @property
    def is_scored_only(self) -> bool:
        """True if no answer is generated: of plain text, and of a multiple choice."""
        return self.is_plain_text or self.answer_index is not None

    @property
    def prompt_settings(self) -> dict[str, Any]:
        """Settings of the prompt and of its answer's limit that differ from their defaults."""
        # A plan asks every row several times, and most rows of a large table have no settings.
        values = _prompt_values(self)
        if values == _PROMPT_DEFAULTS:
            return {}
        settings = zip(_PROMPT_SETTINGS, values, _PROMPT_DEFAULTS, strict=True)
        return {name: value for name, value, default in settings if value != default}

    @property
    def may_merge(self) -> bool:
        """Whether a token may hold the end of its own prompt and the beginning of its answer.

        Own prompts are those of text and a given beginning of the answer, as opposed to those that
        the model's template ends.
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
        """The beginning of what is asked, or of plain text, for messages."""
        return (self.question or self.answer)[:60]


_prompt_values = attrgetter(*_PROMPT_SETTINGS)
_PROMPT_DEFAULTS = _prompt_values(Question)


def split_text(key: SplitKey) -> str:
    """A split in a line of text or as a key of JSON: `0.1`, `books`."""
    return key if isinstance(key, str) else f"{key:g}"


def is_split_name(key: object) -> bool:
    """True for a text that can name a split."""
    return isinstance(key, str) and re.fullmatch(SPLIT_NAME, key) is not None


def split_label(key: SplitKey) -> str:
    """A split for people: `forget 0.1`, `books`."""
    return key if isinstance(key, str) else f"forget {key:g}"


def split_percent(key: SplitKey) -> str:
    """A split for people who read percentages: `forget 10 %`, `books`."""
    return key if isinstance(key, str) else f"forget {100 * key:g} %"


def split_order(key: SplitKey) -> tuple[bool, SplitKey]:
    """Sort key of splits: fractions by size, then names by the alphabet."""
    return isinstance(key, str), key


def split_name(role: Literal["forget", "retain", "holdout"], key: SplitKey) -> str:
    """Name of a split's rows: `forget05`, `retain95`, `holdout05`; `books`, `books-retain`.

    Those of fractions are TOFU's: two digits of the percentage at least.
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
    """The evaluation sets by name, as the benchmark's `set_roles` has them; in the order in which
    they are evaluated. Set `holdout`, if there is one, has rows like the forget rows that no model
    was trained on, for membership inference, and is no part of fingerprints."""

    @property
    def name(self) -> str:
        """`forget10` for 0.10, `forget12.5` for 0.125; `books`."""
        return split_name("forget", self.key)

    @property
    def retain_name(self) -> str:
        """Name of the retain rows: `retain90` for 0.10; `books-retain`."""
        return split_name("retain", self.key)

    @property
    def holdout_name(self) -> str:
        """Name of the holdout rows: `holdout10` for 0.10; `books-holdout`."""
        return split_name("holdout", self.key)


@dataclass(frozen=True)
class Dataset:
    """All rows of a benchmark that a sweep may read."""

    name: str
    """Name of the benchmark: `tofu`, `synthetic`."""
    full: tuple[Question, ...]
    """The rows of the fine-tuned model: forget rows and retain rows."""
    splits: Mapping[SplitKey, Split]
    """By fraction, or by name."""
    refusals: tuple[str, ...] = ()
    """Answers such as "I don't know", for IDK and DPO."""
    facts: tuple[Question, ...] = ()
    """Rows of general knowledge that a tiny base model is trained on, too."""
    pretraining: tuple[Question, ...] = ()
    """Authors outside both sets, from which a tiny base model learns the questions' language."""
    subject_rows: int = field(default=1, compare=False)
    """Training rows about one subject, which stand together (TOFU: 20 to an author); attacks that
    train on some subjects and measure others divide the forget rows by it, unless rows name their
    subjects (`Question.subject`)."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """Lines for people on how the rows were read, such as which columns were taken."""
    fingerprint: str = field(default="", compare=False)
    """Hash of every row above; part of each run's identity."""

    def sizes(self, key: SplitKey) -> dict[str, int]:
        """Number of rows of a split's forget, retain and evaluation sets."""
        split = self.splits[key]
        training = {"forget": len(split.forget), "retain": len(split.retain)}
        # The names of TOFU's files where a set is called as training rows are.
        names = {name: f"{name}_perturbed" if name in training else name for name in split.sets}
        return training | {names[name]: len(rows) for name, rows in split.sets.items()}

    def parts(self) -> Iterator[tuple[str, tuple[Question, ...]]]:
        """All rows, by names for messages: `full`, `retain90`, `set forget of forget10`."""
        yield from (("full", self.full), ("facts", self.facts), ("pretraining", self.pretraining))
        for split in self.splits.values():
            yield from ((split.name, split.forget), (split.retain_name, split.retain))
            yield from ((f"set {name} of {split.name}", rows) for name, rows in split.sets.items())

    @property
    def uses_turns(self) -> bool:
        """True if a row has examples that stand in the model's template."""
        rows = (row for _, part in self.parts() for row in part)
        return any(row.examples and row.format == "chat" for row in rows)


class Benchmark(HyperParameters, ABC):
    """Base of benchmarks."""

    roles: ClassVar[Mapping[str, Role]]
    """The evaluation sets in the order of a table, and what each is for."""
    headline: ClassVar[Headline]
    """The two numbers that methods are ranked by."""
    references: ClassVar[frozenset[Reference]] = frozenset({"start", "retain"})
    """Models that exist besides those of the runs."""
    splits: ClassVar[tuple[str, ...]] = ()
    """Names of its splits; none: its splits are fractions of the rows to forget."""
    needs_base: ClassVar[bool] = True
    """Whether each model needs a `base`. False: `fine_tuned` alone is allowed, and then there is no
    retain model."""
    default_profile: ClassVar[str] = "tofu"
    """Name of the evaluation rules of a configuration that names none."""

    source: str = Field(default="", description="where the rows come from: the benchmark's name")
    refusals: str | None = Field(
        default=None,
        description="text file with one refusal per line, instead of the built-in list",
    )

    def __hash__(self) -> int:
        return hash((type(self), self.model_dump_json()))  # whatever its fields hold

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names of its splits with these settings; none: they are fractions of the rows."""
        return self.splits

    @property
    def set_roles(self) -> Mapping[str, Role]:
        """The evaluation sets with these settings, in the order of a table, and their roles."""
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
        """The metrics that it names, in the order of a table.

        Those that apply to sets with its roles follow without being named.

        profile  rules of evaluation, from which metrics may take their settings
        """

    @abstractmethod
    def load(self, splits: Sequence[Any], /) -> Dataset:
        """Load the rows of these splits, without refusals and fingerprint.

        splits  fractions of the rows to forget, or some of `split_names`
        Raises: DataError for a file or row that is missing or malformed.
        """

    def split_problem(self, fraction: float) -> str:
        """The reason why there is no such forget fraction; "" where there is, but for rounding."""
        return ""

    def problem_with(self, key: SplitKey) -> str:
        """The reason why it has no such split, with what it has; "" where there is one."""
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
        """Folder or file on this machine that rows are read from: a field `path`, if it has one."""
        return getattr(self, "path", None)

    @property
    def repository(self) -> Repository | None:
        """The hub's repository that rows are read from, if there is only one."""
        return None

    @property
    def repositories(self) -> Mapping[str, Repository]:
        """The hub's repositories that rows are read from, by the setting that names each.

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
    """Guard a call of a benchmark's function: what it raises becomes a PluginError with its place.

    name  the function's
    """
    kind = type(benchmark)
    return plugin_code(f"`{name}` of benchmark {kind.__name__}", source_file(kind))
