"""What the commands about single models do: `evaluate` and `score`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unlearnbench.bounded import shortened
from unlearnbench.console import Bar, Console, finite
from unlearnbench.errors import EvaluationError

if TYPE_CHECKING:
    from unlearnbench.evaluation.profiles import Profile
    from unlearnbench.evaluation.result import Evaluation

AGAINST_RETAIN = ("forget_quality", "log10_forget_quality", "ks_statistic", "ks_n")
"""Metrics that compare with the retain model."""


def evaluate(args: argparse.Namespace) -> int:
    """`unlearnbench evaluate MODEL`."""
    from unlearnbench.evaluation.log import read_log, write_log
    from unlearnbench.evaluation.precision import precision_on
    from unlearnbench.evaluation.questions import write_questions
    from unlearnbench.evaluation.standalone import find_tokenizer, is_main_process, model_settings
    from unlearnbench.models.adapters import check_any_model
    from unlearnbench.models.loading import Source, is_log, quiet_transformers

    profile = _profile(args)
    _check_outputs(args, profile)  # what cannot end well need not wait for a model
    precision_on("cpu", args.dtype, args.precision)
    retain: Evaluation | None = None
    given: str = args.retain or ""
    is_file = is_log(given) or Path(given).is_file()
    if is_file:
        retain = read_log(Path(given), profile=profile)
        _check_profile(given, retain, profile, args)
    elif given:
        check_any_model(Source(given))
    quiet_transformers()
    place = args.tokenizer or args.model
    tokenizer = find_tokenizer(place, model_settings(place, args.template, args.dtype))
    main = is_main_process()
    evaluation = _evaluated(args, args.model, profile, tokenizer, main)
    if given and not is_file:
        retain = _evaluated(args, given, profile, tokenizer, main)
    if not main:
        return 0
    if args.out:
        write_log(evaluation, Path(args.out), layout=args.layout)
        Console().note(f"log: {args.out}")
    if args.questions:
        write_questions(evaluation, args.questions)
        Console().note(f"questions: {args.questions}")
    return _print_metrics(evaluation, retain, profile, as_json=args.json)


def score(args: argparse.Namespace) -> int:
    """`unlearnbench score LOG`."""
    from unlearnbench.evaluation.log import FILES, read_log

    profile = _profile(args)
    evaluation = read_log(Path(args.log), profile=profile)
    missing = [name for name in FILES if name not in evaluation.sets]
    if missing:
        raise EvaluationError(
            f"{args.log}: no whole set {missing[0]!r} in it, so there are no metrics; it serves "
            "as --retain alone"
        )
    retain = read_log(Path(args.retain), profile=profile) if args.retain else None
    return _print_metrics(evaluation, retain, profile, as_json=args.json)


def _profile(args: argparse.Namespace) -> Profile:
    from unlearnbench.evaluation.profiles import get_profile

    return get_profile(
        args.profile,
        rows=args.rows,
        max_length=args.max_length,
        question_key=args.question_key,
    )


def _check_outputs(args: argparse.Namespace, profile: Profile) -> None:
    from unlearnbench.evaluation.files import check_place
    from unlearnbench.evaluation.open_unlearning import check_profile
    from unlearnbench.evaluation.questions import check_questions_path

    if args.questions:
        check_questions_path(args.questions)
        check_place(Path(args.questions), "the questions")
    if args.out:
        check_place(Path(args.out), "the evaluation log")
        if args.layout == "open-unlearning":
            check_profile(profile.id, Path(args.out))


def _check_profile(place: str, log: Evaluation, profile: Profile, args: argparse.Namespace) -> None:
    import torch

    from unlearnbench.evaluation.precision import check_precision, precision_on

    if log.profile != profile.id:
        raise EvaluationError(
            f"{place} is by profile {shortened(log.profile)[1:-1]}, and the model is to be "
            f"evaluated by {profile.id}: numbers of different profiles do not compare; choose "
            "that one with --profile, or give the retain model itself"
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    own = precision_on(device, args.dtype, args.precision)
    check_precision(place, log.precision, "the model", own)


def _evaluated(
    args: argparse.Namespace, place: str, profile: Profile, tokenizer: Any, main: bool
) -> Evaluation:
    from unlearnbench.evaluation.standalone import evaluate_model

    with Bar(Console(), f"evaluating {place}") as bar:
        return evaluate_model(
            place,
            data=args.data,
            forget=args.forget,
            profile=profile,
            tokenizer=tokenizer,
            template=args.template,
            template_args=dict(args.template_arg),
            dtype=args.dtype,
            precision=args.precision,
            batch_tokens=args.batch_tokens,
            told=bar if main else None,
        )


def _print_metrics(
    evaluation: Evaluation, retain: Evaluation | None, profile: Profile, *, as_json: bool
) -> int:
    from unlearnbench.evaluation.metrics import summarize

    metrics = finite(summarize(evaluation, retain, profile))
    counts = {name: len(found.answer_loss) for name, found in evaluation.sets.items()}
    console = Console()
    if as_json:
        how = {"profile": evaluation.profile, "precision": evaluation.precision}
        console.print_json({**how, "questions": counts} | metrics)
    else:
        told = ", ".join(f"{n} {name}" for name, n in counts.items())
        precision = f" in {evaluation.precision}" if evaluation.precision else ""
        title = f"profile {evaluation.profile}{precision}: {told}"
        measured = {name: v for name, v in metrics.items() if retain or name not in AGAINST_RETAIN}
        console.table(("metric", "value"), list(measured.items()), title)
        if retain is None:
            names = ", ".join(name for name in metrics if name not in measured)
            console.note(f"not measured: {names} (need the retain model: --retain MODEL_OR_LOG)")
    _tell_how(console, evaluation)
    return 0


def _tell_how(console: Console, evaluation: Evaluation) -> None:
    """What a reader of the numbers should know about how they came about."""
    how = evaluation.statistics
    if how is None:
        return
    share = how.drafted / max(how.generated, 1)
    console.note(
        f"{share:.0%} of {how.generated} generated tokens came from drafts; {how.steps} decoding "
        f"steps, {how.steps_saved} saved"
    )
    if how.ties:
        console.note(
            f"{len(how.ties)} answers hung on a tie between two tokens and may differ elsewhere, "
            f"such as that to {how.ties[0]!r}"
        )
    if how.not_finite is not None:
        console.note(
            f"the model's outputs are not finite, first at {how.not_finite!r}: what depends on "
            "them is undefined"
        )
