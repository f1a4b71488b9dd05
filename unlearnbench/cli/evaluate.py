"""`unlearnbench evaluate` and `score`: the metrics of one model, and of an evaluation log."""

from __future__ import annotations

from collections.abc import Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from unlearnbench.base.console import Console, progress_bar
from unlearnbench.base.errors import EvaluationError, shortened
from unlearnbench.base.hashing import json_ready
from unlearnbench.base.outputs import check_file
from unlearnbench.cli.command import argument, command, new_group, option
from unlearnbench.cli.options import (
    Data,
    Json,
    ModelOptions,
    Plugins,
    ProfileChanges,
    is_log_file,
    register_for_evaluation,
)

if TYPE_CHECKING:
    from unlearnbench.api.benchmark import Benchmark
    from unlearnbench.api.metric import Compared
    from unlearnbench.api.observations import Evaluation, Statistics
    from unlearnbench.api.profile import Profile
    from unlearnbench.evaluation.model_verdict import Judged, ModelVerdict


app = new_group()


@command(app, "evaluate")
def evaluate(
    model: Annotated[str, argument("MODEL", "Hub id, folder, or LoRA adapter's folder.")],
    options: ModelOptions,
    changes: ProfileChanges,
    retain: Annotated[
        str | None,
        option("MODEL_OR_LOG", "Retain model, for Forget Quality, Forgotten and Private."),
    ] = None,
    start: Annotated[
        str | None, option("MODEL_OR_LOG", "Model before unlearning, for Forgotten and Kept.")
    ] = None,
    out: Annotated[str | None, option("FILE", "Log to write, .safetensors.")] = None,
    questions: Annotated[
        str | None, option("FILE", "Table of all questions to write, .jsonl.")
    ] = None,
    plugins: Plugins = None,
    as_json: Json = False,
) -> int:
    r"""Evaluate a model: its scorecard and metrics; its log and answers where they are wanted.

    Examples:
      unlearnbench evaluate ./my-model --data ~/tofu --out log.safetensors
      unlearnbench evaluate ./my-adapter --data ~/tofu --retain ./my-retain90-model \
          --start ./my-full-model
      unlearnbench evaluate ./my-model --questions answers.jsonl
      unlearnbench evaluate locuslab/tofu_ft_phi-1.5 --tokenizer microsoft/phi-1_5 \
          --data tofu --retain retain90.safetensors
    """
    from unlearnbench.api.benchmark import split_name
    from unlearnbench.base.distributed import is_main_process
    from unlearnbench.config.precision import resolve_precision
    from unlearnbench.config.profiles import get_profile
    from unlearnbench.evaluation.logs import read_log
    from unlearnbench.evaluation.observation_file import check_path, write_observations
    from unlearnbench.evaluation.privacy_control import holdout_notice
    from unlearnbench.evaluation.question_table import check_questions_path, write_questions
    from unlearnbench.models.loading import Source
    from unlearnbench.models.lora import check_any_model
    from unlearnbench.runs.evaluate_model import data_settings

    rules = get_profile(options.profile, **vars(changes))
    register_for_evaluation(plugins, rules)
    benchmark = data_settings(options.data)
    if questions:  # an early error saves the model's time
        check_questions_path(questions)
    if out:
        check_file(out, "the evaluation")
        check_path(Path(out))
    resolve_precision("cpu", options.dtype, options.precision)
    given: dict[Compared, str | None] = {"retain": retain, "start": start}
    sources: dict[Compared, str] = {name: source for name, source in given.items() if source}
    others: dict[Compared, Evaluation] = {}
    for name, source in sources.items():
        if is_log_file(source):
            others[name] = read_log(source, profile=rules)
            _check_profile(source, others[name], rules.id)
        else:
            check_any_model(Source(source))
    setup = options.setup(model, benchmark, rules)
    main = is_main_process()

    def evaluated(source: str) -> Evaluation:
        with (
            progress_bar(Console(), f"evaluating {source}") as progress,
            setup.ready(source) as loaded,
        ):
            return setup.evaluator(loaded, progress=progress if main else None)

    evaluation = evaluated(model)
    others |= {name: evaluated(source) for name, source in sources.items() if name not in others}
    if not main:
        return 0
    missing = [] if "holdout" in evaluation.sets else [split_name("holdout", options.forget)]
    if line := holdout_notice(missing, rules, benchmark):
        Console().note(line)
    if out:
        write_observations(evaluation, Path(out))
        Console().note(f"observations: {out}")
    if questions:
        write_questions(evaluation, questions, benchmark, others.get("retain"))
        Console().note(f"questions: {questions}")
    return _print_metrics(evaluation, others, rules, benchmark, as_json=as_json)


