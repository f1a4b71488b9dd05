"""Published numbers of reference models, and how far measured numbers are from them.

Here a *reference model* is a start or retain model that others have published with its numbers, and
an *anchor* is such a model with these numbers. An anchor shows whether an evaluation on this
machine gives the numbers of the literature.

`anchors.csv` contains the metrics that open-unlearning logged of the start and retain models of
TOFU and MUSE, under the names of our columns. A *tolerance* is the most by which an evaluation of
the same checkpoint on another machine may differ. It was observed on 400 rows. For a mean of n rows
it is multiplied by √(400/n), and for MUSE by 5, since we have not evaluated MUSE's models.

The source is the hub dataset open-unlearning/eval. In place of its p-values of Forget Quality, the
table has their logarithm and the statistic. It leaves out the retain models' `privleak`, which is
relative to an area of ½.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import Literal

from unlearnbench.api.benchmark import SplitKey
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
    """Where the number was published."""


@dataclass(frozen=True)
class Anchor:
    """A reference model whose numbers are published."""

    id: str
    checkpoint: str
    """Hub id."""
    split: str
    """`forget10`; `all` of MUSE."""
    profile: str
    """Name of the rules of evaluation that the numbers follow."""
    numbers: tuple[PublishedNumber, ...]

    @property
    def key(self) -> SplitKey:
        """The split as its benchmark has it: TOFU's forget fraction, a name of MUSE."""
        return self.split if self.split == "all" else int(self.split.removeprefix("forget")) / 100

    @property
    def forget_rows(self) -> int | None:
        """Questions in TOFU's forget set; None for MUSE."""
        return None if isinstance(self.key, str) else round(_TOFU_ROWS * self.key)

    @property
    def template(self) -> str:
        """Name of the template that it was trained with."""
        is_muse = self.split == "all"
        if is_muse:
            return "plain"
        return "chat" if self.template_args else "llama-2"

    @property
    def template_args(self) -> Mapping[str, str]:
        """Variables of its chat template; empty if it was trained with `llama-2`."""
        return _LLAMA_3 if self.id.startswith("llama-3") else {}


@dataclass(frozen=True)
class AnchorCheck:
    """A published number, and the number that was measured."""

    metric: str
    published: float
    measured: float | None
    """None if it was not measured, or is undefined."""
    difference: float | None
    """Measured − published; None without a measured number."""
    tolerance: float
    """Largest difference for the verdict `ok`."""
    verdict: Verdict


@cache
def load_anchors() -> Mapping[str, Anchor]:
    """Read the reference models by id, in the order of the table."""
    table = files("unlearnbench.analysis").joinpath("anchors.csv").read_text(encoding="utf-8")
    anchors: dict[str, Anchor] = {}
    keys = ("id", "checkpoint", "split", "profile")
    lines = csv.DictReader(table.splitlines())
    # Lines of one model follow each other, and differ only in the metric.
    for model, lines_of_model in groupby(lines, key=lambda line: [line[key] for key in keys]):
        numbers = tuple(
            PublishedNumber(
                metric=line["metric"],
                value=float(line["value"]),
                tolerance=float(line["tolerance"]),
                source=line["source"],
            )
            for line in lines_of_model
        )
        name, checkpoint, split, profile = model
        anchors[name] = Anchor(name, checkpoint, split, profile, numbers)
    return anchors


def find_anchor(name: str) -> Anchor:
    """Return the reference model with the id `name`.

    Raises:
        EvaluationError: If there is none.
    """
    known = load_anchors()
    if name not in known:
        raise EvaluationError(
            f"no reference model {shortened(name)}{did_you_mean(name, known) or ';'} "
            "`unlearnbench anchors list` has their ids"
        )
    return known[name]


def check_anchor(
    anchor: Anchor, values: Mapping[str, float | None], tolerance: float | None = None
) -> tuple[AnchorCheck, ...]:
    """Compare each published number of a reference model with the measured one.

    Args:
        anchor: The reference model.
        values: Measured numbers by column.
        tolerance: Largest difference, of all metrics. Defaults to the tolerances of the table.
    """
    checks: list[AnchorCheck] = []
    for number in anchor.numbers:
        measured = values.get(number.metric)
        difference = None if measured is None else measured - number.value
        largest = number.tolerance if tolerance is None else tolerance
        verdict: Verdict = "not measured"
        if difference is not None:
            verdict = "ok" if abs(difference) <= largest else "differs"
        check = AnchorCheck(number.metric, number.value, measured, difference, largest, verdict)
        checks.append(check)
    return tuple(checks)
