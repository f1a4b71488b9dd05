"""Checks of membership inference: holdout rows, and attacks that find known members."""

from collections.abc import Iterable

from unlearnbench.api.benchmark import Benchmark, SplitKey, split_label
from unlearnbench.api.membership import CONTROL
from unlearnbench.api.metric import Values
from unlearnbench.api.profile import Profile
from unlearnbench.evaluation.summary import plan_of

LEAST_AREA = 0.6
"""Area under the ROC curve that an attack must reach on the start model's retain rows.

It is ½ and two standard errors for 400 retain rows and the 40 holdout rows of TOFU's forget01.
"""


def control_warning(start: Values, model: str, split: SplitKey) -> str | None:
    """Return a line about the attacks that do not find the retain rows in the start model.

    Args:
        start: Metrics of the start model. Attacks without a control pass.
        model: Name of the model, for the line.
        split: The split, for the line.

    Returns:
        The line, or None if all attacks find the rows.
    """
    problem = failed_control(start)
    return f"{model}, {split_label(split)}: {problem}" if problem else None


def failed_control(start: Values) -> str:
    """Name in a sentence the attacks that do not find the retain rows in the start model.

    The result is empty if all attacks find them.
    """
    failed: list[str] = []
    for name, area in start.items():
        if name.endswith(CONTROL) and area is not None and area < LEAST_AREA:
            failed.append(f"{name.removesuffix(CONTROL)} ({area:.2f})")
    if not failed:
        return ""
    return (
        f"in the start model, {', '.join(failed)} cannot tell retain rows from holdout rows (AUC "
        f"below {LEAST_AREA}), so their values for forget rows and `private` mean nothing; was the "
        "start model trained on the retain rows?"
    )


def holdout_notice(tables: Iterable[str], profile: Profile, benchmark: Benchmark) -> str | None:
    """Return a line about holdout tables that the data lack, and the columns without values.

    Args:
        tables: Names of the tables that are missing.
        profile: Rules of the evaluation.
        benchmark: The benchmark.

    Returns:
        The line, or None if no table is missing or the benchmark has no holdout rows.
    """
    table_names = ", ".join(tables)
    if not table_names or "holdout" not in benchmark.set_roles.values():
        return None
    columns: list[str] = []
    for summary in plan_of(profile, benchmark).summaries.values():
        if "holdout" in summary.roles:
            columns += [column.name for column in summary.columns()]
    others = sorted(name for name in columns if not name.startswith("mia_"))
    return (
        f"the data have no rows of {table_names} (TOFU has them on the hub only): mia_*, "
        f"{', '.join(others)} have no values"
    )
