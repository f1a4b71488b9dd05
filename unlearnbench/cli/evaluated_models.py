"""The evaluations that `evaluate` and `attack` need: of one model, and of the models beside it.

A model is a folder, a hub id, or an adapter's folder. A retain or start model may also be given by
its evaluation log, unless it is to be attacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from unlearnbench.base.console import Console, progress_bar
from unlearnbench.base.distributed import is_main_process
from unlearnbench.base.errors import EvaluationError
from unlearnbench.cli.options import ModelOptions, is_log_file
from unlearnbench.results.single import PLAIN, ModelRole, Variants, check_profile, records_of

if TYPE_CHECKING:
    from unlearnbench.analysis.results import Results
    from unlearnbench.api.benchmark import Benchmark, SplitKey
    from unlearnbench.api.observations import Evaluation
    from unlearnbench.api.profile import Profile
    from unlearnbench.config.entries import AttackSpec
    from unlearnbench.config.metric_plan import MetricChoices
    from unlearnbench.runs.evaluate_model import EvaluationSetup


def sources_of(model: str, retain: str | None, start: str | None) -> dict[ModelRole, str]:
    """Return the sources of the models that are given, by role."""
    sources = {ModelRole.MODEL: model}
    if retain:
        sources[ModelRole.RETAIN] = retain
    if start:
        sources[ModelRole.START] = start
    return sources


def evaluate_models(
    sources: Mapping[ModelRole, str],
    attacks: Sequence[AttackSpec],
    options: ModelOptions,
    benchmark: Benchmark,
    rules: Profile,
    metrics: MetricChoices | None = None,
    keep: Callable[[ModelRole, str, Evaluation], None] | None = None,
) -> dict[ModelRole, dict[str, Evaluation]] | None:
    """Evaluate models, each without an attack and under all attacks.

    The start model is not attacked, because it has not forgotten anything.

    Args:
        sources: Folders, hub ids or logs by role. Logs are read.
        attacks: None for `evaluate`.
        options: How the models are read and evaluated.
        benchmark: On whose sets they are evaluated.
        rules: By which they are evaluated.
        metrics: Metrics in addition to the usual ones, with their settings.
        keep: Is called with the role, the variant and each evaluation as soon as there is one, in
            the main process of a group. None: nothing is called.

    Returns:
        Evaluations by role and variant, or None in all but the main process of a group.

    Raises:
        EvaluationError: If a model that has to be evaluated is given by its log, if a log does not
            fit the rules, or if an option has no effect.
        ModelError: If a model is missing or damaged.
    """
    from unlearnbench.config.precision import resolve_precision

    resolve_precision("cpu", options.dtype, options.precision)
    logs = _checked_logs(sources, options.adapter_base, rules, has_attacks=bool(attacks))
    setup = options.setup(sources[ModelRole.MODEL], benchmark, rules, metrics)
    _warn_of_uncounted_answers(setup, benchmark, rules)

    models: dict[ModelRole, dict[str, Evaluation]] = {ModelRole.MODEL: {}}
    for role, log in logs.items():
        models[role] = {PLAIN: log}
        if keep is not None and is_main_process():
            keep(role, PLAIN, log)
    for role, source in sources.items():
        if role not in logs:
            its_attacks = () if role is ModelRole.START else attacks
            # Without the model itself, attacks and metrics that read it are refused before.
            start = None if ModelRole.START in logs else sources.get(ModelRole.START)
            of_role = None if keep is None else partial(keep, role)
            models[role] = _evaluations(source, its_attacks, setup, start, of_role)
    return models if is_main_process() else None


def _checked_logs(
    sources: Mapping[ModelRole, str],
    adapter_base: str | None,
    rules: Profile,
    *,
    has_attacks: bool,
) -> dict[ModelRole, Evaluation]:
    """Check all sources before any work, and read those that are logs."""
    from unlearnbench.evaluation.logs import read_log
    from unlearnbench.models.source import Source

    logs: dict[ModelRole, Evaluation] = {}
    for role, source in sources.items():
        if not is_log_file(source):
            Source(source, None, adapter_base).check()
        elif has_attacks or role is ModelRole.MODEL:
            raise EvaluationError(f"{source} is a log; give the model")
        else:
            logs[role] = read_log(source, profile=rules)
            check_profile(source, logs[role], rules.id)
    if adapter_base and not any(Source(source).is_adapter for source in sources.values()):
        raise EvaluationError(
            "--adapter-base: none of the models is the folder of an adapter, so it has no effect; "
            "leave it out"
        )
    return logs


def _warn_of_uncounted_answers(
    setup: EvaluationSetup, benchmark: Benchmark, rules: Profile
) -> None:
    """Warn if many true answers have no words that the profile's ROUGE counts."""
    from unlearnbench.evaluation.summary import plan_of
    from unlearnbench.evaluation.word_check import rouge_sets, uncounted_notice, uncounted_shares

    answers = setup.evaluator.references(rouge_sets(plan_of(rules, benchmark)))
    notice = uncounted_notice(uncounted_shares(answers, rules.words), rules, "use --profile")
    if notice and is_main_process():
        Console().note(f"warning: {notice}")


def _evaluations(
    source: str,
    attacks: Sequence[AttackSpec],
    setup: EvaluationSetup,
    start: str | None,
    keep: Callable[[str, Evaluation], None] | None,
) -> dict[str, Evaluation]:
    """Evaluate one model, and show the progress.

    Args:
        source: Folder or hub id.
        attacks: Under which the model is evaluated, too.
        setup: Rows, rules and tokenizer.
        start: Folder or hub id of the start model, for attacks and metrics that read it.
        keep: Is called with the variant and each evaluation, in the main process of a group.

    Returns:
        The evaluations by variant.
    """
    is_main = is_main_process()
    console = Console()
    variants: dict[str, Evaluation] = {}
    with progress_bar(console, f"evaluating {source}") as progress:
        shown = progress if is_main else None
        for variant, evaluation in setup.evaluations(source, attacks, start=start, progress=shown):
            variants[variant] = evaluation
            if keep is not None and is_main:
                keep(variant, evaluation)
            if variant and is_main:
                console.note(f"evaluated {source} under {variant}")
    return variants


def results_of(
    models: Mapping[ModelRole, Variants],
    split: SplitKey,
    benchmark: Benchmark,
    attacks: Iterable[AttackSpec] = (),
    metrics: MetricChoices | None = None,
) -> Results:
    """Compute all numbers of the models, as if they were those of a sweep with one run.

    Args:
        models: Evaluations by role and variant.
        split: Division into forget and retain rows.
        benchmark: On whose sets the models were evaluated.
        attacks: The attacks that they were evaluated under.
        metrics: Metrics in addition to the usual ones, with their settings.
    """
    from unlearnbench.analysis.results import Results

    records = records_of(models, benchmark, split, attacks, metrics or {})
    return Results.of(records, name="model")
