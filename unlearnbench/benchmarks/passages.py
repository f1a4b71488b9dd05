"""Forget made-up passages, word for word and as knowledge.

The benchmark follows MUSE (Shi et al. 2024, arXiv:2407.06460), with the generator of `authors.py`.
A model is trained only on plain text. There are two kinds of passages:

    chapter     a few facts about an author, each in a sentence
    exchange    a question about one of these facts, with its answer

The model is then given the beginnings of chapters to continue, and questions to answer. These
questions have other wordings than the exchanges, and stand after two examples. There is no retain
model.
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
    SplitKey,
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
"""Largest number of retain rows in a set, as in MUSE."""
EXAMPLES = 2
"""Number of answered questions in front of each question."""
ANSWER_TOKENS = 16
"""Largest number of tokens of an answer."""
CONTINUATION_TOKENS = 64
"""Largest number of tokens of a continued chapter."""
ATTACKS = ("mia-loss", "mia-zlib", "mia-min-k", "mia-min-k-plus-plus")
"""Membership inference attacks on the passages."""


class Passages(Benchmark):
    """Passages about fictitious authors, questions about them, and true facts."""

    roles: ClassVar[Mapping[str, Role]] = {
        "retain": "retain",  # questions, like `forget`
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
        """Return why a fraction of the authors cannot be forgotten; empty if it can."""
        return fraction_problem(fraction, self.authors)

    def metrics(self, profile: Profile) -> tuple[MetricUse, ...]:
        """Return ROUGE-L of answers and continuations, probabilities, and attacks on passages."""
        answered = ("retain", "forget", "continuation")
        texts = ("retain_text", "forget_text")
        kept = ("rouge_retain", "probability_world_facts", "repetition_continuation")
        option_probability = MetricUse(
            "option-probability",
            ("world_facts",),
            {"epsilon": profile.options_epsilon},
            name="probability",
        )
        attacked = {"members": "forget_text", "control": "retain_text"}
        return (
            MetricUse("kept", settings={"of": kept}),
            MetricUse("rouge", answered),
            MetricUse("extraction-strength", ("forget", "continuation", *texts)),
            MetricUse("probability", (*answered, *texts)),
            option_probability,
            MetricUse("choice-accuracy", ("world_facts",)),
            *(MetricUse(attack, settings=attacked) for attack in ATTACKS),
        )

    def load(self, fractions: Sequence[float]) -> Dataset:
        """Generate the rows. The last authors are forgotten."""
        forgotten_authors = {
            fraction: whole_authors(fraction, self.authors) for fraction in fractions
        }
        most_forgotten = max(forgotten_authors.values(), default=0)
        check_names(self.authors + self.pretraining_authors + most_forgotten)
        names = author_names(self.seed)
        births: Births = set()
        # Order and names are as in `synthetic`: the base model depends on neither the benchmark's
        # size nor its fractions, and knows no author of the benchmark.
        pretraining_names = names[::-1][: self.pretraining_authors]
        pretraining = self._chapters("pretraining", pretraining_names, births)
        end = RESERVED_NAMES + self.authors
        full = self._chapters("full", names[RESERVED_NAMES:end], births)
        holdout = self._chapters("holdout", names[end:][:most_forgotten], births)

        example_rows = _questions(pretraining)[:EXAMPLES]
        examples = tuple((row.question, row.answer) for row in example_rows)
        # A small model answers after examples only if it has learned to.
        world_facts = tuple(
            replace(_as_text(fact), examples=examples) for fact in facts("world_facts")
        )
        splits: dict[SplitKey, Split] = {}
        for fraction, count in forgotten_authors.items():
            retained = full[:-count]
            forgotten = full[-count:]
            forget = self._passages(forgotten)
            retain = self._passages(retained)
            # The authors that are retained at each fraction, so that questions are the same at all.
            always_retained = full[: self.authors - most_forgotten]
            sets = {
                "retain": _questions(always_retained, examples)[:EVALUATED],
                "retain_text": retain[:EVALUATED],
                "world_facts": world_facts,
                "forget": _questions(forgotten, examples),
                "continuation": _continuations(forgotten),
                "forget_text": forget,
                "holdout": self._passages(holdout[:count]),
            }
            splits[fraction] = Split(fraction, forget, retain, sets)
        return Dataset(
            name="passages",
            full=self._passages(full),
            splits=splits,
            facts=(*world_facts, *_questions(pretraining, examples)),
            pretraining=self._passages(pretraining),
            subject_rows=len(self._passages(full[:1])),
        )

    def _chapters(
        self, stream: str, names: Sequence[str], births: Births
    ) -> tuple[AuthorChapters, ...]:
        """Generate the chapters of authors, see `values_of_authors`."""
        # The first kind is the name, which is no fact about the author.
        kinds = material().kinds[1 : 1 + self.chapters * self.sentences]
        chapters_of_authors: list[AuthorChapters] = []
        for author, draws in values_of_authors(stream, names, self.seed, births):
            author_facts = [_fact(kind, author, draws) for kind in kinds]
            chapters: list[Chapter] = []
            for begin in range(0, len(author_facts), self.sentences):
                chapters.append(Chapter(tuple(author_facts[begin : begin + self.sentences])))
            chapters_of_authors.append(tuple(chapters))
        return tuple(chapters_of_authors)

    def _passages(self, authors: Iterable[AuthorChapters]) -> tuple[Question, ...]:
        """Return the training rows: each chapter, and the exchanges about its facts."""
        texts: list[str] = []
        for chapters in authors:
            for chapter in chapters:
                texts.append("".join(chapter.halves))
                texts += chapter.exchanges(self.exchanges)
        return tuple(Question("", text, format="text") for text in texts)


@dataclass(frozen=True)
class Fact:
    """A fact of an author."""

    sentence: str
    questions: tuple[str, ...]
    """The question in four wordings. The first is evaluated, and the last is its paraphrase. The
    others are for exchanges."""
    answer: str


@dataclass(frozen=True)
class Chapter:
    """Facts that stand together."""

    facts: tuple[Fact, ...]

    @property
    def halves(self) -> tuple[str, str]:
        """The beginning of the text, and its continuation."""
        sentences = [fact.sentence for fact in self.facts]
        half = len(sentences) // 2
        return " ".join(sentences[:half]), " " + " ".join(sentences[half:])

    def exchanges(self, wordings: int) -> Iterator[str]:
        """Yield each fact as a question with its answer, in some wordings.

        Args:
            wordings: Number of wordings, at most 2. None of them is evaluated.
        """
        for fact in self.facts:
            for question in fact.questions[1 : 1 + wordings]:
                yield _prompt(question) + fact.answer


AuthorChapters = tuple[Chapter, ...]
"""The chapters about one author."""


def _fact(kind: Kind, author: Author, draws: RandomStream) -> Fact:
    """Draw the wordings of a fact."""
    value = author[kind.name]
    # A small model finds a fact by the name only if it has read the name first.
    wordings = [
        wording for wording in kind.answers if wording.index("{author}") < wording.index("{value}")
    ]
    sentence = filled(draws.pick(wordings), author, value)
    questions = tuple(filled(question, author) for question in draws.shuffled(kind.questions))
    return Fact(sentence, questions, answer=f" {value}")


def _prompt(question: str) -> str:
    return f"Question: {question}\nAnswer:"


def _questions(
    authors: Iterable[AuthorChapters], examples: tuple[tuple[str, str], ...] = ()
) -> tuple[Question, ...]:
    """Return a question about each fact of the authors, after some examples."""
    rows: list[Question] = []
    for chapters in authors:
        for chapter in chapters:
            rows += [_question(fact, examples) for fact in chapter.facts]
    return tuple(rows)


def _question(fact: Fact, examples: tuple[tuple[str, str], ...]) -> Question:
    return Question(
        _prompt(fact.questions[0]),
        fact.answer,
        paraphrased_question=_prompt(fact.questions[-1]),
        format="text",
        examples=examples,
        max_new_tokens=ANSWER_TOKENS,
    )


def _continuations(authors: Iterable[AuthorChapters]) -> tuple[Question, ...]:
    """Return the beginning of each chapter, to be continued."""
    rows: list[Question] = []
    for chapters in authors:
        for chapter in chapters:
            beginning, continuation = chapter.halves
            rows.append(
                Question(beginning, continuation, format="text", max_new_tokens=CONTINUATION_TOKENS)
            )
    return tuple(rows)


def _as_text(fact: Question) -> Question:
    """Return a true fact in the form of a question about an author, without examples."""
    return Question(
        _prompt(fact.question),
        f" {fact.answer}",
        perturbed_answers=tuple(f" {answer}" for answer in fact.perturbed_answers),
        format="text",
        max_new_tokens=ANSWER_TOKENS,
    )
