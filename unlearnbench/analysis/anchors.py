"""Published numbers of reference models, and how far measured numbers are from them.

`anchors.csv` has the metrics that open-unlearning logged of TOFU's fine-tuned and retain models,
and of MUSE's, by our columns. A tolerance is what another machine's evaluation of the same
checkpoint may differ by: seen on 400 rows, and larger by √(400/n) for a mean of n; MUSE's are five
times that, since its models have not been evaluated by us.

Source: hub dataset open-unlearning/eval. Left out: its p-values of Forget Quality, in place of
which stand their logarithm and the statistic; its retain models' `privleak`, which is relative to
an area of ½.
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


@dataclass(frozen=True)
class Anchor:
    """A reference model whose numbers are published."""

    id: str
    checkpoint: str
    """Hub id."""
    split: str
    """`forget10`; `all` of MUSE."""
    profile: str
    numbers: tuple[PublishedNumber, ...]

    @property
    def key(self) -> SplitKey:
        """The split as its benchmark has it: TOFU's forget fraction, a name of MUSE."""
        return self.split if self.split == "all" else int(self.split.removeprefix("forget")) / 100

    @property
    def forget_rows(self) -> int | None:
        """Questions in TOFU's forget set."""
        return None if isinstance(self.key, str) else round(_TOFU_ROWS * self.key)

    @property
    def template(self) -> str:
        """Name of the template that it was trained with."""
        tofu = "chat" if self.template_args else "llama-2"
        return "plain" if self.split == "all" else tofu

    @property
    def template_args(self) -> Mapping[str, str]:
        """Variables of its chat template; empty where it was trained with `llama-2`."""
        return _LLAMA_3 if self.id.startswith("llama-3") else {}


@dataclass(frozen=True)
class AnchorCheck:
    """A published number beside a measured one."""

    metric: str
    published: float
    measured: float | None
    difference: float | None
    """Measured − published."""
    tolerance: float
    verdict: Verdict


@cache
def load_anchors() -> Mapping[str, Anchor]:
    """The reference models by id, in the order of the table."""
    table = files("unlearnbench.analysis").joinpath("anchors.csv").read_text(encoding="utf-8")
    anchors: dict[str, Anchor] = {}
    keys = ("id", "checkpoint", "split", "profile")
    rows = csv.DictReader(table.splitlines())
    for about, group in groupby(rows, key=lambda row: [row[key] for key in keys]):
        numbers = (
            PublishedNumber(r["metric"], float(r["value"]), float(r["tolerance"]), r["source"])
            for r in group
        )
        name, checkpoint, split, profile = about
        anchors[name] = Anchor(name, checkpoint, split, profile, tuple(numbers))
    return anchors


def find_anchor(name: str) -> Anchor:
    """The reference model with the id `name`."""
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
    """Each published number of `anchor` beside the measured one.

    values     measured numbers by column
    tolerance  of all metrics; default: the table's, of another machine's evaluation
    """
    checks: list[AnchorCheck] = []
    for number in anchor.numbers:
        measured = values.get(number.metric)
        difference = None if measured is None else measured - number.value
        most = number.tolerance if tolerance is None else tolerance
        verdict: Verdict = "not measured"
        if difference is not None:
            verdict = "ok" if abs(difference) <= most else "differs"
        checks.append(AnchorCheck(number.metric, number.value, measured, difference, most, verdict))
    return tuple(checks)
