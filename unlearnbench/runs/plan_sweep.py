"""Plan a sweep on its data and models; raises all errors at once, before anything is written."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from unlearnbench.api import registry
from unlearnbench.api.attack import Attack, WeightAttack
from unlearnbench.api.benchmark import Benchmark, Dataset, SplitKey, split_label
from unlearnbench.api.plugin_code import plugin_code
from unlearnbench.api.profile import Profile
from unlearnbench.base import hub
from unlearnbench.base.deferred_warnings import warn_later
from unlearnbench.base.distributed import broadcast_from_main
from unlearnbench.base.errors import (
    ConfigError,
    DataError,
    ModelError,
    Problem,
    TrainingError,
    UnlearnbenchError,
)
from unlearnbench.base.messages import Loc
from unlearnbench.base.outputs import check_folder, check_storage
from unlearnbench.config.benchmark_rules import check_declarations
from unlearnbench.config.entries import attack_from_spec
from unlearnbench.config.method_specs import method_from_spec
from unlearnbench.config.plan import ModelFacts, Plan, make_plan
from unlearnbench.config.plan_file import planned_commits, planned_sequence
from unlearnbench.config.profiles import profile_of
from unlearnbench.config.schema import SweepConfig
from unlearnbench.config.search_space import PointSequence, Space
from unlearnbench.config.training_settings import schedule_of
from unlearnbench.evaluation.made_up_sets import SAMPLES
from unlearnbench.evaluation.metric_trial import try_metrics
from unlearnbench.evaluation.privacy_control import holdout_notice
from unlearnbench.evaluation.sets import evaluation_sets
from unlearnbench.evaluation.summary import plan_of
from unlearnbench.evaluation.word_check import rouge_sets, uncounted_notice, uncounted_shares
from unlearnbench.models.corrections import corrections_under
from unlearnbench.models.dataset_rules import observation_faults
from unlearnbench.models.encoding import check_scored
from unlearnbench.models.loading import check_weights
from unlearnbench.models.lora_check import check_targets
from unlearnbench.models.named_models import hub_errors, hub_sources, local_contents, source_errors
from unlearnbench.models.rows_loading import load_benchmark, read_refusals, split_fingerprints
from unlearnbench.models.source import UnreachableError
from unlearnbench.runs.model_sources import ModelSources, reference_ids
from unlearnbench.runs.row_warnings import check_conversations, row_warnings
from unlearnbench.runs.training_warnings import training_warnings
from unlearnbench.runs.under_attack import attack_rows


def check_attacks(config: SweepConfig, benchmark: Dataset) -> None:
    """ConfigError for attacks that leave no row, or whose training its processes do not allow."""
    problems: list[Problem] = []
    for spec in config.attacks:
        attack = attack_from_spec(spec)
        with plugin_code(f"`selects` of attack {spec.name!r}"):
            empty = [
                s.name
                for key, s in benchmark.splits.items()
                if not _selects(config, benchmark, key, attack)
            ]
        reason = _sharded(config, attack)
        if empty:
            roles = ", ".join(sorted(attack.roles))
            reason = (
                f"it leaves no row of the evaluation sets of role {roles} at split {empty[0]} "
                "(`unlearnbench attacks show` describes which rows it takes); leave it out"
            )
        if reason:
            problems.append(Problem(config.name, f"attacks.{spec.name}", reason))
    if problems:
        raise ConfigError(problems)


def _selects(config: SweepConfig, benchmark: Dataset, split: SplitKey, attack: Attack) -> bool:
    """True if the attack selects a row of its roles at a split."""
    sets = evaluation_sets(benchmark, split, profile_of(config.evaluation)).items()
    parts = [part for name, part in sets if config.data.set_roles[name] in attack.roles]
    questions = [question for part in parts for question in part]
    # No model has answered yet.
    answers = {question.question: "An answer." for question in questions}
    rows = replace(attack_rows(benchmark, split), answers=answers)
    return any(attack.selects(question, rows) for question in questions)


def _sharded(config: SweepConfig, attack: Attack) -> str:
    """The first model whose weights are sharded where the attack trains; empty if there is none."""
    if not isinstance(attack, WeightAttack) or not attack.trains:
        return ""
    for model in config.models:
        resources = config.resources_of(model.name)
        if resources.world_size > 1 and resources.parallel == "fsdp":
            return (
                f"it trains, and the weights of model {model.name!r} are sharded over "
                f"{resources.world_size} processes; set resources.parallel: ddp, or one GPU for a "
                "run, or leave it out"
            )
    return ""


def plan_sweep(config: SweepConfig) -> tuple[Plan, Dataset]:
    """Plan `config` on its data as they are now.

    Raises: DataError or ModelError where rows, a model's folder or a log are missing or damaged;
    ConfigError with all of these where there are several; PluginError for a broken metric.
    """
    check_outputs(config)
    options = config.evaluation
    metrics = plan_of(profile_of(options), config.data, options.metrics, config.references)
    check_declarations(config.data, metrics, config.references)
    sampled = [n for spec in config.attacks if (n := spec.settings.get("samples"))]
    try_metrics(metrics, config.data.set_roles, min(sampled, default=SAMPLES))
    errors: list[tuple[Loc, UnlearnbenchError]] = [
        (("models", index, *loc), error)
        for index, model in enumerate(config.models)
        for loc, error in source_errors(model)
    ]
    commits, refused = broadcast_from_main(lambda: _commits(config)) if not errors else ({}, [])
    hub.pin(commits)
    errors += refused or [
        (("models", index, *loc), error)
        for index, model in enumerate(config.models if not errors else ())
        for loc, error in hub_errors(model)
    ]
    benchmark = None
    if not errors or not config.data.repositories:
        benchmark, faults = _load(config.data, config.split_keys)
        errors += faults
    if benchmark is None or errors:
        raise _together(errors, config.name)
    for split in benchmark.splits.values():
        for fault in observation_faults(config.data, metrics, split):
            raise DataError(fault)
    for model in config.models:
        check_weights(model)
    _check_lora(config)
    fingerprints = split_fingerprints(benchmark)
    rows = {fraction: benchmark.sizes(fraction) for fraction in benchmark.splits}
    _check_steps(config, {fraction: len(s.forget) for fraction, s in benchmark.splits.items()})
    models = [ModelSources(model, benchmark, config.cache_folder) for model in config.models]
    for sources in models:
        with suppress(UnreachableError):
            sources.check_answers()
            check_conversations(sources)
    for warning in row_warnings(config, benchmark, models):
        warn_later(warning)
    forget_rows = {key: len(split.forget) for key, split in benchmark.splits.items()}
    for warning in training_warnings(config, forget_rows, models):
        warn_later(warning)
    profile = profile_of(config.evaluation)
    contents = broadcast_from_main(lambda: {m.name: local_contents(m) for m in config.models})
    sequence: PointSequence = broadcast_from_main(lambda: _sequence(config))
    facts: dict[str, ModelFacts] = {}
    for sources in models:
        facts[sources.settings.name] = ModelFacts(
            content=contents[sources.settings.name],
            template_digest=_template(sources),
            turn_digest=_turns(sources, profile),
            has_dropout=_has_dropout(sources),
            corrections=_corrections(sources, config),
        )
    plan = make_plan(config, fingerprints, facts, sequence)
    with suppress(UnreachableError):  # its runs will need the hub
        plan = replace(plan, references=(*reference_ids(config, models, fingerprints),))
    plan = replace(plan, rows=rows, commits=commits)
    _check_prompts(plan, benchmark)
    _check_scores(plan, benchmark)
    check_attacks(config, benchmark)
    missing = [s.holdout_name for s in benchmark.splits.values() if not s.sets.get("holdout")]
    if line := holdout_notice(missing, profile_of(config.evaluation), config.data):
        warn_later(line)
    if line := _uncounted_notice(config, benchmark, rouge_sets(metrics)):
        warn_later(line)
    return plan, benchmark


def _uncounted_notice(config: SweepConfig, benchmark: Dataset, names: Sequence[str]) -> str | None:
    """A line about true answers of the sets `names` whose words the profile does not count."""
    profile = profile_of(config.evaluation)
    shares: dict[str, float] = {}
    for key in benchmark.splits:
        sets = evaluation_sets(benchmark, key, profile)
        answers = {name: [row.answer for row in sets.get(name, ())] for name in names}
        for name, share in uncounted_shares(answers, profile.words).items():
            shares[name] = max(share, shares.get(name, 0.0))
    return uncounted_notice(shares, profile, "set evaluation.profile to")


def _sequence(config: SweepConfig) -> PointSequence:
    """The points of a quasi-random search: in a folder that has a plan, those that it began with.

    A notice says so, since earlier versions spread points of several axes less evenly.
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


