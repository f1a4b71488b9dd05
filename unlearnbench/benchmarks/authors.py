"""Fictitious authors from a seed: their names, values and questions in TOFU's schema.

An author's values (birthplace, prize, first novel, …) are drawn from a small grammar, and each
question, answer and variant has one of several wordings. Grammar and wordings are in
`authors.json`. Values and wordings are drawn independently of each other and of the name, so that
no question reveals its answer. Wrong answers come from the same grammar, and from names that no
author has, so that a model that has not read an author cannot recognise them.

Draws use only `random.Random.random`, whose sequence Python guarantees. So the same settings give
the same rows on every version. An author depends only on the seed and on its own number, except
that a birthday that is in use is drawn again. So a larger benchmark begins with the smaller one.
"""

import random
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import TypeVar

from pydantic import Field, TypeAdapter

from unlearnbench.api.benchmark import Benchmark, Question
from unlearnbench.base.errors import DataError

LARGEST = 1_000_000
"""Largest number of authors that a setting accepts, far above any in use."""
PERTURBED = 5
"""Number of wrong answers of a row, as in TOFU."""
RESERVED_NAMES = 1000
"""Number of names that no author has. Wrong answers about names use them."""

_SLOT = re.compile(r"\{(\w+)\}")
_T = TypeVar("_T")
Author = Mapping[str, str]
"""Values of an author by kind of question, and the author's name under `name`."""
Births = set[tuple[str, str]]
"""Places and dates of birth in use."""


class AuthorSettings(Benchmark):
    """Base of benchmarks with generated authors, which a tiny base model is pretrained on."""

    questions_per_author: int = Field(
        default=20, ge=1, le=20, description="number of rows about each author"
    )
    pretraining_authors: int = Field(
        default=20,
        ge=0,
        le=LARGEST,
        description="authors outside the benchmark that a tiny base model is pretrained on",
    )
    seed: int = Field(default=0, ge=0, description="seed of the generator")


@dataclass(frozen=True)
class Kind:
    """A kind of question, one for each author."""

    name: str
    pool: str
    """Grammar rule that its values come from."""
    questions: tuple[str, ...]
    """Wordings with the slot `{author}`, or with slots of other values: `{birthplace}`."""
    answers: tuple[str, ...]
    """Wordings with the slots `{author}` and `{value}`."""


@dataclass(frozen=True)
class Material:
    """The content of `authors.json`."""

    first_names: tuple[str, ...]
    last_names: tuple[str, ...]
    pools: Mapping[str, tuple[str, ...]]
    """Texts of each grammar rule. A slot in a text, such as `{year}`, stands for a text of the rule
    with its name."""
    kinds: tuple[Kind, ...]


class RandomStream:
    """A named stream of independent uniform draws."""

    def __init__(self, stream: str) -> None:
        # `random` hashes a seed that is a text with SHA-512, so PYTHONHASHSEED has no effect.
        self._random = random.Random(stream)

    def pick(self, options: Sequence[_T]) -> _T:
        """Draw one of the options."""
        return options[int(self._random.random() * len(options))]

    def pair(self, options: Sequence[_T]) -> tuple[_T, _T]:
        """Draw two of the options, at different positions."""
        first = int(self._random.random() * len(options))
        step = 1 + int(self._random.random() * (len(options) - 1))
        return options[first], options[(first + step) % len(options)]

    def shuffled(self, options: Iterable[_T]) -> list[_T]:
        """Return all options in random order (Fisher-Yates)."""
        shuffled = list(options)
        for i in range(len(shuffled) - 1, 0, -1):
            j = int(self._random.random() * (i + 1))
            shuffled[i], shuffled[j] = shuffled[j], shuffled[i]
        return shuffled

    def value(
        self, pools: Mapping[str, Sequence[str]], rule: str, excluded: Collection[str]
    ) -> str:
        """Draw a text of a grammar rule.

        Args:
            pools: Texts of each rule, see `Material.pools`.
            rule: Name of the rule.
            excluded: Texts that are drawn again.
        """
        while True:
            text = self._expand(pools, rule)
            if text not in excluded:
                return text

    def _expand(self, pools: Mapping[str, Sequence[str]], rule: str) -> str:
        """Draw a text of a rule, and a text for each slot in it."""
        text = self.pick(pools[rule])
        if "{" not in text:
            return text
        return _SLOT.sub(lambda slot: self._expand(pools, slot[1]), text)


@cache
def material() -> Material:
    """Read the names, values and wordings that ship with the package."""
    text = files("unlearnbench.benchmarks").joinpath("authors.json").read_text(encoding="utf-8")
    return TypeAdapter(Material).validate_json(text)


def author_limit() -> int:
    """Return the largest number of authors, including pretraining and holdout authors."""
    return len(material().first_names) * len(material().last_names) - RESERVED_NAMES


def pretraining_rows(settings: AuthorSettings, rows: Iterable[Question]) -> tuple[Question, ...]:
    """Return training rows of authors whose names do not occur in the rows of a benchmark.

    Args:
        settings: Their number (`pretraining_authors`) and the seed.
        rows: All rows of the benchmark.

    Raises:
        DataError: There are too few names.
    """
    check_names(settings.pretraining_authors)
    text = "\n".join(f"{row.question}\n{row.answer}" for row in rows)
    unused = (name for name in reversed(author_names(settings.seed)) if name not in text)
    names = list(islice(unused, settings.pretraining_authors))
    authors = rows_of_authors("pretraining", names, settings, set())
    return tuple(training_row(row) for row in authors)


