"""Fictitious authors from a seed: their names, values and questions in TOFU's schema.

An author's values (birthplace, prize, first novel, ...) are drawn from a small grammar, and each
question, answer and variant has one of several wordings, all in `authors.json`. Values and wordings
are drawn independently of each other and of the name, so that no question reveals its answer; wrong
answers come from the same grammar and from names that no author has, so that a model that has not
read an author cannot recognise them.

Draws use `random.Random.random` alone, the one method whose sequence Python guarantees: the same
settings give the same rows on every version. An author depends on the seed and on its own number
only (except for a birthday that is in use), so that a larger benchmark begins with the smaller one.
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
"""Bound on numbers of authors, far above any in use."""
PERTURBED = 5
"""Wrong answers of a row, as in TOFU."""
RESERVED_NAMES = 1000
"""Names that no author has, for wrong answers."""

_SLOT = re.compile(r"\{(\w+)\}")
_T = TypeVar("_T")
Author = Mapping[str, str]
"""Values of an author by the names of their kinds."""
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
    answers: tuple[str, ...]
    """Wordings with the slots `{author}` and `{value}`; questions may name other values."""


@dataclass(frozen=True)
class Material:
    """The content of `authors.json`."""

    first_names: tuple[str, ...]
    last_names: tuple[str, ...]
    pools: Mapping[str, tuple[str, ...]]
    kinds: tuple[Kind, ...]


class RandomStream:
    """A named stream of independent uniform draws."""

    def __init__(self, stream: str) -> None:
        # A text seed is hashed with SHA-512, so that PYTHONHASHSEED has no effect.
        self._random = random.Random(stream)

    def pick(self, options: Sequence[_T]) -> _T:
        """One of `options`."""
        return options[int(self._random.random() * len(options))]

    def pair(self, options: Sequence[_T]) -> tuple[_T, _T]:
        """Two of `options` at different places."""
        first = int(self._random.random() * len(options))
        step = 1 + int(self._random.random() * (len(options) - 1))
        return options[first], options[(first + step) % len(options)]

    def shuffled(self, options: Iterable[_T]) -> list[_T]:
        """All of `options` in random order (Fisher-Yates)."""
        items = list(options)
        for i in range(len(items) - 1, 0, -1):
            j = int(self._random.random() * (i + 1))
            items[i], items[j] = items[j], items[i]
        return items

    def value(self, pools: Mapping[str, Sequence[str]], rule: str, but: Collection[str]) -> str:
        """Draw a text from grammar rule `rule` of `pools` that is not one of `but`."""
        while True:
            text = self._expand(pools, rule)
            if text not in but:
                return text

    def _expand(self, pools: Mapping[str, Sequence[str]], rule: str) -> str:
        text = self.pick(pools[rule])
        return _SLOT.sub(lambda slot: self._expand(pools, slot[1]), text) if "{" in text else text


@cache
def material() -> Material:
    """The names, values and wordings that ship with the package."""
    text = files("unlearnbench.benchmarks").joinpath("authors.json").read_text(encoding="utf-8")
    return TypeAdapter(Material).validate_json(text)


def author_limit() -> int:
    """Largest number of authors, including pretraining authors and those held out."""
    return len(material().first_names) * len(material().last_names) - RESERVED_NAMES


def pretraining_rows(settings: AuthorSettings, rows: Iterable[Question]) -> tuple[Question, ...]:
    """Training rows of `pretraining_authors` authors whose names do not occur in `rows`."""
    check_names(settings.pretraining_authors)
    text = "\n".join(f"{row.question}\n{row.answer}" for row in rows)
    unknown = (name for name in reversed(author_names(settings.seed)) if name not in text)
    names = list(islice(unknown, settings.pretraining_authors))
    authors = rows_of_authors("pretraining", names, settings, set())
    return tuple(training_row(row) for row in authors)


def training_row(row: Question) -> Question:
    """The row without the variants for evaluation."""
    return Question(row.question, row.answer)


def check_names(authors: int) -> None:
    """Raise DataError where there are too few names."""
    if authors > author_limit():
        raise DataError(
            f"data.authors and data.pretraining_authors: {authors} authors together, with as many "
            f"held out as are forgotten, but the generator has names for {author_limit()}; "
            "configure fewer"
        )


def whole_authors(fraction: float, authors: int) -> int:
    """The number of authors nearest to a fraction of them, at least one and not all."""
    return min(max(round(fraction * authors), 1), authors - 1)


def fraction_problem(fraction: float, authors: int) -> str:
    """The reason why a fraction is of no whole number of authors; "" where it is."""
    count = whole_authors(fraction, authors)
    near = count / authors
    if abs(near - fraction) <= 1e-9:
        return ""
    part = f"{fraction:.10g} of {authors} authors is {fraction * authors:.10g}"
    return (
        f"{part} authors, which is not whole or leaves none; the nearest is {near:.10g} ({count})"
    )


@cache
def author_names(seed: int) -> tuple[str, ...]:
    """All names in the seed's order: reserved ones, authors, holdout; pretraining from the end."""
    known = material()
    every = (f"{first} {last}" for first in known.first_names for last in known.last_names)
    return tuple(RandomStream(f"{seed}/names").shuffled(every))


