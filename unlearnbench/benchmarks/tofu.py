"""TOFU: forget some of 200 made-up authors.

Both sources have the same tables (`full`, `forget10`, `retain90`, ...), of which those of the
configured fractions are read. Malformed rows, and tables that do not fit each other, such as a
retain set of another version, are errors with file, line and column. The holdout rows (`holdout10`)
may be missing, as in TOFU's GitHub repository: then there is no membership inference.

Forget and retain rows may have an additional column, `score`, for methods that read it: a number
from 0 (unlearn) to 1 (learn), or a list with one for each token of the answer and its end.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from unlearnbench.api.benchmark import Dataset, Question, Split, split_name
from unlearnbench.base import hub
from unlearnbench.base.errors import DataError
from unlearnbench.benchmarks.authors import pretraining_rows
from unlearnbench.benchmarks.published_tables import Columns, Words, data_folder, rows_of_file
from unlearnbench.benchmarks.tofu_metrics import TofuSchema

FRACTIONS = (0.01, 0.05, 0.10)
"""Forget fractions that TOFU publishes."""
ROWS_PER_AUTHOR = 20

_FACTS = ("real_authors_perturbed", "world_facts_perturbed")  # three wrong answers, no paraphrase
Rows = tuple[Question, ...]


class TOFU(TofuSchema):
    """Maini et al. 2024, arXiv:2401.06121: 200 fictitious authors of 20 questions each."""

    source: str = "tofu"
    path: str | None = Field(
        default=None,
        description="folder of its JSON-lines files, whose forget and retain rows may have a "
        "`score`; default: the hub's files",
    )
    hub_id: str = Field(default="locuslab/TOFU", description="dataset id on the hub")
    revision: str | None = Field(default=None, description="commit or tag on the hub")
    retain_authors: int | None = Field(
        default=None,
        ge=1,
        le=180,
        description="number of first authors that are kept, in addition to the forget sets, for "
        "a small study; default: all",
    )

    def split_problem(self, fraction: float) -> str:
        """The fraction is none that TOFU publishes."""
        near = _nearest(fraction)
        if abs(near - fraction) <= 1e-9:
            return ""
        rule = f"TOFU has forget sets of 0.01, 0.05 and 0.10, got {fraction:.10g}"
        return f"{rule}; the nearest is {near:.2f}"

    @property
    def repository(self) -> hub.Repository | None:
        """The hub's repository, where rows are read from it."""
        if self.path is not None:
            return None
        return hub.Repository("dataset", self.hub_id, self.revision)

    def load(self, fractions: Sequence[float]) -> Dataset:
        """Load the tables of these forget fractions."""
        published = {fraction: _nearest(fraction) for fraction in fractions}
        names, optional = ["full"], list[str]()
        for fraction in sorted(set(published.values())):
            forget = split_name("forget", fraction)
            names += [forget, split_name("retain", fraction), f"{forget}_perturbed"]
            optional.append(split_name("holdout", fraction))
        names += ["retain_perturbed", *_FACTS]
        folder, origin = _folder(self, *([f"{n}.json" for n in part] for part in (names, optional)))
        names += [name for name in optional if (folder / f"{name}.json").is_file()]
        tables = {name: _table(name, folder, origin) for name in names}
        if self.retain_authors is not None:
            tables = _first_authors(tables, self.retain_authors * ROWS_PER_AUTHOR)
        return Dataset(
            name="tofu",
            full=tables["full"],
            splits={f: _split(f, true, tables, origin) for f, true in published.items()},
            facts=(*tables[_FACTS[0]], *tables[_FACTS[1]]),
            pretraining=pretraining_rows(self, tables["full"]),
            subject_rows=ROWS_PER_AUTHOR,
        )


def _nearest(fraction: float) -> float:
    return min(FRACTIONS, key=lambda known: abs(known - fraction))