@command(app, "score")
def score(
    log: Annotated[str, argument("LOG", "A log, or a record's epoch-<k>.safetensors.")],
    changes: ProfileChanges,
    retain: Annotated[str | None, option("LOG", "The retain model's.")] = None,
    start: Annotated[str | None, option("LOG", "That of the model before unlearning.")] = None,
    data: Data = "tofu",
    profile: Annotated[
        str | None,
        option("NAME", "Rules of a log that names none.", default="the log's own, else tofu"),
    ] = None,
    plugins: Plugins = None,
    as_json: Json = False,
) -> int:
    r"""Compute the metrics of an evaluation log: ours, TOFU's or open-unlearning's.

    Examples:
      unlearnbench score eval_log_aggregated.json --retain retain90.json --json
      unlearnbench score TOFU_EVAL.json --retain retain90/TOFU_EVAL.json --start full/TOFU_EVAL.json
    """
    from unlearnbench.config.profiles import TOFU, get_profile, profile_of_id
    from unlearnbench.evaluation.logs import read_log
    from unlearnbench.runs.evaluate_model import data_settings

    given: Profile | None = None
    if any(value is not None for value in (profile, *vars(changes).values())):
        given = get_profile(profile or TOFU.name, **vars(changes))
    evaluation = read_log(log, profile=given or TOFU)
    rules = profile_of_id(evaluation.profile)
    if given is not None and given.id != rules.id:
        raise EvaluationError(
            f"{log}: by profile {rules.id}, as the log says, and the options say {given.id}: leave "
            "them out, or evaluate the model again by those rules"
        )
    register_for_evaluation(plugins, rules)
    benchmark = data_settings(data)
    present = {*evaluation.sets, *(n for n, role in benchmark.roles.items() if role == "holdout")}
    if missing := [name for name in benchmark.roles if name not in present]:
        raise EvaluationError(
            f"{log}: no whole set {missing[0]!r} in it, so there are no metrics of "
            f"{benchmark.source}; if it is of another benchmark, name that with --data, else it "
            "serves as --retain alone"
        )
    logs: dict[Compared, str | None] = {"retain": retain, "start": start}
    others: dict[Compared, Evaluation] = {
        name: read_log(path, profile=rules) for name, path in logs.items() if path
    }
    return _print_metrics(evaluation, others, rules, benchmark, as_json=as_json)


def _check_profile(source: str, evaluation: Evaluation, expected: str) -> None:
    """Raise EvaluationError unless an evaluation has the profile of the model's."""
    if evaluation.profile != expected:
        raise EvaluationError(
            f"{source}: by profile {shortened(evaluation.profile)[1:-1]}, and the model by "
            f"{expected}: numbers of different profiles do not compare; evaluate both by the same "
            "one (--profile)"
        )


def _print_metrics(
    evaluation: Evaluation,
    others: Mapping[Compared, Evaluation],
    profile: Profile,
    benchmark: Benchmark,
    *,
    as_json: bool,
) -> int:
    from unlearnbench.base.deferred_warnings import drain
    from unlearnbench.evaluation.model_verdict import Judged, judge
    from unlearnbench.evaluation.privacy_control import failed_control
    from unlearnbench.evaluation.summary import plan_of, summarize

    console, plan = Console(), plan_of(profile, benchmark)
    retain, start = others.get("retain"), others.get("start")
    if start is not None:
        _check_same_evaluation(evaluation, start, benchmark)
    values = summarize(evaluation, retain, profile, start, benchmark)
    warnings = drain()
    if start is not None:
        warnings += [failed_control(plan.values(start.sets))]
    for line in filter(None, warnings):
        console.note(f"warning: {line}")
    counts = {name: len(seen.answer_loss) for name, seen in evaluation.sets.items()}
    judged = Judged(plan, benchmark.roles, benchmark.headline, values, evaluation, retain, start)
    verdict = judge(judged)
    if as_json:
        shown: dict[str, Any] = {"profile": evaluation.profile, "precision": evaluation.precision}
        shown |= {"questions": counts} | json_ready(values, lambda _: None)
        shown |= {"intervals": {**verdict.intervals}, "verdict": [*verdict.sentences]}
        console.print_json(shown)
    else:
        sizes = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in counts.items())
        precision = f" in {evaluation.precision}" if evaluation.precision else ""
        base, _, changes = evaluation.profile.partition("+")
        unlike = f" (not comparable with numbers by {base})" if changes else ""
        console.print(
            f"rules: profile {evaluation.profile}{unlike}{precision}; {sizes} questions\n"
        )
        _print_scorecard(judged, {*others}, verdict, benchmark, console)
        console.print()
        for sentence in verdict.sentences:
            console.print(sentence)
    if evaluation.statistics:
        _print_statistics(evaluation.statistics, console)
    return 0


