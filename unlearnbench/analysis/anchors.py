"""Published numbers of reference models, and how far measured numbers are from them.

`anchors.csv` has the metrics that open-unlearning logged of TOFU's fine-tuned and retain models,
by our columns. A tolerance is what another machine's evaluation of the same checkpoint may differ
by: seen on 400 rows, and larger by √(400/n) for a mean of n.

Source: hub dataset open-unlearning/eval. Left out: its p-values of Forget Quality, in place of
which stand their logarithm and the statistic; its retain models' `privleak`, which is relative to
an area of ½.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import Literal

from unlearnbench.base.errors import EvaluationError, did_you_mean, shortened

LOG_TOLERANCE = 1e-6
"""Absolute tolerance of numbers that are computed from the published log itself."""
_TOFU_ROWS = 4000
"""Rows of TOFU's fine-tuning set, of which a split's number is a percentage."""
_LLAMA_3: Mapping[str, str] = {
    "system_prompt": "You are a helpful assistant.",
    "date_string": "10 Apr 2025",
}
"""The prompt that open-unlearning's Llama-3 models were trained and evaluated with."""

Verdict = Literal["ok", "differs", "not measured"]


@dataclass(frozen=True)
class PublishedNumber:
    """One metric of a reference model."""

    metric: str
    """Our column."""
    value: float
    tolerance: float
    """Largest difference of an evaluation of the checkpoint, in the metric's unit."""
    source: str


@dataclass(frozen=True)
class Anchor:
    """A reference model whose numbers are published."""

    id: str
    checkpoint: str
    """Hub id."""
    split: str
    """`forget10`."""
    profile: str
    numbers: tuple[PublishedNumber, ...]

    @property
    def fraction(self) -> float:
        """The split's forget fraction."""
        return int(self.split.removeprefix("forget")) / 100

    @property
    def forget_rows(self) -> int:
        """Questions in the split's forget set."""
        return round(_TOFU_ROWS * self.fraction)

    @property
    def template(self) -> str:
        """The template that the checkpoint was trained with."""
        return "chat" if self.template_args else "llama-2"

    @property
    def template_args(self) -> Mapping[str, str]:
        """Variables of its chat template."""
        return _LLAMA_3 if self.id.startswith("llama-3") else {}


@dataclass(frozen=True)
class AnchorCheck:
    """A published number beside a measured one."""

    metric: str
    published: float
    measured: float | None
    tolerance: float

    @property
    def difference(self) -> float | None:
        """Measured − published."""
        return None if self.measured is None else self.measured - self.published

    @property
    def verdict(self) -> Verdict:
        """The judgement on the difference."""
        if self.difference is None:
            return "not measured"
        return "ok" if abs(self.difference) <= self.tolerance else "differs"


@cache
def load_anchors() -> Mapping[str, Anchor]:
    """The reference models by id, in the order of the table."""
    table = files("unlearnbench.analysis").joinpath("anchors.csv").read_text(encoding="utf-8")
    rows = groupby(csv.DictReader(table.splitlines()), key=lambda row: row["id"])
    return {name: _anchor(name, [*group]) for name, group in rows}


def _anchor(name: str, rows: Sequence[Mapping[str, str]]) -> Anchor:
    numbers = (
        PublishedNumber(row["metric"], float(row["value"]), float(row["tolerance"]), row["source"])
        for row in rows
    )
    first = rows[0]
    return Anchor(name, first["checkpoint"], first["split"], first["profile"], tuple(numbers))


def find_anchor(name: str) -> Anchor:
    """The reference model with the id `name`."""
    known = load_anchors()
    if name not in known:
        raise EvaluationError(
            f"no reference model {shortened(name)}{did_you_mean(name, known)}; "
            "`unlearnbench anchors list` has their ids"
        )
    return known[name]


def nearest_anchor(values: Mapping[str, float | None], forget_rows: int) -> Anchor:
    """The reference model on a split of so many rows whose numbers are nearest to `values`.

    Nearest by the mean of |difference| / tolerance over the metrics that are measured.
    """
    distances: dict[str, float] = {}
    for name, anchor in load_anchors().items():
        checks = check_anchor(anchor, values)
        gaps = [
            abs(check.difference) / check.tolerance
            for check in checks
            if check.difference is not None
        ]
        if gaps and anchor.forget_rows == forget_rows:
            distances[name] = math.fsum(gaps) / len(gaps)
    if not distances:
        raise EvaluationError(
            f"no reference model was evaluated on {forget_rows} forget rows with any of the "
            "metrics that are measured here; name one of `unlearnbench anchors list`"
        )
    return load_anchors()[min(distances, key=distances.__getitem__)]


def check_anchor(
    anchor: Anchor, values: Mapping[str, float | None], tolerance: float | None = None
) -> tuple[AnchorCheck, ...]:
    """Each published number of `anchor` beside the measured one.

    values     measured numbers by column
    tolerance  of all metrics; default: the table's, of another machine's evaluation
    """
    return tuple(
        AnchorCheck(
            number.metric,
            number.value,
            values.get(number.metric),
            number.tolerance if tolerance is None else tolerance,
        )
        for number in anchor.numbers
    )
