"""`unlearnbench anchors …`: does this installation reproduce published numbers?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from unlearnbench.cli.command import argument, command, new_group, option
from unlearnbench.cli.options import BatchTokens, Data, Json, is_log_file
from unlearnbench.console import Console, progress_bar
from unlearnbench.errors import EvaluationError, shortened

if TYPE_CHECKING:
    from unlearnbench.analysis.anchors import Anchor, AnchorCheck
    from unlearnbench.api.observations import Evaluation

app = new_group("Compare with published numbers of reference models.")


def complete_anchor() -> list[str]:
    """Reference models by id."""
    from unlearnbench.analysis.anchors import load_anchors

    return [*load_anchors()]


@command(app, "list")
def list_anchors(as_json: Json = False) -> None:
    """List the reference models whose numbers are published."""
    from unlearnbench.analysis.anchors import load_anchors

    console = Console()
    if as_json:
        console.print_json([asdict(one) for one in load_anchors().values()])
        return
    rows = [
        (one.id, one.checkpoint, one.split, one.profile, len(one.numbers))
        for one in load_anchors().values()
    ]
    console.table(("id", "checkpoint", "split", "profile", "metrics"), rows)


@command(app, "check")
def check(
    anchor_id: Annotated[
        str | None,
        argument(
            "[ID]",
            "Of a reference model; with --log, the default is the one with the nearest numbers.",
            autocompletion=complete_anchor,
        ),
    ] = None,
    log: Annotated[
        str | None, option("LOG", "Compare this evaluation log, to 1e-6; needs no model.")
    ] = None,
    retain: Annotated[
        str | None,
        option(
            "MODEL_OR_LOG",
            "The retain model, which Forget Quality and privleak need; with --log, its log.",
        ),
    ] = None,
    data: Data = "tofu",
    batch_tokens: BatchTokens = None,
    as_json: Json = False,
) -> int:
    r"""Compare a log, or a checkpoint that is evaluated now, with its published numbers.

    The exit code is 1 where a number differs by more than its tolerance.

    Examples:
      unlearnbench anchors check llama-3.2-1b-retain90
      unlearnbench anchors check llama-3.2-1b-full-forget10 \
          --retain open-unlearning/tofu_Llama-3.2-1B-Instruct_retain90
      unlearnbench anchors check --log TOFU_EVAL.json --retain retain90/TOFU_EVAL.json
    """
    from unlearnbench.analysis.anchors import (
        LOG_TOLERANCE,
        check_anchor,
        find_anchor,
        load_anchors,
        nearest_anchor,
    )

    if anchor_id is not None and log is None and Path(anchor_id).is_file():
        raise EvaluationError(f"{anchor_id}: a file, not a reference model's ID; give it as --log")
    anchor = None if anchor_id is None else find_anchor(anchor_id)
    if log is not None:
        evaluation, values = _values_of_log(log, retain)
        _check_profile(log, evaluation, load_anchors().values() if anchor is None else [anchor])
        anchor = anchor or nearest_anchor(values, len(evaluation.sets["forget"].answer_loss))
        _check_rows(log, evaluation, anchor)
        checks = check_anchor(anchor, values, LOG_TOLERANCE)
    elif anchor is not None:
        checks = check_anchor(anchor, _evaluate(anchor, retain, data, batch_tokens))
    else:
        raise EvaluationError(
            "anchors check: nothing to compare; give the ID of a reference model "
            "(`unlearnbench anchors list`), a --log, or both"
        )
    return _print_checks(anchor, checks, as_json=as_json)


def _values_of_log(log: str, retain: str | None) -> tuple[Evaluation, dict[str, float | None]]:
    """A log, and its metrics; with --log, --retain is a log too."""
    from unlearnbench.config.profiles import profile_of_id
    from unlearnbench.evaluation.summary import summarize
    from unlearnbench.evaluation.tofu_log import read_log

    evaluation = read_log(log)
    retained = None if retain is None else read_log(retain)
    return evaluation, summarize(evaluation, retained, profile_of_id(evaluation.profile))


def _check_profile(log: str, evaluation: Evaluation, anchors: Iterable[Anchor]) -> None:
    """Raise EvaluationError where a log is by other rules than all these reference models."""
    from unlearnbench.config.profiles import get_profile

    published = {get_profile(one.profile).id: one.profile for one in anchors}
    if evaluation.profile not in published:
        raise EvaluationError(
            f"{log}: by profile {shortened(evaluation.profile)[1:-1]}, and published numbers are "
            f"by {', '.join(published)}: `unlearnbench score LOG` prints its metrics; to compare "
            f"it, evaluate the model again with --profile {' or '.join(published.values())}"
        )


def _check_rows(log: str, evaluation: Evaluation, anchor: Anchor) -> None:
    """Raise EvaluationError where a log and a reference model have other numbers of rows."""
    rows = len(evaluation.sets["forget"].answer_loss)
    if rows != anchor.forget_rows:
        raise EvaluationError(
            f"{log}: {rows} forget rows, and {anchor.id} is about the {anchor.forget_rows} of "
            f"{anchor.split}: give a log of that split, or another ID"
        )


def _evaluate(
    anchor: Anchor, retain: str | None, data: str, batch_tokens: int | None
) -> dict[str, float | None]:
    """Evaluate a checkpoint, and the retain model where it is no log, as the table's numbers."""
    from unlearnbench.config.profiles import get_profile
    from unlearnbench.evaluation.evaluate_model import evaluate_model
    from unlearnbench.evaluation.summary import summarize
    from unlearnbench.evaluation.tofu_log import read_log
    from unlearnbench.models.loading import Source, quiet_transformers
    from unlearnbench.models.lora import check_any_model

    profile = get_profile(anchor.profile)
    retained: Evaluation | None = None
    if retain is not None and is_log_file(retain):
        retained = read_log(retain)
        _check_profile(retain, retained, [anchor])
        _check_rows(retain, retained, anchor)
    elif retain is not None:
        check_any_model(Source(retain))
    quiet_transformers()

    def evaluated(place: str) -> Evaluation:
        with progress_bar(Console(), f"evaluating {place}") as progress:
            return evaluate_model(
                place,
                data=data,
                forget=anchor.fraction,
                profile=profile,
                template=anchor.template,
                template_args=anchor.template_args,
                dtype="bfloat16",
                batch_tokens=batch_tokens,
                progress=progress,
            )

    evaluation = evaluated(anchor.checkpoint)
    if retain is not None and retained is None:
        retained = evaluated(retain)
    return summarize(evaluation, retained, profile)


