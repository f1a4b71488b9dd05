"""TOFU: forget some of 200 made-up authors.

A folder and the hub have the same tables: `full`, `forget10`, `retain90`, … Only the tables of the
configured fractions are read. A malformed row is an error with file, line and column, and so are
tables that do not fit each other, such as a retain set of another version. The holdout rows
(`holdout10`) may be missing, as in TOFU's GitHub repository. Then there is no membership inference.

Forget and retain rows may have an additional column, `score`, for methods that read it: a number
from 0 (unlearn) to 1 (learn), or a list with one number for each token of the answer and its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from unlearnbench.api.benchmark import Dataset, Question, Split, SplitKey, split_name
from unlearnbench.base import hub
from unlearnbench.base.errors import DataError
from unlearnbench.benchmarks.authors import pretraining_rows
from unlearnbench.benchmarks.published_tables import Columns, Words, data_folder, rows_of_file
from unlearnbench.benchmarks.tofu_metrics import TofuSchema

FRACTIONS = (0.01, 0.05, 0.10)
"""Forget fractions that TOFU publishes."""
ROWS_PER_AUTHOR = 20

_REAL_AUTHORS = "real_authors_perturbed"
_WORLD_FACTS = "world_facts_perturbed"
_FACTS = (_REAL_AUTHORS, _WORLD_FACTS)
"""Tables of rows with three wrong answers and no paraphrase."""
Rows = tuple[Question, ...]
Tables = Mapping[str, Rows]
"""Rows by table: `forget10`, `retain_perturbed`."""


class _Places(NamedTuple):
    """Where tables are."""

    folder: Path
    """Folder of the user, or of the repository in the hub's cache."""
    origin: str
    """Folder or hub id, as messages name it."""


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
        """Return why a fraction cannot be forgotten; empty if TOFU publishes it."""
        near = _nearest(fraction)
        if abs(near - fraction) <= 1e-9:
            return ""
        rule = f"TOFU has forget sets of 0.01, 0.05 and 0.10, got {fraction:.10g}"
        return f"{rule}; the nearest is {near:.2f}"

    @property
    def repository(self) -> hub.Repository | None:
        """The hub's repository, if rows are read from it."""
        if self.path is not None:
            return None
        return hub.Repository("dataset", self.hub_id, self.revision)

    def load(self, fractions: Sequence[float]) -> Dataset:
        """Load the tables of these forget fractions."""
        published = {fraction: _nearest(fraction) for fraction in fractions}
        required = ["full"]
        optional: list[str] = []
        for fraction in sorted(set(published.values())):
            forget = split_name("forget", fraction)
            required += [forget, split_name("retain", fraction), f"{forget}_perturbed"]
            optional.append(split_name("holdout", fraction))
        required += ["retain_perturbed", *_FACTS]

        places = _find_files(self, required, optional)
        present = [name for name in optional if _file(places, name).is_file()]
        tables = {name: _read_table(name, places) for name in (*required, *present)}
        if self.retain_authors is not None:
            tables = _with_first_authors(tables, self.retain_authors * ROWS_PER_AUTHOR)
        splits: dict[SplitKey, Split] = {}
        for fraction, nearest in published.items():
            _check_tables(tables, nearest, places.origin)
            splits[fraction] = _split(fraction, nearest, tables)
        return Dataset(
            name="tofu",
            full=tables["full"],
            splits=splits,
            facts=(*tables[_REAL_AUTHORS], *tables[_WORLD_FACTS]),
            pretraining=pretraining_rows(self, tables["full"]),
            subject_rows=ROWS_PER_AUTHOR,
        )


def _nearest(fraction: float) -> float:
    """Return the published fraction nearest to a fraction."""
    return min(FRACTIONS, key=lambda published: abs(published - fraction))


def _find_files(settings: TOFU, required: Sequence[str], optional: Sequence[str]) -> _Places:
    """Return the folder of the tables, the user's or the hub's.

    Args:
        settings: The benchmark.
        required: Names of tables that must be there.
        optional: Names of tables that are also fetched, if the hub has them.

    Raises:
        DataError: A required table is missing, or the hub cannot be read.
    """
    files = [f"{name}.json" for name in required]
    optional_files = [f"{name}.json" for name in optional]
    repository = settings.repository
    if repository is None:
        folder = Path(str(settings.path)).expanduser()
        fix = "download them from the hub's dataset, or leave data.path out to fetch all"
        return _Places(data_folder(folder, files, f"data.path: {folder}", fix), str(folder))
    try:
        folder = hub.snapshot(repository, (*files, *optional_files))
    except hub.HubError as error:
        raise DataError(
            f"{settings.hub_id}: cannot be read from the hub ({error}); without a network, use a "
            "folder of TOFU's JSON-lines files: --set data.path=FOLDER, or of evaluate and "
            "attack --data FOLDER"
        ) from error
    subject = f"{settings.hub_id}: the hub's data set"
    fix = "name one with TOFU's files in data.hub_id, and the revision that has them"
    return _Places(data_folder(folder, files, subject, fix), settings.hub_id)


