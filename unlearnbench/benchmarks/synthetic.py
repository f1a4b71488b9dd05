"""Made-up authors in TOFU's schema and proportions."""

from collections.abc import Sequence

from pydantic import Field

from unlearnbench.api.benchmark import Dataset, Split
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
"""Most rows of the retain set that are evaluated, as in TOFU."""


class Synthetic(TofuSchema):
    """Fictitious authors of a seed, and true facts."""

    source: str = "synthetic"
    authors: int = Field(
        default=40, ge=2, le=LARGEST, description="number of fictitious authors in the full set"
    )

    def split_problem(self, fraction: float) -> str:
        """The fraction is of no whole number of authors, or leaves none."""
        return fraction_problem(fraction, self.authors)

    def load(self, fractions: Sequence[float]) -> Dataset:
        """Generate the rows; the last authors are forgotten."""
        counts = {f: whole_authors(f, self.authors) for f in fractions}
        most = max(counts.values(), default=0)
        check_names(self.authors + self.pretraining_authors + most)
        names = author_names(self.seed)
        births: Births = set()
        # First, so that a base model does not depend on the benchmark's size and fractions.
        pretraining = rows_of_authors(
            "pretraining", names[::-1][: self.pretraining_authors], self, births
        )
        own_names = names[RESERVED_NAMES : RESERVED_NAMES + self.authors]
        rows = rows_of_authors("full", own_names, self, births)
        full = tuple(training_row(row) for row in rows)
        # Last, and from a stream of their own, so that no other row depends on them. Their names
        # follow the authors', pretraining's come from the end: the base model does not know them
        # either.
        unused = names[RESERVED_NAMES + self.authors :][:most]
        held_out = rows_of_authors("holdout", unused, self, births)
        holdout = tuple(training_row(row) for row in held_out)
        per_author = self.questions_per_author

        def split(fraction: float) -> Split:
            forgotten = counts[fraction] * per_author
            retained = len(full) - forgotten
            sets = {
                "retain": rows[: min(RETAIN_PERTURBED, always_retained)],
                "forget": rows[retained:],
                **known,
                "holdout": holdout[:forgotten],
            }
            return Split(fraction, full[retained:], full[:retained], sets)

        always_retained = len(full) - most * per_author
        known = {"real_authors": facts("real_authors"), "world_facts": facts("world_facts")}
        return Dataset(
            name="synthetic",
            subject_rows=per_author,
            full=full,
            splits={fraction: split(fraction) for fraction in fractions},
            facts=(*known["real_authors"], *known["world_facts"]),
            pretraining=tuple(training_row(row) for row in pretraining),
        )
