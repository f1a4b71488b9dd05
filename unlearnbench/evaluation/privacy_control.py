"""Checks of membership inference: holdout rows, and attacks that find known members."""

from collections.abc import Iterable

from unlearnbench.api.benchmark import Benchmark, SplitKey, split_label
from unlearnbench.api.membership import CONTROL
from unlearnbench.api.metric import Values
from unlearnbench.api.profile import Profile
from unlearnbench.evaluation.summary import plan_of

LEAST_AREA = 0.6
"""Area under the ROC curve that an attack must reach on the start model's retain rows: ½ and two
standard errors of 400 retain rows against the 40 holdout rows of TOFU's forget01."""


def control_warning(start: Values, model: str, split: SplitKey) -> str | None:
    """A line about the attacks that do not find the retain rows in the start model; None if all do.

    start         its metrics; attacks without a control pass
    model, split  for the line
    """
    problem = failed_control(start)
    return f"{model}, {split_label(split)}: {problem}" if problem else None


def failed_control(start: Values) -> str:
    """The attacks that do not find the retain rows in the start model, as a sentence; else ""."""
    areas = {
        name.removesuffix(CONTROL): area
        for name, area in start.items()
        if name.endswith(CONTROL) and area is not None
    }
    failed = [f"{name} ({area:.2f})" for name, area in areas.items() if area < LEAST_AREA]
    if not failed:
        return ""
    return (
        f"in the start model, {', '.join(failed)} cannot tell retain rows from holdout rows (AUC "
        f"below {LEAST_AREA}), so their values for forget rows and `private` mean nothing; was the "
        "start model trained on the retain rows?"
    )


def holdout_notice(tables: Iterable[str], profile: Profile, benchmark: Benchmark) -> str | None:
    """A line about holdout tables that the data lack, and the columns without values; None of none.

    tables   their names
    """
    names = ", ".join(tables)
    if not names or "holdout" not in benchmark.set_roles.values():
        return None
    columns = [
        column.name
        for summary in plan_of(profile, benchmark).summaries.values()
        if "holdout" in summary.roles
        for column in summary.columns()
    ]
    others = sorted(name for name in columns if not name.startswith("mia_"))
    return (
        f"the data have no rows of {names} (TOFU has them on the hub only): mia_*, "
        f"{', '.join(others)} have no values"
    )
