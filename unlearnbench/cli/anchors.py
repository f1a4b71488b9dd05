"""`unlearnbench anchors …`: does this installation reproduce published numbers?"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from unlearnbench.base.console import Console, progress_bar
from unlearnbench.base.errors import EvaluationError, shortened
from unlearnbench.cli.command import argument, command, new_group, option
from unlearnbench.cli.options import BatchTokens, Data, Json, is_log_file

if TYPE_CHECKING:
    from unlearnbench.analysis.anchors import Anchor, AnchorCheck
    from unlearnbench.api.observations import Evaluation

app = new_group("Compare with published numbers of reference models.")


@command(app, "list")
def list_anchors(as_json: Json = False) -> None:
    """List the reference models whose numbers are published."""
    from unlearnbench.analysis.anchors import load_anchors

    console = Console()
    if as_json:
        console.print_json([asdict(anchor) for anchor in load_anchors().values()])
        return
    rows = [
        (anchor.id, anchor.checkpoint, anchor.split, anchor.profile, len(anchor.numbers))
        for anchor in load_anchors().values()
    ]
    console.table(("id", "checkpoint", "split", "profile", "metrics"), rows)


@command(app, "check")
def check(
    anchor_id: Annotated[
        str | None, argument("[ID]", "With --log the default is the one with the nearest numbers.")
    ] = None,
    log: Annotated[
        str | None, option("LOG", "Compare this evaluation log, to 1e-6; needs no model.")
    ] = None,
    retain: Annotated[
        str | None, option("MODEL_OR_LOG", "The retain model, for Forget Quality and privleak.")
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
    from unlearnbench.config.profiles import profile_of_id
    from unlearnbench.evaluation.logs import read_log
    from unlearnbench.evaluation.summary import summarize

    anchor = None if anchor_id is None else find_anchor(anchor_id)
    if log is not None:
        evaluation = _published(log, load_anchors().values() if anchor is None else [anchor])
        retained = None if retain is None else read_log(retain)
        values = summarize(evaluation, retained, profile_of_id(evaluation.profile))
        anchor = anchor or nearest_anchor(values, len(evaluation.sets["forget"].answer_loss))
        checks = check_anchor(anchor, values, LOG_TOLERANCE)
    elif anchor is not None:
        checks = check_anchor(anchor, _evaluate(anchor, retain, data, batch_tokens))
    else:
        raise EvaluationError(
            "anchors check: nothing to compare; give the ID of a reference model "
            "(`unlearnbench anchors list`), a --log, or both"
        )
    return _print_checks(anchor, checks, as_json=as_json)


def _published(log: str, anchors: Collection[Anchor]) -> Evaluation:
    """Read a log. Raises: EvaluationError where its rules or rows are of no reference model."""
    from unlearnbench.config.profiles import get_profile
    from unlearnbench.evaluation.logs import read_log

    evaluation = read_log(log)
    published = {get_profile(anchor.profile).id: anchor.profile for anchor in anchors}
    if evaluation.profile not in published:
        raise EvaluationError(
            f"{log}: by profile {shortened(evaluation.profile)[1:-1]}, and published numbers are "
            f"by {', '.join(published)}: `unlearnbench score LOG` prints its metrics; to compare "
            f"it, evaluate the model again with --profile {' or '.join(published.values())}"
        )
    rows = len(evaluation.sets["forget"].answer_loss)
    known = {anchor.forget_rows for anchor in anchors}
    if rows not in known:
        raise EvaluationError(
            f"{log}: {rows} forget rows, and published numbers are about "
            f"{' or '.join(map(str, sorted(known)))}: give a log of that split, or another ID"
        )
    return evaluation


def _evaluate(
    anchor: Anchor, retain: str | None, data: str, batch_tokens: int | None
) -> dict[str, float | None]:
    """Evaluate a checkpoint, and the retain model where it is no log, as the table's numbers."""
    from unlearnbench.config.profiles import get_profile
    from unlearnbench.evaluation.summary import summarize
    from unlearnbench.models.loading import Source, quiet_transformers
    from unlearnbench.models.lora import check_any_model
    from unlearnbench.runs.evaluate_model import evaluate_model

    profile = get_profile(anchor.profile)
    retained = _published(retain, [anchor]) if retain and is_log_file(retain) else None
    if retain and retained is None:
        check_any_model(Source(retain))
    quiet_transformers()

    def evaluated(source: str) -> Evaluation:
        with progress_bar(Console(), f"evaluating {source}") as progress:
            return evaluate_model(
                source,
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
    if retain and retained is None:
        retained = evaluated(retain)
    return summarize(evaluation, retained, profile)


def _print_checks(anchor: Anchor, checks: Sequence[AnchorCheck], *, as_json: bool) -> int:
    """Print each verdict; returns the exit code."""
    measured = [check for check in checks if check.verdict != "not measured"]
    if not measured:
        raise EvaluationError(
            f"{anchor.id}: none of its {len(checks)} published metrics was measured; give a whole "
            "log, of all four sets"
        )
    differ = [check.metric for check in measured if check.verdict == "differs"]
    console = Console()
    rows = [asdict(c) | {"verdict": c.verdict, "difference": c.difference} for c in checks]
    if as_json:
        about = {"id": anchor.id, "checkpoint": anchor.checkpoint, "profile": anchor.profile}
        console.print_json(about | {"reproduced": not differ, "checks": rows})
    else:
        title = f"{anchor.id}: {anchor.checkpoint}, {anchor.split}, profile {anchor.profile}"
        columns = ("metric", "published", "measured", "difference", "tolerance", "verdict")
        console.table(columns, [[row[key] for key in columns] for row in rows], title)
        within = f"{len(measured) - len(differ)} of {len(measured)} metrics within tolerance"
        console.note(within + (f"; outside: {', '.join(differ)}" if differ else ""))
    return 1 if differ else 0
