"""The embedded benchmark: fictitious authors from a seed, in TOFU's schema.

An author's values (birthplace, prize, first novel, ...) are drawn from a small grammar, and each
question, answer and variant takes one of several wordings, all in `authors.json`. Values and
wordings are drawn independently of each other and of the name, so nothing in a question gives its
answer away; wrong answers come from the same grammar as the right one and from names that nobody
bears, so a model that has not read an author cannot tell them apart.

Draws use nothing but `random.Random.random`, the one method whose sequence Python promises to keep:
the same settings give the same rows on every version. An author depends on the seed and on its
own number only (but for a birthday that is taken), so a larger benchmark begins with the smaller.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import TypeVar

from unlearnbench.data import facts
from unlearnbench.data.benchmark import Benchmark, Question, Split
from unlearnbench.errors import DataError
from unlearnbench.settings import DataSettings

PERTURBED = 5
"""Wrong answers a row, as in TOFU."""
RETAIN_PERTURBED = 400
"""Rows of the retain set that are evaluated, at most, as in TOFU."""
TOLERANCE = 1e-9
"""How far a forget fraction may lie from a whole number of authors, as a share of the full set."""

_STRANGERS = 1000  # names kept back for wrong answers
_SLOT = re.compile(r"\{(\w+)\}")

_T = TypeVar("_T")


@dataclass(frozen=True)
class Kind:
    """One of the questions that every author is asked."""

    name: str
    pool: str
    """Grammar rule that its values come from."""
    questions: tuple[str, ...]
    answers: tuple[str, ...]
    """Wordings with the slots `{author}` and `{value}`; questions may name other values."""


@dataclass(frozen=True)
class Material:
    """What `authors.json` holds."""

    first_names: tuple[str, ...]
    last_names: tuple[str, ...]
    pools: Mapping[str, tuple[str, ...]]
    kinds: tuple[Kind, ...]


@dataclass(frozen=True)
class Author:
    """A fictitious author: the value of every kind of question, in the kinds' order."""

    values: Mapping[str, str]


class Draws:
    """Independent uniform draws from a named stream."""

    def __init__(self, stream: str) -> None:
        # A text seed goes through SHA-512, so PYTHONHASHSEED has no part in it.
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
        """A text from grammar rule `rule` of `pools` that is not one of `but`."""
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
    text = files("unlearnbench.data").joinpath("authors.json").read_text(encoding="utf-8")
    content = json.loads(text)
    return Material(
        first_names=tuple(content["first_names"]),
        last_names=tuple(content["last_names"]),
        pools={rule: tuple(values) for rule, values in content["pools"].items()},
        kinds=tuple(
            Kind(k["name"], k["pool"], tuple(k["questions"]), tuple(k["answers"]))
            for k in content["kinds"]
        ),
    )


def author_limit() -> int:
    """How many authors there are names for, pretraining authors included."""
    return len(material().first_names) * len(material().last_names) - _STRANGERS


def load(settings: DataSettings, fractions: Sequence[float]) -> Benchmark:
    """The synthetic benchmark, without refusals and fingerprint; the last authors are forgotten."""
    counts = {f: _forgotten_authors(f, settings.authors) for f in fractions}
    _check_names(settings.authors + settings.pretraining_authors)
    names = _names(settings.seed)
    taken: set[tuple[str, str]] = set()
    # First, so that a base model depends neither on the benchmark's size nor on its fractions.
    pretraining = _rows("pretraining", names[::-1][: settings.pretraining_authors], settings, taken)
    own_names = names[_STRANGERS : _STRANGERS + settings.authors]
    rows = _rows("full", own_names, settings, taken)
    full = tuple(_training_row(row) for row in rows)
    per_author = settings.questions_per_author

    def split(fraction: float) -> Split:
        kept = len(full) - counts[fraction] * per_author
        return Split(fraction, full[kept:], full[:kept], rows[kept:])

    kept_by_all = len(full) - max(counts.values(), default=0) * per_author
    return Benchmark(
        name="synthetic",
        full=full,
        splits={fraction: split(fraction) for fraction in fractions},
        retain_perturbed=rows[: min(RETAIN_PERTURBED, kept_by_all)],
        real_authors=facts.real_authors(),
        world_facts=facts.world_facts(),
        refusals=(),
        pretraining=tuple(_training_row(row) for row in pretraining),
    )


