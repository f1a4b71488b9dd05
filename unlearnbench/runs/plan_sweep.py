"""Plan a sweep on its data and models, before anything is written.

`plan_sweep` reads the rows, checks the models' files, and hashes both. Only then are the ids of
runs known (`config/plan.py`). Errors of several settings are raised together. What is no error, but
unlikely to be meant, becomes a warning.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from unlearnbench.api.benchmark import Benchmark, Dataset, SplitKey
from unlearnbench.api.metric_engine import MetricPlan
from unlearnbench.api.profile import Profile
from unlearnbench.base import hub
from unlearnbench.base.deferred_warnings import warn_later
from unlearnbench.base.distributed import broadcast_from_main
from unlearnbench.base.errors import DataError, ModelError
from unlearnbench.base.messages import Loc
from unlearnbench.config.benchmark_rules import check_declarations
from unlearnbench.config.entries import attack_from_spec
from unlearnbench.config.metric_plan import missing_scores
from unlearnbench.config.plan import ModelFacts, Plan, make_plan
from unlearnbench.config.plan_file import planned_commits, planned_sequence
from unlearnbench.config.profiles import profile_of
from unlearnbench.config.schema import SweepConfig
from unlearnbench.config.search_space import Space
from unlearnbench.evaluation.made_up_sets import SAMPLES
from unlearnbench.evaluation.metric_trial import try_metrics
from unlearnbench.evaluation.privacy_control import holdout_notice
from unlearnbench.evaluation.sets import evaluation_sets
from unlearnbench.evaluation.summary import plan_of
from unlearnbench.evaluation.word_check import rouge_sets, uncounted_notice, uncounted_shares
from unlearnbench.models.corrections import corrections_under
from unlearnbench.models.dataset_rules import observation_faults
from unlearnbench.models.loading import check_weights
from unlearnbench.models.named_models import hub_errors, hub_sources, local_contents, source_errors
from unlearnbench.models.rows_loading import load_benchmark, read_refusals, split_fingerprints
from unlearnbench.models.source import UnreachableError
from unlearnbench.runs.model_sources import ModelSources, reference_ids
from unlearnbench.runs.plan_checks import (
    PlacedError,
    check_adapters,
    check_attacks,
    check_outputs,
    check_prompt_wrappers,
    check_prompts,
    check_scores,
    check_steps,
    joined,
)
from unlearnbench.runs.row_warnings import check_conversations, row_warnings
from unlearnbench.runs.training_warnings import training_warnings
from unlearnbench.stats.point_sequences import PointSequence


def plan_sweep(config: SweepConfig) -> tuple[Plan, Dataset]:
    """Plan a sweep on its data and models as they are now. Collective.

    Returns:
        The plan, and the rows that it was made from.

    Raises:
        DataError: Rows are missing or damaged.
        ModelError: A model's folder or a log is missing or damaged.
        ConfigError: There are several such errors, or settings do not fit each other.
        PluginError: A metric is broken.
    """
    check_outputs(config)
    metrics, commits_of_metrics = _checked_metrics(config)
    benchmark, commits = _read_sources(config)
    commits |= commits_of_metrics
    _check_observations(config, metrics, benchmark)
    for model in config.models:
        check_weights(model)
    check_adapters(config)
    forget_rows = {key: len(split.forget) for key, split in benchmark.splits.items()}
    check_steps(config, forget_rows)

    models = [ModelSources(model, benchmark, config.cache_folder) for model in config.models]
    for sources in models:
        with suppress(UnreachableError):
            sources.check_answers()
            check_conversations(sources)
    for warning in row_warnings(config, benchmark, models):
        warn_later(warning)
    for warning in training_warnings(config, forget_rows, models):
        warn_later(warning)

    plan = _planned(config, benchmark, models)
    rows = {key: benchmark.sizes(key) for key in benchmark.splits}
    plan = replace(plan, rows=rows, commits=commits)
    check_prompts(plan, benchmark)
    check_prompt_wrappers(plan, benchmark, models)
    check_scores(plan, benchmark)
    check_attacks(config, benchmark)
    _warn_of_missing_holdouts(config, benchmark)
    _warn_of_uncounted_words(config, benchmark, rouge_sets(metrics))
    _warn_of_missing_scores(config)
    return plan, benchmark


def _checked_metrics(config: SweepConfig) -> tuple[MetricPlan, dict[str, str]]:
    """Compute each metric of the sweep once on made-up rows.

    Returns:
        The metrics, and the commits of the models that they read, by `Repository.label`.
    """
    options = config.evaluation
    metrics = plan_of(profile_of(options), config.data, options.metrics, config.references)
    check_declarations(config.data, metrics, config.references)
    commits: dict[str, str] = {}
    if metrics.repositories:
        # A metric that is computed here has to read the commits of the sweep.
        commits, errors = broadcast_from_main(lambda: _commits(config, _metric_sources(metrics)))
        if errors:
            raise joined(errors, config.name)
        hub.pin(commits)
    # A metric has to do with the smallest number of answers that an attack samples.
    sample_counts: list[int] = []
    for spec in config.attacks:
        if spec.settings.get("samples"):
            sample_counts.append(spec.settings["samples"])
    try_metrics(metrics, config.data.set_roles, min(sample_counts, default=SAMPLES))
    return metrics, commits


def _read_sources(config: SweepConfig) -> tuple[Dataset, dict[str, str]]:
    """Check the places of all models, pin the hub's commits, and read the rows.

    The hub is asked only if local files have no errors, so that a typo is reported at once. Rows
    are read even if models have errors, unless a hub has the rows.

    Returns:
        The rows, and the commits by `Repository.label`.

    Raises:
        UnlearnbenchError: The only error that was found.
        ConfigError: Several errors were found.
    """
    errors: list[PlacedError] = []
    for index, model in enumerate(config.models):
        for loc, error in source_errors(model):
            errors.append((("models", index, *loc), error))

    commits: dict[str, str] = {}
    if not errors:
        # All processes read the same commits, even if a branch moves on in between.
        commits, errors = broadcast_from_main(lambda: _commits(config, _repositories(config)))
    hub.pin(commits)
    if not errors:
        for index, model in enumerate(config.models):
            for loc, error in hub_errors(model):
                errors.append((("models", index, *loc), error))

    benchmark: Dataset | None = None
    if not errors or not config.data.repositories:
        benchmark, row_errors = _load_rows(config.data, config.split_keys)
        errors += row_errors
    if benchmark is None or errors:
        raise joined(errors, config.name)
    return benchmark, commits


def _commits(
    config: SweepConfig, repositories: Iterable[tuple[Loc, hub.Repository]]
) -> tuple[dict[str, str], list[PlacedError]]:
    """Find the commits of the hub's repositories that the configuration names.

    If the sweep's folder has a plan, the sweep continues with the commits of that plan, wherever
    their branches are now.

    Args:
        config: The sweep.
        repositories: Each with the path of the setting that names it.

    Returns:
        The commits by `Repository.label`, and the errors of the hub's answers. A repository has no
        commit if the hub does not answer and the hub's cache does not know it either.
    """
    commits = planned_commits(Path(config.output) / config.name)
    errors: list[PlacedError] = []
    reason_of_unknown: dict[str, str] = {}
    named = {repository.label: (loc, repository) for loc, repository in repositories}
    for label, (loc, repository) in named.items():
        try:
            # Once the hub has not answered, it is not waited for again.
            newest = hub.newest_commit(repository, cached=bool(reason_of_unknown))
        except hub.HubError as error:
            if label in commits:
                continue
            if error.answered:
                kind = DataError if repository.kind == "dataset" else ModelError
                errors.append((loc, kind(f"{repository.name}: {error}")))
            else:
                reason_of_unknown[label] = str(error)
            continue
        pinned = commits.setdefault(label, newest)
        if pinned != newest:
            warn_later(
                f"{label} has moved on to commit {newest[:12]}; this sweep continues with "
                f"{pinned[:12]}, which it began with (plan.json)"
            )
    if reason_of_unknown:
        first_reason = next(iter(reason_of_unknown.values()))
        warn_later(
            f"no commit is known of {', '.join(reason_of_unknown)}, since the hub does not answer "
            f"({first_reason}) and its cache has none: what it has when runs begin is read"
        )
    return commits, errors


def _metric_sources(metrics: MetricPlan) -> Iterator[tuple[Loc, hub.Repository]]:
    """Yield the hub's repositories that metrics read, each with its setting's path."""
    for (name, setting), repository in metrics.repositories.items():
        yield ("evaluation", "metrics", name, setting), repository


def _repositories(config: SweepConfig) -> Iterator[tuple[Loc, hub.Repository]]:
    """Yield the hub's repositories of rows, attacks and models, each with its setting's path."""
    for setting, repository in config.data.repositories.items():
        yield ("data", *setting.split(".")), repository
    for spec in config.attacks:
        for setting, repository in attack_from_spec(spec).repositories.items():
            yield ("attacks", spec.name, *setting.split(".")), repository
    for index, model in enumerate(config.models):
        for loc, source in hub_sources(model):
            yield ("models", index, *loc), source.repository


def _load_rows(
    data: Benchmark, splits: Sequence[SplitKey]
) -> tuple[Dataset | None, list[PlacedError]]:
    """Load the rows of some splits.

    Returns:
        The rows, and all errors. The rows are None if they cannot be loaded.
    """
    errors: list[PlacedError] = []
    try:
        read_refusals(data.refusals)
    except DataError as error:
        errors.append((("data", "refusals"), error))
        # The rows are read without refusals, so that their own faults are found, too.
        data = data.model_copy(update={"refusals": None})
    try:
        return load_benchmark(data, splits), errors
    except DataError as error:
        loc = ("data",) if data.folder is None else ("data", "path")
        errors.append((loc, error))
        return None, errors


def _check_observations(config: SweepConfig, metrics: MetricPlan, benchmark: Dataset) -> None:
    """Raise DataError if rows lack a text that a metric needs. Only the first fault is named."""
    for split in benchmark.splits.values():
        for fault in observation_faults(config.data, metrics, split):
            raise DataError(fault)


def _planned(config: SweepConfig, benchmark: Dataset, models: Sequence[ModelSources]) -> Plan:
    """Make the plan from the hashes of rows and models. Collective."""
    fingerprints = split_fingerprints(benchmark)
    profile = profile_of(config.evaluation)
    # Only the main process hashes the weights, which may be gigabytes.
    contents = broadcast_from_main(
        lambda: {model.name: local_contents(model) for model in config.models}
    )
    sequence: PointSequence = broadcast_from_main(lambda: _point_sequence(config))
    facts: dict[str, ModelFacts] = {}
    for sources in models:
        name = sources.settings.name
        facts[name] = _model_facts(sources, config, profile, contents[name])
    plan = make_plan(config, fingerprints, facts, sequence)
    # A plan can be shown without a hub, but the plan's runs will need it.
    with suppress(UnreachableError):
        plan = replace(plan, references=tuple(reference_ids(config, models, fingerprints)))
    return plan


def _point_sequence(config: SweepConfig) -> PointSequence:
    """Return the points of a quasi-random search.

    A sweep whose folder has a plan continues with the points that it began with. A warning says so
    if they are those of earlier versions, which spread points of several axes less evenly.
    """
    if config.search.kind != "quasi-random":
        return "sobol"
    sequence = planned_sequence(Path(config.output) / config.name)
    if sequence != "sobol" and any(len(Space(grid, config).axes) > 1 for grid in config.methods):
        warn_later(
            "this sweep began with the quasi-random settings of an earlier version, and continues "
            "with them; a sweep in another folder (--set name=…) has settings that are spread more "
            "evenly"
        )
    return sequence


def _model_facts(
    sources: ModelSources, config: SweepConfig, profile: Profile, content: Mapping[str, str]
) -> ModelFacts:
    """Read the facts about a model that its files contain.

    Args:
        sources: The places of the model.
        config: The sweep.
        profile: The rules of its evaluations.
        content: Hashes of the model's local folders and logs.

    Returns:
        The facts. A fact that cannot be read because a hub cannot be reached keeps its default:
        the plan can be shown, and its runs need the hub, since they read the same files.
    """
    facts = ModelFacts(content=content)
    with suppress(UnreachableError):
        facts = replace(facts, template_digest=sources.template_digest)
    with suppress(UnreachableError):
        facts = replace(facts, turn_digest=sources.turn_digest(profile))
    # Runs read the same configuration, and warn if the plan has missed a dropout.
    with suppress(ModelError):
        facts = replace(facts, has_dropout=sources.has_dropout)
    with suppress(UnreachableError):
        facts = replace(facts, corrections=corrections_under(sources.corrections, config.attacks))
    return facts


def _warn_of_missing_holdouts(config: SweepConfig, benchmark: Dataset) -> None:
    """Warn of metrics without a value because the data lack holdout rows."""
    missing = [
        split.holdout_name for split in benchmark.splits.values() if not split.sets.get("holdout")
    ]
    warning = holdout_notice(missing, profile_of(config.evaluation), config.data)
    if warning:
        warn_later(warning)


def _warn_of_missing_scores(config: SweepConfig) -> None:
    """Warn of the profile's scores that need metrics which the configuration does not name."""
    evaluation = config.evaluation
    missing = missing_scores(profile_of(evaluation), config.data, evaluation.metrics)
    warning = missing.warning(evaluation.profile, "evaluation.metrics")
    if warning:
        warn_later(warning)


def _warn_of_uncounted_words(
    config: SweepConfig, benchmark: Dataset, set_names: Sequence[str]
) -> None:
    """Warn of sets whose true answers have words that the profile does not count."""
    profile = profile_of(config.evaluation)
    largest_shares: dict[str, float] = {}
    for key in benchmark.splits:
        sets = evaluation_sets(benchmark, key, profile)
        answers = {name: [row.answer for row in sets.get(name, ())] for name in set_names}
        for name, share in uncounted_shares(answers, profile.words).items():
            largest_shares[name] = max(share, largest_shares.get(name, 0.0))
    warning = uncounted_notice(largest_shares, profile, "set evaluation.profile to")
    if warning:
        warn_later(warning)