def _check_same_evaluation(evaluation: Evaluation, start: Evaluation, benchmark: Benchmark) -> None:
    """Raise EvaluationError unless the start model was evaluated as the model was."""
    from unlearnbench.evaluation.precision import check_precision
    from unlearnbench.evaluation.summary import first_difference, forget_sets

    _check_profile("--start", start, evaluation.profile)
    check_precision("the model", evaluation.precision, "the start model", start.precision)
    for name in forget_sets(benchmark, evaluation, start):
        questions, others = evaluation.sets[name].questions, start.sets[name].questions
        if len(questions) != len(others) or first_difference(questions, others) is not None:
            raise EvaluationError(
                f"--start: evaluated on {len(others)} {name} questions, the model on "
                f"{len(questions)}, and they must be the same; evaluate both on the same split"
            )


def _print_scorecard(
    judged: Judged,
    compared: Set[Compared],
    verdict: ModelVerdict,
    benchmark: Benchmark,
    console: Console,
) -> None:
    """Print the scores per question, the other numbers, a table of metrics by set, and attacks."""
    from unlearnbench.api.membership import MembershipInference
    from unlearnbench.evaluation.model_verdict import scorecard

    plan, given = judged.plan, ({*judged.model.sets}, compared, benchmark.references)
    card = scorecard(plan, judged.roles, judged.values, *given)
    scores = [
        (score.label, rounded(score.value), score.question, " and ".join(score.relative_to))
        for score in card.scores
    ]
    console.table(("score", "value", "question (1 is best)", "relative to models"), scores)
    console.print()
    if card.numbers:
        console.table(("metric", "value"), [(label, rounded(v)) for label, v in card.numbers])
        console.print()
    columns = ("metric, ± 95 % of questions", *(name.replace("_", " ") for name in card.sets))
    measures = {measure.metric.label: measure.name for measure in reversed(plan.measures)}
    by_set = [
        (
            label,
            *(
                _with_half_width(value, verdict.intervals.get(f"{measures[label]}_{name}"))
                for name, value in zip(card.sets, row, strict=True)
            ),
        )
        for label, row in card.by_set
    ]
    console.table(columns, by_set)
    if card.attacks:
        aims = {} if judged.retain is None else plan.values(judged.retain.sets)
        of_retain = {
            attack.label: aims.get(attack.columns()[0].name)
            for attack in plan.summaries.values()
            if isinstance(attack, MembershipInference)
        }
        headings = ("attack", "AUC", "TPR at 1 % FPR", "AUC of retain rows", "retain model's AUC")
        rows = [(label, *map(rounded, (*row, of_retain.get(label)))) for label, row in card.attacks]
        console.print()
        console.table(headings, rows)
    if card.missing:
        lines = (f"{', '.join(labels)} ({reason})" for reason, labels in card.missing)
        console.note(f"not measured: {'; '.join(lines)}")


def _with_half_width(value: float | None, ends: tuple[float, float] | None) -> Any:
    """A table's cell: `0.842 ±0.031`; the number alone without an interval."""
    if value is None or ends is None:
        return rounded(value)
    return f"{value:.3f} ±{(ends[1] - ends[0]) / 2:.3f}"


def rounded(value: float | None) -> float | None:
    """The value to four significant digits, for a table."""
    return None if value is None else float(f"{value:.4g}")


def _print_statistics(seen: Statistics, console: Console) -> None:
    """Print which answers may differ elsewhere, and that outputs were not finite."""
    if seen.ties:
        console.note(
            f"{len(seen.ties)} answers hung on a tie between two tokens and may differ elsewhere, "
            f"such as that to {seen.ties[0]!r}"
        )
    if seen.cut:
        console.note(f"{seen.cut} true answers are cut at the profile's max_length")
    if seen.not_finite is not None:
        console.note(
            f"the model's outputs are not finite, first at {seen.not_finite!r}: what depends on "
            "them is undefined"
        )