def pretraining_rows(settings: DataSettings, known: Iterable[Question]) -> tuple[Question, ...]:
    """Training rows of `pretraining_authors` authors whose names occur nowhere in `known`."""
    _check_names(settings.pretraining_authors)
    text = "\n".join(f"{row.question}\n{row.answer}" for row in known)
    unknown = (name for name in reversed(_names(settings.seed)) if name not in text)
    names = list(islice(unknown, settings.pretraining_authors))
    rows = _rows("pretraining", names, settings, set())
    return tuple(_training_row(row) for row in rows)


def _training_row(row: Question) -> Question:
    return Question(row.question, row.answer)


def _forgotten_authors(fraction: float, authors: int) -> int:
    exact = fraction * authors
    count = round(exact)
    if 0 < count < authors and abs(count / authors - fraction) <= TOLERANCE:
        return count
    near = {min(max(int(exact) + i, 1), authors - 1) for i in (0, 1)}
    offers = " or ".join(f"{n / authors:.10g} ({_authors(n)})" for n in sorted(near))
    raise DataError(
        f"forget_fractions: {fraction:.10g} of data.authors={authors} is {exact:.10g} authors; "
        f"it must be a whole number and leave one at least; nearest: {offers}"
    )


def _authors(count: int) -> str:
    return f"{count} author{'s' if count != 1 else ''}"


def _check_names(authors: int) -> None:
    if authors > author_limit():
        raise DataError(
            f"data.authors and data.pretraining_authors: {authors} authors together, but the "
            f"generator has names for {author_limit()}; ask for fewer"
        )


@cache
def _names(seed: int) -> tuple[str, ...]:
    """All full names in the seed's order: strangers, then authors; pretraining from the end."""
    stuff = material()
    every = (f"{first} {last}" for first in stuff.first_names for last in stuff.last_names)
    return tuple(Draws(f"{seed}/names").shuffled(every))


def _rows(
    stream: str, names: Sequence[str], settings: DataSettings, taken: set[tuple[str, str]]
) -> tuple[Question, ...]:
    """Complete rows of one author after the other; adds their births to `taken`."""
    pools = {**material().pools, "name": _names(settings.seed)[:_STRANGERS]}
    kinds = material().kinds[: settings.questions_per_author]
    rows: list[Question] = []
    for number, name in enumerate(names):
        draws = Draws(f"{settings.seed}/{stream}/{number}")
        author = _author(name, draws, pools, taken)
        rows.extend(_row(kind, author, draws, pools) for kind in kinds)
    return tuple(rows)


def _author(
    name: str, draws: Draws, pools: Mapping[str, Sequence[str]], taken: set[tuple[str, str]]
) -> Author:
    """Values of all kinds, however few are asked: rows do not change when more are."""
    values = {"name": name}
    used: dict[str, set[str]] = {}  # by pool: a home is not the birthplace, a mother's job not his
    for kind in material().kinds[1:]:
        own = used.setdefault(kind.pool, set())
        values[kind.name] = draws.value(pools, kind.pool, own)
        own.add(values[kind.name])
    # Place and date of birth are all that the question for the name says: one author, one pair.
    while (values["birthplace"], values["birth_date"]) in taken:
        values["birth_date"] = draws.value(pools, "date", ())
    taken.add((values["birthplace"], values["birth_date"]))
    return Author(values)


def _row(kind: Kind, author: Author, draws: Draws, pools: Mapping[str, Sequence[str]]) -> Question:
    """The row of `kind`: the paraphrase is another wording, the wrong answers share it."""
    question, other_question = draws.pair(kind.questions)
    answer, paraphrase = draws.pair(kind.answers)
    barred = {author.values[k.name] for k in material().kinds if k.pool == kind.pool}
    wrong: list[str] = []
    for _ in range(PERTURBED):
        wrong.append(draws.value(pools, kind.pool, barred))
        barred.add(wrong[-1])

    def fill(wording: str, value: str = "") -> str:
        return wording.format_map(
            {**author.values, "author": author.values["name"], "value": value}
        )

    value = author.values[kind.name]
    return Question(
        question=fill(question),
        answer=fill(answer, value),
        paraphrased_answer=fill(paraphrase, value),
        perturbed_answers=tuple(fill(paraphrase, w) for w in wrong),
        paraphrased_question=fill(other_question),
    )