def _check_lora(config: SweepConfig) -> None:
    """Raise an error where adapters are to be put on layers that a model does not have.

    A model of a hub that does not answer is looked at before its start model is evaluated.
    """
    errors: list[tuple[Loc, UnlearnbenchError]] = []
    for index, model in enumerate(config.models):
        try:
            with suppress(UnreachableError):
                check_targets(model)
        except ModelError as error:
            errors.append((("models", index, "lora", "target_modules"), error))
    if errors:
        raise _together(errors, config.name)


def _commits(
    config: SweepConfig,
) -> tuple[dict[str, str], list[tuple[Loc, UnlearnbenchError]]]:
    """Find the commit of each of the hub's repositories, by label, and errors of the hub.

    Commits of the plan in the sweep's folder stay, wherever their branches are now.
    """
    commits = planned_commits(Path(config.output) / config.name)
    errors: list[tuple[Loc, UnlearnbenchError]] = []
    unknown: dict[str, str] = {}
    named = {repository.label: (loc, repository) for loc, repository in _repositories(config)}
    for label, (loc, repository) in named.items():
        try:
            newest = hub.newest_commit(repository, cached=bool(unknown))
        except hub.HubError as error:
            kind = DataError if repository.kind == "dataset" else ModelError
            if label in commits:
                pass
            elif error.answered:
                errors.append((loc, kind(f"{repository.name}: {error}")))
            else:
                unknown[label] = str(error)
            continue
        pinned = commits.setdefault(label, newest)
        if pinned != newest:
            warn_later(
                f"{label} has moved on to commit {newest[:12]}; this sweep continues with "
                f"{pinned[:12]}, which it began with (plan.json)"
            )
    if unknown:
        reason = next(iter(unknown.values()))
        warn_later(
            f"no commit is known of {', '.join(unknown)}, since the hub does not answer ({reason})"
            " and its cache has none: what it has when runs begin is read"
        )
    return commits, errors