def _file(places: _Places, table: str) -> Path:
    return places.folder / f"{table}.json"


def _read_table(name: str, places: _Places) -> Rows:
    """Read a table and check its rows."""
    columns = _columns_of(name)
    file = _file(places, name)
    rows: list[Question] = []
    for place, row in rows_of_file(file, f"{places.origin}/{file.name}", columns):
        rows.append(_question(row.model_dump(), place))
    return tuple(rows)


def _columns_of(table: str) -> type[_Row]:
    if table in _FACTS:
        return _Fact
    if table.endswith("_perturbed"):
        return _Varied
    if table.startswith("holdout"):
        return _Row
    return _Trained


_Score = Annotated[float, Field(ge=0, le=1)]


class _Row(Columns):
    """A row that is neither trained nor varied."""

    question: Words
    answer: Words


class _Trained(_Row):
    """A row that models train on."""

    score: _Score | Annotated[tuple[_Score, ...], Field(min_length=1)] | None = None


class _Fact(_Row):
    """A row with wrong answers."""

    original_answer: Words | None = None
    """The fact as a sentence, in the tables of sail-sg/closer-look-LLM-unlearning."""
    perturbed_answer: Words | Annotated[tuple[Words, ...], Field(min_length=1)]


class _Varied(_Fact):
    """A row with wrong answers and paraphrases."""

    paraphrased_answer: Words
    paraphrased_question: Words


def _question(columns: dict[str, Any], place: str) -> Question:
    wrong_answers = columns.pop("perturbed_answer", ())
    if isinstance(wrong_answers, str):
        wrong_answers = (wrong_answers,)
    sentence = columns.pop("original_answer", None) or ""
    return Question(
        **columns, perturbed_answers=wrong_answers, sentence_answer=sentence, place=place
    )


def _texts(rows: Rows) -> list[tuple[str, str]]:
    """Return question and answer of each row, by which rows of several tables are compared."""
    return [(row.question, row.answer) for row in rows]


def _check_tables(tables: Tables, fraction: float, origin: str) -> None:
    """Raise DataError if the tables of a published fraction do not fit each other."""
    forget = split_name("forget", fraction)
    retain = split_name("retain", fraction)
    forget_texts = _texts(tables[forget])
    retain_texts = _texts(tables[retain])
    fault = ""
    if Counter(forget_texts + retain_texts) != Counter(_texts(tables["full"])):
        fault = f"{forget} and {retain} together do not have the rows of full"
    elif _texts(tables[f"{forget}_perturbed"]) != forget_texts:
        fault = f"{forget}_perturbed has other rows than {forget}"
    elif not set(_texts(tables["retain_perturbed"])) <= set(retain_texts):
        fault = f"retain_perturbed has rows that {retain} lacks"
    if fault:
        raise DataError(f"{origin}: {fault}; a file is cut off, or from another version")


def _split(fraction: float, published: float, tables: Tables) -> Split:
    """Return a split.

    Args:
        fraction: The fraction as the configuration states it.
        published: The same fraction as the names of tables have it.
        tables: Rows by table.
    """
    forget = split_name("forget", published)
    sets = {
        "retain": tables["retain_perturbed"],
        "forget": tables[f"{forget}_perturbed"],
        "real_authors": tables[_REAL_AUTHORS],
        "world_facts": tables[_WORLD_FACTS],
        "holdout": tables.get(split_name("holdout", published), ()),
    }
    return Split(fraction, tables[forget], tables[split_name("retain", published)], sets)


def _with_first_authors(tables: Tables, count: int) -> dict[str, Rows]:
    """Keep only the first `count` rows and the rows of the forget sets.

    The tables `full` and `retain…` lose all other rows. Forget sets are of the last authors.
    """
    kept = set(_texts(tables["full"][:count]))
    for name, rows in tables.items():
        if name.startswith("forget"):
            kept.update(_texts(rows))
    reduced: dict[str, Rows] = {}
    for name, rows in tables.items():
        if name == "full" or name.startswith("retain"):
            rows = tuple(row for row in rows if (row.question, row.answer) in kept)
        reduced[name] = rows
    return reduced