def _folder(settings: TOFU, files: Sequence[str], optional: Sequence[str]) -> tuple[Path, str]:
    """The folder that has all `files`, the user's or the hub's, and its name in messages."""
    repository = settings.repository
    try:
        if repository is not None:
            folder, origin = hub.snapshot(repository, (*files, *optional)), settings.hub_id
            subject = f"{origin}: the hub's data set"
            fix = "name one with TOFU's files in data.hub_id, and the revision that has them"
        else:
            folder = Path(str(settings.path)).expanduser()
            origin, subject = str(folder), f"data.path: {folder}"
            fix = "download them from the hub's dataset, or leave data.path out to fetch all"
    except hub.HubError as error:
        raise DataError(
            f"{settings.hub_id}: cannot be read from the hub ({error}); without a network, use a "
            "folder of TOFU's JSON-lines files: --set data.path=FOLDER, or of evaluate and "
            "attack --data FOLDER"
        ) from error
    return data_folder(folder, files, subject, fix), origin


def _table(name: str, folder: Path, origin: str) -> tuple[Question, ...]:
    """Read a file and check its rows."""
    kind: type[_Row] = _Row if name.startswith("holdout") else _Trained
    if name.endswith("_perturbed"):
        kind = _Fact if name in _FACTS else _Varied
    file = folder / f"{name}.json"
    rows = rows_of_file(file, f"{origin}/{file.name}", kind)
    return tuple(_question(row.model_dump(), location) for location, row in rows)


_Score = Annotated[float, Field(ge=0, le=1)]


class _Row(Columns):
    question: Words
    answer: Words


class _Trained(_Row):
    score: _Score | Annotated[tuple[_Score, ...], Field(min_length=1)] | None = None


class _Fact(_Row):
    perturbed_answer: Words | Annotated[tuple[Words, ...], Field(min_length=1)]


class _Varied(_Fact):
    paraphrased_answer: Words
    paraphrased_question: Words


def _question(columns: dict[str, Any], location: str) -> Question:
    perturbed = columns.pop("perturbed_answer", ())
    perturbed = (perturbed,) if isinstance(perturbed, str) else perturbed
    return Question(**columns, perturbed_answers=perturbed, place=location)


def _split(given: float, published: float, tables: Mapping[str, Rows], origin: str) -> Split:
    """Check that the tables fit each other."""
    name, retain = split_name("forget", published), split_name("retain", published)
    texts = {n: [(row.question, row.answer) for row in rows] for n, rows in tables.items()}
    faults = {
        f"{name} and {retain} together do not have the rows of full": Counter(
            texts[name] + texts[retain]
        )
        != Counter(texts["full"]),
        f"{name}_perturbed has other rows than {name}": texts[f"{name}_perturbed"] != texts[name],
        f"retain_perturbed has rows that {retain} lacks": not {*texts["retain_perturbed"]}
        <= {*texts[retain]},
    }
    for fault in (text for text, holds in faults.items() if holds):
        raise DataError(f"{origin}: {fault}; a file is cut off, or from another version")
    sets = {
        "retain": tables["retain_perturbed"],
        "forget": tables[f"{name}_perturbed"],
        "real_authors": tables[_FACTS[0]],
        "world_facts": tables[_FACTS[1]],
        "holdout": tables.get(split_name("holdout", published), ()),
    }
    return Split(given, tables[name], tables[retain], sets)


def _first_authors(
    tables: Mapping[str, tuple[Question, ...]], count: int
) -> dict[str, tuple[Question, ...]]:
    """The tables with the first `count` rows and those of the forget sets alone."""
    forget = (rows for name, rows in tables.items() if name.startswith("forget"))
    kept = {
        (row.question, row.answer) for rows in (tables["full"][:count], *forget) for row in rows
    }
    return {
        name: tuple(row for row in rows if (row.question, row.answer) in kept)
        if name == "full" or name.startswith("retain")
        else rows
        for name, rows in tables.items()
    }
