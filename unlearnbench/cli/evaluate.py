"""`unlearnbench evaluate` and `score`: the verdict on one model, or on its evaluation log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from unlearnbench.base.console import Console
from unlearnbench.base.errors import EvaluationError
from unlearnbench.base.garbage_collection import import_torch
from unlearnbench.base.outputs import check_file
from unlearnbench.cli.command import argument, command, new_group, option
from unlearnbench.cli.options import (
    DEFAULT_PROFILE,
    Data,
    Json,
    MetricOptions,
    Model,
    ModelOptions,
    Plugins,
    ProfileChanges,
    is_log_file,
    register_for_evaluation,
)
from unlearnbench.cli.own_data import RowOptions

if TYPE_CHECKING:
    from unlearnbench.analysis.results import Results
    from unlearnbench.api.benchmark import Benchmark
    from unlearnbench.api.observations import Evaluation
    from unlearnbench.api.profile import Profile
    from unlearnbench.config.metric_plan import MetricChoices
    from unlearnbench.evaluation.harness_tasks import TaskScores

_SPLIT_OF_LOGS = "log"
"""Name of the split of logs, which do not say what share was to be forgotten. It is not shown."""

app = new_group()


@command(app, "evaluate")
def evaluate(
    model: Model,
    own: RowOptions,
    options: ModelOptions,
    changes: ProfileChanges,
    metrics: MetricOptions,
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
    tasks: Annotated[
        list[str] | None,
        option("NAME", "Task of lm-evaluation-harness, or its YAML file (repeatable).", "--task"),
    ] = None,
    plugins: Plugins = None,
    as_json: Json = False,
) -> int:
    r"""Evaluate a model: print its metrics and a verdict, and write its log and answers on request.

    Examples:
      unlearnbench evaluate ./my-model --data ~/tofu --out log.safetensors
      unlearnbench evaluate ./my-adapter --data ~/tofu \
          --retain ./my-retain90-model --start ./my-start-model
      unlearnbench evaluate ./my-model --forget-rows forget.jsonl \
          --retain-rows retain.jsonl --questions answers.jsonl
      unlearnbench evaluate ./my-model --data ~/tofu --task hellaswag --task gsm8k
      unlearnbench evaluate ./my-model --data ~/tofu \
          --metric mia-min-k --set mia-min-k.share=0.1
      unlearnbench evaluate locuslab/tofu_ft_phi-1.5 --data tofu \
          --tokenizer microsoft/phi-1_5 --retain retain90.safetensors
    """
    import_torch()
    from unlearnbench.api.benchmark import split_name
    from unlearnbench.cli.evaluated_models import evaluate_models, results_of, sources_of
    from unlearnbench.cli.model_verdict import print_verdict
    from unlearnbench.config.profiles import get_profile
    from unlearnbench.evaluation.observation_file import SUFFIX, write_observations
    from unlearnbench.evaluation.privacy_control import holdout_notice
    from unlearnbench.evaluation.question_table import write_questions
    from unlearnbench.results.single import PLAIN, ModelRole
    from unlearnbench.runs.evaluate_model import data_settings

    options = options.with_rows(own)
    rules = get_profile(options.profile or DEFAULT_PROFILE, **vars(changes))
    register_for_evaluation(plugins, rules)
    benchmark = data_settings(options.data)
    chosen = _checked_choices(metrics, benchmark, rules)
    _check_start_for_metrics(chosen, start, benchmark, rules)
    # A file that cannot be written is an error before the model is evaluated, which may take hours.
    if questions:
        check_file(questions, "the questions", (".jsonl",))
    if out:
        check_file(out, "the evaluation", (SUFFIX,))

    scores: TaskScores = {}
    if tasks:
        scores = _task_scores(model, tasks, options, benchmark, rules, rows=changes.rows)
    sources = sources_of(model, retain, start)

    def write_model(role: ModelRole, _: str, evaluation: Evaluation) -> None:
        # At once, because the evaluation of the retain model may fail after hours.
        if out and role is ModelRole.MODEL:
            write_observations(evaluation, Path(out))

    models = evaluate_models(sources, (), options, benchmark, rules, chosen, write_model)
    if models is None:
        return 0

    console = Console()
    evaluation = models[ModelRole.MODEL][PLAIN]
    missing = [] if "holdout" in evaluation.sets else [split_name("holdout", options.forget)]
    notice = holdout_notice(missing, rules, benchmark)
    if notice:
        console.note(notice)
    _warn_of_missing_scores(rules, benchmark, chosen)
    if out:
        console.note(f"observations: {out}")
    if questions:
        retain_variants = models.get(ModelRole.RETAIN)
        retain_evaluation = None if retain_variants is None else retain_variants[PLAIN]
        write_questions(evaluation, questions, benchmark, retain_evaluation, chosen)
        console.note(f"questions: {questions}")
    results = results_of(models, options.forget, benchmark, metrics=chosen)
    print_verdict(results, scores, as_json=as_json)
    return 0


def _checked_choices(metrics: MetricOptions, benchmark: Benchmark, rules: Profile) -> MetricChoices:
    """Return the metrics that options name, after each has been tried.

    Raises:
        PluginError: If one is not known, is set wrongly, or cannot be computed for the benchmark.
        UnavailableError: If the model that one reads texts by is not named, or not found.
    """
    from unlearnbench.evaluation.metric_trial import try_metrics
    from unlearnbench.evaluation.summary import plan_of

    chosen = metrics.choices()
    if chosen:
        try_metrics(plan_of(rules, benchmark, chosen), benchmark.set_roles)
    return chosen


def _check_start_for_metrics(
    chosen: MetricChoices, start: str | None, benchmark: Benchmark, rules: Profile
) -> None:
    """Check that the start model is given if a metric reads it.

    Raises:
        EvaluationError: If it is not, or only by its log.
    """
    from unlearnbench.evaluation.summary import plan_of

    if start is not None and not is_log_file(start):
        return
    for name, settings in chosen.items():
        if "start_loss" in plan_of(rules, benchmark, {name: settings}).extra:
            raise EvaluationError(
                f"--metric {name}: it reads how likely the start model finds the answers; give "
                "that model with --start (its log is not enough), or leave the metric out"
            )


def _warn_of_missing_scores(rules: Profile, benchmark: Benchmark, chosen: MetricChoices) -> None:
    """Warn of the profile's scores that need metrics which no option names."""
    from unlearnbench.config.metric_plan import missing_scores

    warning = missing_scores(rules, benchmark, chosen).warning(rules.name, "--metric")
    if warning:
        Console().note(f"warning: {warning}")


