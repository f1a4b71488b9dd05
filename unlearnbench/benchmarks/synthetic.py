"""Made-up authors in TOFU's schema and proportions."""

from collections.abc import Iterable, Sequence

from pydantic import Field

from unlearnbench.api.benchmark import Dataset, Question, Split, SplitKey
from unlearnbench.benchmarks.authors import (
    LARGEST,
    RESERVED_NAMES,
    Births,
    author_names,
    check_names,
    fraction_problem,
    rows_of_authors,
    training_row,
    whole_authors,
)
from unlearnbench.benchmarks.facts import facts
from unlearnbench.benchmarks.tofu_metrics import TofuSchema

RETAIN_PERTURBED = 400
"""Largest number of retain rows that are evaluated, as in TOFU."""


class Synthetic(TofuSchema):
    """Fictitious authors, generated from a seed, and true facts."""

    source: str = "synthetic"
    authors: int = Field(
        default=40, ge=2, le=LARGEST, description="number of fictitious authors in the full set"
    )

    def split_problem(self, fraction: float) -> str:
        """Return why a fraction of the authors cannot be forgotten; empty if it can."""
        return fraction_problem(fraction, self.authors)

    def load(self, fractions: Sequence[float]) -> Dataset:
        """Generate the rows. The last authors are forgotten."""
        forgotten_authors = {
            fraction: whole_authors(fraction, self.authors) for fraction in fractions
        }
        most_forgotten = max(forgotten_authors.values(), default=0)
        check_names(self.authors + self.pretraining_authors + most_forgotten)
        names = author_names(self.seed)
        births: Births = set()
        # Births in use affect later draws. Pretraining authors come first, so that a base model
        # depends on neither the benchmark's size nor its fractions.
        pretraining_names = names[::-1][: self.pretraining_authors]
        pretraining = rows_of_authors("pretraining", pretraining_names, self, births)
        names_of_benchmark = names[RESERVED_NAMES : RESERVED_NAMES + self.authors]
        rows = rows_of_authors("full", names_of_benchmark, self, births)
        # Holdout authors come last, and have a stream of their own, so that no other row depends on
        # them. The base model does not know them: its authors have names from the other end.
        holdout_names = names[RESERVED_NAMES + self.authors :][:most_forgotten]
        holdout = rows_of_authors("holdout", holdout_names, self, births)

        splits: dict[SplitKey, Split] = {}
        for fraction in fractions:
            splits[fraction] = self._split(
                fraction, rows, holdout, forgotten_authors[fraction], most_forgotten
            )
        return Dataset(
            name="synthetic",
            subject_rows=self.questions_per_author,
            full=_training_rows(rows),
            splits=splits,
            facts=(*facts("real_authors"), *facts("world_facts")),
            pretraining=_training_rows(pretraining),
        )

    def _split(
        self,
        fraction: float,
        rows: Sequence[Question],
        holdout: Sequence[Question],
        forgotten_authors: int,
        most_forgotten: int,
    ) -> Split:
        """Divide the rows.

        Args:
            fraction: Fraction of the authors to forget.
            rows: Rows of all authors, with variants for evaluation.
            holdout: Rows of authors that no model has seen.
            forgotten_authors: Number of authors to forget.
            most_forgotten: Largest such number of all fractions. Only authors that are retained at
                each fraction are evaluated, so that all fractions have the same retain set.
        """
        forgotten = forgotten_authors * self.questions_per_author
        retained = len(rows) - forgotten
        always_retained = len(rows) - most_forgotten * self.questions_per_author
        sets = {
            "retain": tuple(rows[: min(RETAIN_PERTURBED, always_retained)]),
            "forget": tuple(rows[retained:]),
            "real_authors": facts("real_authors"),
            "world_facts": facts("world_facts"),
            "holdout": _training_rows(holdout[:forgotten]),
        }
        forget_rows = _training_rows(rows[retained:])
        retain_rows = _training_rows(rows[:retained])
        return Split(fraction, forget_rows, retain_rows, sets)


def _training_rows(rows: Iterable[Question]) -> tuple[Question, ...]:
    return tuple(training_row(row) for row in rows)