def rows_of_authors(
    stream: str, names: Sequence[str], settings: AuthorSettings, births: Births
) -> tuple[Question, ...]:
    """Complete rows of authors in order; adds their births to `births`."""
    pools = _pools(settings.seed)
    kinds = material().kinds[: settings.questions_per_author]
    authors = values_of_authors(stream, names, settings.seed, births)
    return tuple(_row(kind, item, draws, pools) for item, draws in authors for kind in kinds)


def values_of_authors(
    stream: str, names: Sequence[str], seed: int, births: Births
) -> Iterator[tuple[Author, RandomStream]]:
    """Draw the values of authors in order, each with the stream of its wordings.

    births  births in use, to which those of the authors are added
    """
    pools = _pools(seed)
    for number, name in enumerate(names):
        draws = RandomStream(f"{seed}/{stream}/{number}")
        yield _author(name, draws, pools, births), draws


def _pools(seed: int) -> Mapping[str, Sequence[str]]:
    return {**material().pools, "name": author_names(seed)[:RESERVED_NAMES]}


def _author(
    name: str, draws: RandomStream, pools: Mapping[str, Sequence[str]], births: Births
) -> Author:
    """Draw the values of all kinds, even of unused ones: more questions change no rows."""
    values = {"name": name}
    used: dict[str, set[str]] = {}  # by pool: a home differs from the birthplace
    for kind in material().kinds[1:]:
        part = used.setdefault(kind.pool, set())
        values[kind.name] = draws.value(pools, kind.pool, part)
        part.add(values[kind.name])
    # The question for the name has only place and date of birth, which must be unique.
    while (values["birthplace"], values["birth_date"]) in births:
        values["birth_date"] = draws.value(pools, "date", ())
    births.add((values["birthplace"], values["birth_date"]))
    return values


def _row(
    kind: Kind, author: Author, draws: RandomStream, pools: Mapping[str, Sequence[str]]
) -> Question:
    """Draw the row of a kind; wrong answers share the paraphrase's wording."""
    question, other_question = draws.pair(kind.questions)
    answer, paraphrase = draws.pair(kind.answers)
    barred = {author[k.name] for k in material().kinds if k.pool == kind.pool}
    faults: list[str] = []
    for _ in range(PERTURBED):
        faults.append(draws.value(pools, kind.pool, barred))
        barred.add(faults[-1])

    value = author[kind.name]
    return Question(
        question=filled(question, author),
        answer=filled(answer, author, value),
        paraphrased_answer=filled(paraphrase, author, value),
        perturbed_answers=tuple(filled(paraphrase, author, w) for w in faults),
        paraphrased_question=filled(other_question, author),
    )


def filled(wording: str, author: Author, value: str = "") -> str:
    """The wording of a question or answer about an author, with `value` in its slot."""
    return wording.format_map({**author, "author": author["name"], "value": value})