def _task_scores(
    model: str,
    tasks: list[str],
    options: ModelOptions,
    benchmark: Benchmark,
    rules: Profile,
    *,
    rows: int | None,
) -> TaskScores:
    """Return the scores of a model on tasks of lm-evaluation-harness.

    Args:
        model: Folder or hub id.
        tasks: Names, or YAML files.
        options: How the model is read.
        benchmark: Whose rows the setup of an evaluation loads.
        rules: Of the evaluation.
        rows: First rows of each task that are evaluated. None means all.
    """
    from unlearnbench.evaluation.harness_tasks import task_scores

    setup = options.setup(model, benchmark, rules)
    return task_scores(setup.loaded(model), setup.evaluator.encoder.tokenizer, tasks, rows=rows)


@command(app, "score")
def score(
    log: Annotated[str, argument("LOG", "A log, or a record's epoch-<k>.safetensors.")],
    changes: ProfileChanges,
    metrics: MetricOptions,
    retain: Annotated[str | None, option("LOG", "Log of the retain model.")] = None,
    start: Annotated[str | None, option("LOG", "Log of the model before unlearning.")] = None,
    data: Data = "tofu",
    profile: Annotated[
        str | None,
        option(
            "NAME",
            "Evaluation rules for a log that names none.",
            default="the log's own, else tofu",
        ),
    ] = None,
    plugins: Plugins = None,
    as_json: Json = False,
) -> int:
    r"""Compute the metrics of an evaluation log: ours, TOFU's or open-unlearning's.

    Examples:
      unlearnbench score eval_log_aggregated.json --retain retain90.json --json
      unlearnbench score TOFU_EVAL.json --retain retain90/TOFU_EVAL.json \
          --start full/TOFU_EVAL.json
    """
    from unlearnbench.cli.evaluated_models import results_of, sources_of
    from unlearnbench.cli.model_verdict import print_verdict
    from unlearnbench.config.profiles import TOFU, get_profile, profile_of_id
    from unlearnbench.evaluation.logs import read_log
    from unlearnbench.results.single import PLAIN, ModelRole
    from unlearnbench.runs.evaluate_model import data_settings

    requested: Profile | None = None
    has_options = profile is not None or any(value is not None for value in vars(changes).values())
    if has_options:
        requested = get_profile(profile or TOFU.name, **vars(changes))
    evaluation = read_log(log, profile=requested or TOFU)
    rules = profile_of_id(evaluation.profile)
    if requested is not None and requested.id != rules.id:
        raise EvaluationError(
            f"{log}: the log was made by profile {rules.id}, and the options ask for "
            f"{requested.id}; leave the options out, or evaluate the model again by those rules"
        )
    register_for_evaluation(plugins, rules)
    benchmark = data_settings(data)
    chosen = _checked_choices(metrics, benchmark, rules)
    _check_sets(log, evaluation, benchmark)
    _warn_of_missing_scores(rules, benchmark, chosen)
    _warn_of_uncounted_answers(evaluation, benchmark, rules)

    models = {ModelRole.MODEL: {PLAIN: evaluation}}
    for role, source in sources_of(log, retain, start).items():
        if role is not ModelRole.MODEL:
            models[role] = {PLAIN: read_log(source, profile=rules)}
    results = results_of(models, _SPLIT_OF_LOGS, benchmark, metrics=chosen)
    _warn_of_unobserved(chosen, results)
    print_verdict(results, {}, as_json=as_json)
    return 0