def _repositories(config: SweepConfig) -> Iterator[tuple[Loc, hub.Repository]]:
    """The hub's repositories that the configuration names, each with the setting."""
    for setting, repository in config.data.repositories.items():
        yield ("data", *setting.split(".")), repository
    for spec in config.attacks:
        for setting, repository in attack_from_spec(spec).repositories.items():
            yield ("attacks", spec.name, *setting.split(".")), repository
    for index, model in enumerate(config.models):
        for loc, source in hub_sources(model):
            yield ("models", index, *loc), source.repository


def _template(models: ModelSources) -> str:
    """Digest of a model's chat template; empty without one, or if the hub cannot be reached.

    A plan can be shown without a hub, but its runs need it, since they read the same tokenizer.
    """
    with suppress(UnreachableError):
        return models.template_digest
    return ""


def _turns(models: ModelSources, profile: Profile) -> str:
    """Digest of how a model's turns and answers end; empty if the hub cannot be reached."""
    with suppress(UnreachableError):
        return models.turn_digest(profile)
    return ""


def _has_dropout(models: ModelSources) -> bool:
    """Whether a model's configuration sets dropout; False if it cannot be read.

    Its runs read the same configuration, and warn if the plan has missed it.
    """
    with suppress(ModelError):
        return models.has_dropout
    return False


