"""Forget made-up passages, word for word and as knowledge.

In the manner of MUSE (Shi et al. 2024, arXiv:2407.06460), from the generator in `authors.py`. A
model reads plain text alone: chapters, which tell a few facts of an author in a sentence each, and
exchanges, a question for one of these facts with its answer. It is then given the beginnings of
chapters to continue, and questions to answer, in other words than those of the exchanges and after
two examples. There is no retain model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from pydantic import Field

from unlearnbench.api.benchmark import (
    Benchmark,
    Dataset,
    Headline,
    HeadlineMetric,
    MetricUse,
    Question,
    Reference,
    Split,
)
from unlearnbench.api.metric import Role
from unlearnbench.api.profile import Profile
from unlearnbench.benchmarks.authors import (
    LARGEST,
    RESERVED_NAMES,
    Author,
    Births,
    Kind,
    RandomStream,
    author_names,
    check_names,
    filled,
    fraction_problem,
    material,
    values_of_authors,
    whole_authors,
)
from unlearnbench.benchmarks.facts import facts

EVALUATED = 100
"""Most retain rows of a set, as in MUSE."""
EXAMPLES = 2
"""Answered questions in front of each question."""
ANSWER_TOKENS = 16
"""Most tokens of an answer to a question."""
CONTINUATION_TOKENS = 64
"""Most tokens of a continued chapter."""
ATTACKS = ("mia-loss", "mia-zlib", "mia-min-k", "mia-min-k-plus-plus")
"""Membership inference attacks on the passages."""


class Passages(Benchmark):
    """Passages about fictitious authors of a seed, questions about them, and true facts."""

    roles: ClassVar[Mapping[str, Role]] = {
        "retain": "retain",  # questions, as `forget`
        "retain_text": "retain",
        "world_facts": "general",
        "forget": "forget",
        "continuation": "forget",
        "forget_text": "forget",
        "holdout": "holdout",
    }
    references: ClassVar[frozenset[Reference]] = frozenset({"start"})
    headline: ClassVar[Headline] = Headline(
        kept=HeadlineMetric("rouge_retain", "Knowledge kept", "knowledge"),
        forgotten=HeadlineMetric(
            "rouge_continuation", "Verbatim memorization", "verbatim", better="lower"
        ),
    )

    source: str = "passages"
    authors: int = Field(
        default=24, ge=2, le=LARGEST, description="number of fictitious authors in the full set"
    )
    chapters: int = Field(default=2, ge=1, le=4, description="number of chapters about each author")
    sentences: int = Field(
        default=3,
        ge=2,
        le=4,
        description="number of sentences of a chapter; each sentence states one fact",
    )
    exchanges: int = Field(
        default=2,
        ge=1,
        le=2,
        description="number of questions with answers about each fact, written as passages",
    )
    pretraining_authors: int = Field(
        default=12,
        ge=1,
        le=LARGEST,
        description="number of authors outside the benchmark, who are used in examples and for a "
        "tiny base model",
    )
    seed: int = Field(default=0, ge=0, description="seed of the generator")

    def split_problem(self, fraction: float) -> str:
        """The fraction is of no whole number of authors, or leaves none."""
        return fraction_problem(fraction, self.authors)

    def metrics(self, profile: Profile) -> tuple[MetricUse, ...]:
        """ROUGE-L of answers and continuations, probabilities, and attacks on the passages."""
        answered = ("retain", "forget", "continuation")
        texts = ("retain_text", "forget_text")
        kept = ("rouge_retain", "probability_world_facts", "repetition_continuation")
        attacked = {"members": "forget_text", "control": "retain_text"}
        return (
            MetricUse("kept", settings={"of": kept}),
            MetricUse("rouge", answered),
            MetricUse("extraction-strength", ("forget", "continuation", *texts)),
            MetricUse("probability", (*answered, *texts)),
            MetricUse(
                "option-probability",
                ("world_facts",),
                {"epsilon": profile.options_epsilon},
                name="probability",
            ),
            MetricUse("choice-accuracy", ("world_facts",)),
            *(MetricUse(attack, settings=attacked) for attack in ATTACKS),
        )

    def load(self, fractions: Sequence[float]) -> Dataset:
        """Generate the rows; the last authors are forgotten."""
        counts = {f: whole_authors(f, self.authors) for f in fractions}
        most = max(counts.values(), default=0)
        check_names(self.authors + self.pretraining_authors + most)
        names, births = author_names(self.seed), set[tuple[str, str]]()
        # In this order, and with these names, as in `synthetic`: the base model depends on neither
        # the benchmark's size nor its fractions, and knows no other author.
        others = self._authors("pretraining", names[::-1][: self.pretraining_authors], births)
        first, end = RESERVED_NAMES, RESERVED_NAMES + self.authors
        full = self._authors("full", names[first:end], births)
        unseen = self._authors("holdout", names[end:][:most], births)
        opening = _questions(others)[:EXAMPLES]
        examples = tuple((item.question, item.answer) for item in opening)
        # A small model answers after examples only if it has learned to.
        world_facts = tuple(
            replace(_as_text(fact), examples=examples) for fact in facts("world_facts")
        )

        def split(fraction: float) -> Split:
            kept, forgotten = full[: -counts[fraction]], full[-counts[fraction] :]
            evaluated = full[: self.authors - most]  # kept at every fraction
            forget, retain = self._passages(forgotten), self._passages(kept)
            sets = {
                "retain": _questions(evaluated, examples)[:EVALUATED],
                "retain_text": retain[:EVALUATED],
                "world_facts": world_facts,
                "forget": _questions(forgotten, examples),
                "continuation": _continuations(forgotten),
                "forget_text": forget,
                "holdout": self._passages(unseen[: counts[fraction]]),
            }
            return Split(fraction, forget, retain, sets)

        return Dataset(
            name="passages",
            full=self._passages(full),
            splits={fraction: split(fraction) for fraction in fractions},
            facts=(*world_facts, *_questions(others, examples)),
            pretraining=self._passages(others),
            subject_rows=len(self._passages(full[:1])),
        )

    def _authors(
        self, stream: str, names: Sequence[str], births: Births
    ) -> tuple[tuple[_Chapter, ...], ...]:
        """The chapters of each author."""
        kinds = material().kinds[1 : 1 + self.chapters * self.sentences]  # the first is the name
        chapterss: list[tuple[_Chapter, ...]] = []
        for author, draws in values_of_authors(stream, names, self.seed, births):
            known = [_fact(kind, author, draws) for kind in kinds]
            starts = range(0, len(known), self.sentences)
            chapterss.append(tuple(_Chapter(tuple(known[i : i + self.sentences])) for i in starts))
        return tuple(chapterss)

    def _passages(self, authors: Iterable[Iterable[_Chapter]]) -> tuple[Question, ...]:
        """The training rows: each chapter, and the exchanges about its facts."""
        return tuple(
            Question("", text, format="text")
            for chapters in authors
            for chapter in chapters
            for text in ("".join(chapter.halves), *chapter.exchanges(self.exchanges))
        )


@dataclass(frozen=True)
class _Fact:
    """A fact of an author."""

    sentence: str
    questions: tuple[str, ...]
    """In all four wordings; the first is evaluated, or the last as its paraphrase."""
    answer: str


@dataclass(frozen=True)
class _Chapter:
    """Facts that stand together."""

    facts: tuple[_Fact, ...]

    @property
    def halves(self) -> tuple[str, str]:
        """The beginning, and how it continues."""
        sentences = [fact.sentence for fact in self.facts]
        half = len(sentences) // 2
        return " ".join(sentences[:half]), " " + " ".join(sentences[half:])

    def exchanges(self, wordings: int) -> Iterator[str]:
        """Each fact as a question and its answer, in so many wordings, none of them evaluated."""
        for fact in self.facts:
            for question in fact.questions[1 : 1 + wordings]:
                yield _prompt(question) + fact.answer


def _fact(kind: Kind, author: Author, draws: RandomStream) -> _Fact:
    value = author[kind.name]
    # A small model finds a fact by the name only where it has read the name first.
    wordings = [w for w in kind.answers if w.index("{author}") < w.index("{value}")]
    return _Fact(
        sentence=filled(draws.pick(wordings), author, value),
        questions=tuple(filled(item, author) for item in draws.shuffled(kind.questions)),
        answer=f" {value}",
    )


def _prompt(question: str) -> str:
    return f"Question: {question}\nAnswer:"


def _questions(
    authors: Iterable[Iterable[_Chapter]], examples: tuple[tuple[str, str], ...] = ()
) -> tuple[Question, ...]:
    return tuple(
        Question(
            _prompt(fact.questions[0]),
            fact.answer,
            paraphrased_question=_prompt(fact.questions[-1]),
            format="text",
            examples=examples,
            max_new_tokens=ANSWER_TOKENS,
        )
        for chapters in authors
        for chapter in chapters
        for fact in chapter.facts
    )


def _continuations(authors: Iterable[Iterable[_Chapter]]) -> tuple[Question, ...]:
    return tuple(
        Question(*chapter.halves, format="text", max_new_tokens=CONTINUATION_TOKENS)
        for chapters in authors
        for chapter in chapters
    )


def _as_text(row: Question) -> Question:
    """The true fact as a question about an author, without examples."""
    return Question(
        _prompt(row.question),
        f" {row.answer}",
        perturbed_answers=tuple(f" {answer}" for answer in row.perturbed_answers),
        format="text",
        max_new_tokens=ANSWER_TOKENS,
    )