def _warn_of_unobserved(chosen: MetricChoices, results: Results) -> None:
    """Warn of metrics without a value, because the log lacks what they read."""
    (judged,) = [row for row in results.rows if row.kind == "run"]
    for name in chosen:
        columns = results.schema.plan.affected({name})
        if all(judged.metrics.get(column) is None for column in columns):
            Console().note(
                f"warning: {name} has no value, because the log lacks what it reads; evaluate the "
                f"model again with --metric {name}"
            )


def _check_sets(log: str, evaluation: Evaluation, benchmark: Benchmark) -> None:
    """Check that a log has all sets of a benchmark. Logs of other harnesses have no holdout set.

    Raises:
        EvaluationError: If a set is missing.
    """
    for name, role in benchmark.set_roles.items():
        if name not in evaluation.sets and role != "holdout":
            raise EvaluationError(
                f"{log}: the set {name!r} is missing or incomplete, so the metrics of "
                f"{benchmark.source} cannot be computed; name the log's benchmark with --data, or "
                "give this log only as --retain"
            )


def _warn_of_uncounted_answers(
    evaluation: Evaluation, benchmark: Benchmark, rules: Profile
) -> None:
    """Warn if many answers of a log have no words that the profile's ROUGE counts."""
    from unlearnbench.evaluation.summary import plan_of
    from unlearnbench.evaluation.word_check import evaluated_shares, rouge_sets, uncounted_notice

    shares = evaluated_shares(evaluation, rouge_sets(plan_of(rules, benchmark)))
    notice = uncounted_notice(shares, rules, "evaluate the model again with --profile")
    if notice:
        Console().note(f"warning: {notice}")