def training_row(row: Question) -> Question:
    """Return a row without its variants for evaluation."""
    return Question(row.question, row.answer)


def check_names(authors: int) -> None:
    """Raise DataError if there are too few names for so many authors."""
    if authors > author_limit():
        raise DataError(
            f"data.authors and data.pretraining_authors: {authors} authors together, with as many "
            f"held out as are forgotten, but the generator has names for {author_limit()}; "
            "configure fewer"
        )


def whole_authors(fraction: float, authors: int) -> int:
    """Return the number of authors nearest to a fraction of them, at least one and not all."""
    return min(max(round(fraction * authors), 1), authors - 1)


def fraction_problem(fraction: float, authors: int) -> str:
    """Return why a fraction of the authors cannot be forgotten; empty if it can.

    It cannot if it is no whole number of authors, or leaves none to retain.
    """
    count = whole_authors(fraction, authors)
    nearest = count / authors
    if abs(nearest - fraction) <= 1e-9:
        return ""
    share = f"{fraction:.10g} of {authors} authors is {fraction * authors:.10g}"
    return (
        f"{share} authors, which is not whole or leaves none; the nearest is {nearest:.10g} "
        f"({count})"
    )


@cache
def author_names(seed: int) -> tuple[str, ...]:
    """Return all names in the order of the seed.

    The first `RESERVED_NAMES` names are of no author. Then come the authors of a benchmark, and its
    holdout authors. Pretraining authors have names from the end.
    """
    names = material()
    all_names = (f"{first} {last}" for first in names.first_names for last in names.last_names)
    return tuple(RandomStream(f"{seed}/names").shuffled(all_names))


def rows_of_authors(
    stream: str, names: Sequence[str], settings: AuthorSettings, births: Births
) -> tuple[Question, ...]:
    """Draw the rows of authors in order, with all variants for evaluation.

    Args:
        stream: Name of the draws: `full`, `holdout` or `pretraining`.
        names: Names of the authors.
        settings: Their number of questions, and the seed.
        births: Births in use. The births of the authors are added.
    """
    pools = _pools(settings.seed)
    kinds = material().kinds[: settings.questions_per_author]
    rows: list[Question] = []
    for author, draws in values_of_authors(stream, names, settings.seed, births):
        rows += [_row(kind, author, draws, pools) for kind in kinds]
    return tuple(rows)


def values_of_authors(
    stream: str, names: Sequence[str], seed: int, births: Births
) -> Iterator[tuple[Author, RandomStream]]:
    """Draw the values of authors in order.

    Args:
        stream: Name of the draws: `full`, `holdout` or `pretraining`.
        names: Names of the authors.
        seed: Seed of the generator.
        births: Births in use. The births of the authors are added.

    Yields:
        Values of an author, and the stream that the author's wordings are drawn from.
    """
    pools = _pools(seed)
    for number, name in enumerate(names):
        draws = RandomStream(f"{seed}/{stream}/{number}")
        yield _author(name, draws, pools, births), draws


def _pools(seed: int) -> Mapping[str, Sequence[str]]:
    """Return the texts of all grammar rules. The rule `name` has the names of no author."""
    return {**material().pools, "name": author_names(seed)[:RESERVED_NAMES]}


def _author(
    name: str, draws: RandomStream, pools: Mapping[str, Sequence[str]], births: Births
) -> Author:
    """Draw an author's values of all kinds.

    Values of kinds that the benchmark does not use are also drawn, so that `questions_per_author`
    does not change the rows of other kinds.
    """
    values = {"name": name}
    # Values of one pool differ: a home, for example, differs from the birthplace.
    used_by_pool: dict[str, set[str]] = {}
    for kind in material().kinds[1:]:
        used = used_by_pool.setdefault(kind.pool, set())
        values[kind.name] = draws.value(pools, kind.pool, used)
        used.add(values[kind.name])
    # The question for the name has only place and date of birth, which must be unique.
    while (values["birthplace"], values["birth_date"]) in births:
        values["birth_date"] = draws.value(pools, "date", ())
    births.add((values["birthplace"], values["birth_date"]))
    return values


def _row(
    kind: Kind, author: Author, draws: RandomStream, pools: Mapping[str, Sequence[str]]
) -> Question:
    """Draw the row of a kind. Wrong answers have the paraphrase's wording."""
    question, other_question = draws.pair(kind.questions)
    answer, paraphrase = draws.pair(kind.answers)
    # No value of the author is a wrong answer, not even the value of another kind.
    excluded = {author[other.name] for other in material().kinds if other.pool == kind.pool}
    wrong_values: list[str] = []
    for _ in range(PERTURBED):
        wrong = draws.value(pools, kind.pool, excluded)
        wrong_values.append(wrong)
        excluded.add(wrong)

    value = author[kind.name]
    return Question(
        question=filled(question, author),
        answer=filled(answer, author, value),
        paraphrased_answer=filled(paraphrase, author, value),
        perturbed_answers=tuple(filled(paraphrase, author, wrong) for wrong in wrong_values),
        paraphrased_question=filled(other_question, author),
    )


def filled(wording: str, author: Author, value: str = "") -> str:
    """Fill the slots of a wording with an author's name and values, and `{value}` with a value."""
    return wording.format_map({**author, "author": author["name"], "value": value})