def _print_checks(anchor: Anchor, checks: Sequence[AnchorCheck], *, as_json: bool) -> int:
    """Print each verdict; returns the exit code."""
    measured = [one for one in checks if one.verdict != "not measured"]
    if not measured:
        raise EvaluationError(
            f"{anchor.id}: none of its {len(checks)} published metrics was measured; give a whole "
            "log, of all four sets"
        )
    differ = [one.metric for one in measured if one.verdict == "differs"]
    console = Console()
    rows = [asdict(c) | {"verdict": c.verdict, "difference": c.difference} for c in checks]
    if as_json:
        how = {"id": anchor.id, "checkpoint": anchor.checkpoint, "profile": anchor.profile}
        console.print_json(how | {"reproduced": not differ, "checks": rows})
    else:
        title = f"{anchor.id}: {anchor.checkpoint}, {anchor.split}, profile {anchor.profile}"
        columns = ("metric", "published", "measured", "difference", "tolerance", "verdict")
        console.table(columns, [[row[key] for key in columns] for row in rows], title)
        missing = len(checks) - len(measured)
        console.note(
            f"{len(measured) - len(differ)} of {len(measured)} metrics within tolerance"
            + (f"; outside: {', '.join(differ)}" if differ else "")
            + (f"; {missing} not measured" if missing else "")
        )
    return 1 if differ else 0