def _corrections(models: ModelSources, config: SweepConfig) -> tuple[str, ...]:
    """Corrected faults of a model's architecture; empty if the hub cannot be reached."""
    with suppress(UnreachableError):
        return corrections_under(models.corrections, config.attacks)
    return ()


def _check_prompts(plan: Plan, benchmark: Dataset) -> None:
    """ConfigError where a method needs the questions of rows that are plain text."""
    from unlearnbench.api.inference_method import Wrapper  # it imports torch

    problems: dict[str, Problem] = {}
    for run in {(repr(run.method), run.forget_fraction): run for run in plan.runs}.values():
        split, name = benchmark.splits[run.forget_fraction], run.method.name
        method, rows = method_from_spec(run.method), split.forget
        needs = None if isinstance(method, Wrapper) else method.needed()
        if needs is None or "retain_refusal" in needs.all_parts:
            rows = (*split.forget, *split.retain)
        elif not needs.questions and needs.all_parts.isdisjoint(
            {"refusal", "alternative", "sample"}
        ):
            continue
        if plain := next((row for row in rows if row.is_plain_text), None):
            problems[name] = Problem(
                plan.config.name,
                "methods",
                f"{name} needs the questions of rows, but benchmark {benchmark.name} has plain "
                f"text in {plain.place or split.name}; leave {name} out",
            )
    if problems:
        raise ConfigError([*problems.values()])


def _check_scores(plan: Plan, benchmark: Dataset) -> None:
    """DataError where a method reads scores that the rows do not have."""
    from unlearnbench.api.method import Method  # it imports torch

    for spec in {repr(run.method): run.method for run in plan.runs}.values():
        method = method_from_spec(spec)
        parts = method.needed().scores if isinstance(method, Method) else frozenset[str]()
        for split in benchmark.splits.values():
            for part, rows in (("forget", split.forget), ("retain", split.retain)):
                for row in rows if part in parts else ():
                    check_scored(row)


def _check_steps(config: SweepConfig, rows: Mapping[SplitKey, int]) -> None:
    """Raise ConfigError where a run would have no optimiser step; `rows` to forget, by split."""
    problems: list[Problem] = []
    for name in filter(registry.trains, config.method_names):
        options = config.training_of(name)
        for fraction, count in rows.items():
            try:
                schedule_of(options, count, config.unit, config.budget)
            except TrainingError as error:
                text = f"{name}, {split_label(fraction)}: {error}"
                problems.append(Problem(config.name, "training.batch_size", text))
    if problems:
        raise ConfigError(problems)


def check_outputs(config: SweepConfig) -> None:
    """Raise an error where outputs cannot be written, or the tracker cannot be used."""
    if config.tracking.enabled:
        registry.load("trackers", config.tracking.tracker).check()
    check_folder(Path(config.output) / config.name, "output")
    check_folder(config.cache_folder, "cache")
    if config.storage is not None:
        check_storage(config.storage)


def _load(
    data: Benchmark, splits: Sequence[SplitKey]
) -> tuple[Dataset | None, list[tuple[Loc, UnlearnbenchError]]]:
    errors: list[tuple[Loc, UnlearnbenchError]] = []
    try:
        read_refusals(data.refusals)
    except DataError as error:
        errors.append((("data", "refusals"), error))
        data = data.model_copy(update={"refusals": None})
    try:
        return load_benchmark(data, splits), errors
    except DataError as error:
        return None, [*errors, (("data",) if data.folder is None else ("data", "path"), error)]


def _together(errors: Sequence[tuple[Loc, UnlearnbenchError]], name: str) -> UnlearnbenchError:
    """One error as it is, several as the problems of the configuration called `name`."""
    if len(errors) == 1:
        return errors[0][1]
    return ConfigError(
        [Problem(name, ".".join(map(str, loc)), str(error)) for loc, error in errors]
    )
