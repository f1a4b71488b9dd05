"""`unlearnbench anchors …`: does this installation reproduce published numbers?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from unlearnbench.base.console import Console, progress_bar
from unlearnbench.base.errors import EvaluationError, shortened
from unlearnbench.cli.command import argument, command, new_group, option
from unlearnbench.cli.options import (
    AttentionOption,
    BatchTokens,
    Data,
    Json,
    RemoteCode,
    Wide,
    is_log_file,
)
from unlearnbench.config.precision import Dtype

if TYPE_CHECKING:
    from unlearnbench.analysis.anchors import Anchor, AnchorCheck
    from unlearnbench.api.observations import Evaluation

app = new_group("Compare with published numbers of reference models.")

HEADINGS = {"tofu": "Models of TOFU", "muse": "Models of MUSE"}
"""Headings of the groups of `list`."""
_DIFFERS = 1
"""Exit code if a number differs from the published one."""


@command(app, "list")
def list_anchors(wide: Wide = False, as_json: Json = False) -> None:
    """List the reference models whose numbers are published.

    Examples:
      unlearnbench anchors list
      unlearnbench anchors list --wide
    """
    from unlearnbench.analysis.anchors import load_anchors

    console = Console()
    anchors = load_anchors().values()
    if as_json:
        console.print_json([asdict(anchor) for anchor in anchors])
        return
    if wide:
        rows = [
            (anchor.id, anchor.checkpoint, anchor.split, anchor.profile, len(anchor.numbers))
            for anchor in anchors
        ]
        columns = ("id", "checkpoint", "split", "profile", "metrics")
        console.table(columns, rows, is_wide=True)
        return
    from unlearnbench.cli.catalogue import Entry, print_catalogue

    entries: list[Entry] = []
    for anchor in anchors:
        summary = f"{len(anchor.numbers)} metrics on {anchor.split}"
        group = "muse" if anchor.forget_rows is None else "tofu"
        entries.append(Entry(anchor.id, summary, group))
    hint = "unlearnbench anchors show ID has the checkpoint and its published numbers."
    print_catalogue(entries, HEADINGS, hint, console)


@command(app, "show")
def show(
    anchor_id: Annotated[str, argument("ID", "Id of a model, as `anchors list` prints it.")],
    as_json: Json = False,
) -> None:
    """Show a reference model, its published numbers and their tolerances.

    Examples:
      unlearnbench anchors show llama-3.2-1b-retain90
    """
    from unlearnbench.analysis.anchors import find_anchor

    console = Console()
    anchor = find_anchor(anchor_id)
    if as_json:
        console.print_json(asdict(anchor))
        return
    console.paragraph(f"{anchor.id}: {anchor.checkpoint}")
    console.print(f"{anchor.split}, profile {anchor.profile}, template {anchor.template}\n")
    rows = [(number.metric, number.value, number.tolerance) for number in anchor.numbers]
    console.table(("metric", "published", "tolerance"), rows)
    for source in dict.fromkeys(number.source for number in anchor.numbers):
        console.paragraph(f"source: {source}")


@command(app, "check")
def check(
    anchor_id: Annotated[str, argument("ID", "Id of a model, as `anchors list` prints it.")],
    log: Annotated[
        str | None, option("LOG", "Compare this evaluation log, to 1e-6; needs no model.")
    ] = None,
    retain: Annotated[
        str | None, option("MODEL_OR_LOG", "The retain model, for Forget Quality and privleak.")
    ] = None,
    data: Data = "tofu",
    dtype: Annotated[
        Dtype, typer.Option(help="Type of the weights. Published numbers are of bfloat16.")
    ] = "bfloat16",
    attention: AttentionOption = "sdpa",
    trust_remote_code: RemoteCode = False,
    batch_tokens: BatchTokens = None,
    as_json: Json = False,
) -> int:
    r"""Compare a log, or a checkpoint that is evaluated now, with its published numbers.

    The exit code is 1 if a number differs by more than its tolerance.

    Examples:
      unlearnbench anchors check llama-3.2-1b-retain90
      unlearnbench anchors check llama-3.2-1b-full-forget10 \
          --retain open-unlearning/tofu_Llama-3.2-1B-Instruct_retain90
      unlearnbench anchors check muse-news-target --data muse
      unlearnbench anchors check llama-3.2-1b-full-forget10 --log TOFU_EVAL.json \
          --retain retain90/TOFU_EVAL.json
    """
    from unlearnbench.analysis.anchors import LOG_TOLERANCE, check_anchor, find_anchor
    from unlearnbench.models.quiet_libraries import quiet_transformers
    from unlearnbench.models.source import Source
    from unlearnbench.results.finalize import table_of
    from unlearnbench.results.single import PLAIN, ModelRole, records_of
    from unlearnbench.runs.evaluate_model import data_settings, evaluate_model

    anchor = find_anchor(anchor_id)
    if anchor.forget_rows is None and (log or data == "tofu"):
        raise EvaluationError(f"{anchor.id} is of MUSE: give --data muse, and no --log")
    retain_evaluation: Evaluation | None = None
    if retain and (log or is_log_file(retain)):
        retain_evaluation = _read_log(retain, anchor)
    elif retain:
        # A missing model is an error before the evaluation of the other one, which takes long.
        Source(retain).check()
    quiet_transformers()

    def evaluated(source: str) -> Evaluation:
        with progress_bar(Console(), f"evaluating {source}") as progress:
            return evaluate_model(
                source,
                data=data,
                forget=anchor.key,
                profile=anchor.profile,
                template=anchor.template,
                template_args=anchor.template_args,
                dtype=dtype,
                attention=attention,
                trust_remote_code=trust_remote_code,
                batch_tokens=batch_tokens,
                progress=progress,
            )

    evaluation = _read_log(log, anchor) if log else evaluated(anchor.checkpoint)
    if retain and retain_evaluation is None:
        retain_evaluation = evaluated(retain)
    models = {ModelRole.MODEL: {PLAIN: evaluation}}
    if retain_evaluation is not None:
        models[ModelRole.RETAIN] = {PLAIN: retain_evaluation}
    # Logs are of TOFU.
    benchmark = data_settings("tofu" if log else data)
    records = records_of(models, benchmark, anchor.key)
    (row,) = (row for row in table_of(records).rows if row.kind == ModelRole.MODEL.kind)
    checks = check_anchor(anchor, row.metrics, LOG_TOLERANCE if log else None)
    return _print_checks(anchor, checks, as_json=as_json)


def _read_log(log: str, anchor: Anchor) -> Evaluation:
    """Read an evaluation log.

    Raises:
        EvaluationError: If its rules or rows are not those of the published numbers.
    """
    from unlearnbench.config.profiles import get_profile
    from unlearnbench.evaluation.logs import read_log

    evaluation = read_log(log)
    rows = len(evaluation.sets["forget"].answer_loss)
    expected = get_profile(anchor.profile).id
    if evaluation.profile != expected or rows != anchor.forget_rows:
        raise EvaluationError(
            f"{log}: by profile {shortened(evaluation.profile)[1:-1]} on {rows} forget rows, and "
            f"the published numbers are by {expected} on {anchor.forget_rows}: "
            "`unlearnbench score LOG` prints its metrics; to compare it, evaluate the model again "
            f"with --profile {anchor.profile}, or name another ID"
        )
    return evaluation


def _print_checks(anchor: Anchor, checks: Sequence[AnchorCheck], *, as_json: bool) -> int:
    """Print a verdict on each number, and return the exit code.

    Raises:
        EvaluationError: If no number was measured.
    """
    measured = [check for check in checks if check.verdict != "not measured"]
    if not measured:
        raise EvaluationError(
            f"{anchor.id}: none of its {len(checks)} published metrics was measured; give a whole "
            "log, of all four sets"
        )
    outside = [check.metric for check in measured if check.verdict == "differs"]
    console = Console()
    rows = [asdict(check) for check in checks]
    if as_json:
        console.print_json(
            {
                "id": anchor.id,
                "checkpoint": anchor.checkpoint,
                "profile": anchor.profile,
                "reproduced": not outside,
                "checks": rows,
            }
        )
    else:
        title = f"{anchor.id}: {anchor.checkpoint}, {anchor.split}, profile {anchor.profile}"
        columns = ("metric", "verdict", "published", "measured", "difference", "tolerance")
        console.table(columns, [[row[key] for key in columns] for row in rows], title)
        line = f"{len(measured) - len(outside)} of {len(measured)} metrics within tolerance"
        if outside:
            line += f"; outside: {', '.join(outside)}"
        console.note(line)
    return _DIFFERS if outside else 0
