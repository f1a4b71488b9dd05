"""Checks of a plan, for settings that would fail or mean nothing once runs have begun.

Each check raises its errors before anything is written. Errors of several settings are raised
together, so that a user can correct all of them at once.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from unlearnbench.api import registry
from unlearnbench.api.attack import Attack, WeightAttack, searches
from unlearnbench.api.benchmark import Dataset, Question, Split, SplitKey, split_label
from unlearnbench.api.defender_rows import DefenderRows
from unlearnbench.api.plugin_code import plugin_code
from unlearnbench.base.errors import (
    ConfigError,
    ModelError,
    Problem,
    TrainingError,
    UnlearnbenchError,
)
from unlearnbench.base.messages import Loc
from unlearnbench.base.outputs import check_folder, check_storage
from unlearnbench.base.provenance import NO_DRIVER, driver_version
from unlearnbench.config.entries import attack_from_spec
from unlearnbench.config.method_specs import method_from_spec
from unlearnbench.config.plan import Plan
from unlearnbench.config.profiles import profile_of
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import MethodSpec, SweepConfig
from unlearnbench.config.training_settings import schedule_of
from unlearnbench.evaluation.sets import evaluation_sets
from unlearnbench.models.device import device_count
from unlearnbench.models.encoding import check_scored
from unlearnbench.models.lora_check import check_targets
from unlearnbench.models.source import UnreachableError
from unlearnbench.runs.model_sources import ModelSources
from unlearnbench.runs.under_attack import attack_rows, with_made_up_answers

PlacedError = tuple[Loc, UnlearnbenchError]
"""An error, and the path of the setting that it is about: `("models", 0, "base")`."""

_ANSWERING_PARTS = frozenset({"refusal", "alternative", "sample"})
"""Parts of a loss with other answers to the forget rows' questions."""


def joined(errors: Sequence[PlacedError], name: str) -> UnlearnbenchError:
    """Return one error as it is, or several as the problems of the configuration `name`."""
    if len(errors) == 1:
        _, error = errors[0]
        return error
    return ConfigError(
        [Problem(name, ".".join(map(str, loc)), str(error)) for loc, error in errors]
    )


def check_gpus(config: SweepConfig) -> None:
    """Raise ConfigError if runs need a GPU and this machine has none.

    Nothing is raised for a cluster, whose machines may have GPUs, and if the machine has a driver
    of NVIDIA. Then torch or Ray cannot use the GPU, and they know the reason.
    """
    has_gpu = device_count() > 0 or driver_version() != NO_DRIVER
    if has_gpu or config.ray.address is not None:
        return
    problems: dict[str, Problem] = {}
    for index, model in enumerate(config.models):
        resources = config.resources_of(model.name)
        if not resources.gpus:
            continue
        section = "resources" if model.resources is None else f"models.{index}.resources"
        place = f"{section}.gpu"
        text = (
            f"{resources.gpu_text}, but this machine has no GPU; take a machine with one, or "
            f"compute on the CPU with --set {place}=0"
        )
        problems[place] = Problem(config.name, place, text)
    if problems:
        raise ConfigError(list(problems.values()))


def check_outputs(config: SweepConfig) -> None:
    """Raise an error if outputs cannot be written, or if the tracker cannot be used."""
    if config.tracking.enabled:
        registry.load("trackers", config.tracking.tracker).check()
    check_folder(Path(config.output) / config.name, "output")
    check_folder(config.cache_folder, "cache")
    if config.storage is not None:
        check_storage(config.storage)


def check_adapters(config: SweepConfig) -> None:
    """Raise an error if adapters are to be put on layers that a model does not have.

    A model of a hub that does not answer is checked before its start model is evaluated.
    """
    errors: list[PlacedError] = []
    for index, model in enumerate(config.models):
        try:
            with suppress(UnreachableError):
                check_targets(model)
        except ModelError as error:
            errors.append((("models", index, "lora", "target_modules"), error))
    if errors:
        raise joined(errors, config.name)


def check_steps(config: SweepConfig, forget_rows: Mapping[SplitKey, int]) -> None:
    """Raise ConfigError if a run would have no optimiser step.

    Args:
        config: The sweep.
        forget_rows: Number of forget rows by split.
    """
    problems: list[Problem] = []
    for name in filter(registry.trains, config.method_names):
        training = config.training_of(name)
        for split, count in forget_rows.items():
            try:
                schedule_of(training, count, config.unit, config.budget)
            except TrainingError as error:
                text = f"{name}, {split_label(split)}: {error}"
                problems.append(Problem(config.name, "training.batch_size", text))
    if problems:
        raise ConfigError(problems)


def check_prompts(plan: Plan, benchmark: Dataset) -> None:
    """Raise ConfigError if a method needs the questions of rows that are plain text."""
    run_of_case: dict[tuple[str, SplitKey], RunSpec] = {}
    for run in plan.runs:
        run_of_case[repr(run.method), run.forget_fraction] = run

    problem_of_method: dict[str, Problem] = {}
    for run in run_of_case.values():
        name = run.method.name
        split = benchmark.splits[run.forget_fraction]
        for row in _asked_rows(run.method, split):
            if row.is_plain_text:
                problem_of_method[name] = Problem(
                    plan.config.name,
                    "methods",
                    f"{name} needs the questions of rows, but benchmark {benchmark.name} has plain "
                    f"text in {row.place or split.name}; leave {name} out",
                )
                break
    if problem_of_method:
        raise ConfigError([*problem_of_method.values()])


def _asked_rows(spec: MethodSpec, split: Split) -> Sequence[Question]:
    """Return the rows of a split whose questions a method needs."""
    from unlearnbench.api.inference_method import Wrapper  # it imports torch

    method = method_from_spec(spec)
    if isinstance(method, Wrapper):
        # It is fitted to the questions of forget and retain rows, or shows them.
        return (*split.forget, *split.retain) if method.needs_questions else ()
    needs = method.needed()
    if "retain_refusal" in needs.all_parts:
        return (*split.forget, *split.retain)
    if needs.questions or needs.all_parts & _ANSWERING_PARTS:
        return split.forget
    return ()


def check_prompt_wrappers(plan: Plan, benchmark: Dataset, models: Sequence[ModelSources]) -> None:
    """Raise ConfigError if a method that changes prompts cannot ask a question.

    It asks the first question of each evaluation set, as it would in a run. The template of a model
    of a hub that does not answer is not tried.
    """
    sources_of_model = {sources.settings.name: sources for sources in models}
    run_of_case: dict[tuple[str, SplitKey, str], RunSpec] = {}
    for run in plan.runs:
        run_of_case[repr(run.method), run.forget_fraction, run.model.name] = run

    problem_of_method: dict[str, Problem] = {}
    for run in run_of_case.values():
        name = run.method.name
        try:
            _ask_first_questions(run, plan, benchmark, sources_of_model[run.model.name])
        except UnreachableError:
            continue
        except UnlearnbenchError as error:
            problem_of_method[name] = Problem(plan.config.name, "methods", str(error))
    if problem_of_method:
        raise ConfigError([*problem_of_method.values()])


def _ask_first_questions(
    run: RunSpec, plan: Plan, benchmark: Dataset, sources: ModelSources
) -> None:
    """Render the first question of each set as a method that changes prompts asks it."""
    from unlearnbench.api.inference_method import PromptWrapper  # it imports torch

    method = method_from_spec(run.method)
    if not isinstance(method, PromptWrapper):
        return
    split = run.forget_fraction
    template = sources.template
    rows = DefenderRows.of(
        benchmark, split, run.seed, has_system_message=template.system is not None
    )
    for questions in evaluation_sets(benchmark, split, profile_of(plan.config.evaluation)).values():
        with plugin_code(f"`asked` of method {run.method.name!r}"):
            asked = method.asked(questions[0], rows)
        if asked.format == "chat":
            template.of(asked).prompt(asked.question, asked.examples)


def check_scores(plan: Plan, benchmark: Dataset) -> None:
    """Raise DataError if a method reads scores that the rows do not have."""
    from unlearnbench.api.method import Method  # it imports torch

    spec_of_text = {repr(run.method): run.method for run in plan.runs}
    for spec in spec_of_text.values():
        method = method_from_spec(spec)
        if not isinstance(method, Method):
            continue
        scored_parts = method.needed().scores
        for split in benchmark.splits.values():
            rows: list[Question] = []
            if "forget" in scored_parts:
                rows += split.forget
            if "retain" in scored_parts:
                rows += split.retain
            for row in rows:
                check_scored(row)


def check_attacks(config: SweepConfig, benchmark: Dataset) -> None:
    """Raise ConfigError for attacks that cannot be carried out.

    Such an attack leaves no row to evaluate, or trains a model whose weights are sharded.
    """
    problems: list[Problem] = []
    for spec in config.attacks:
        attack = attack_from_spec(spec)
        problem = _row_problem(config, benchmark, spec.name, attack)
        problem = problem or _sharding_problem(config, attack)
        if problem is not None:
            problems.append(Problem(config.name, f"attacks.{spec.name}", problem))
    if problems:
        raise ConfigError(problems)


def _row_problem(config: SweepConfig, benchmark: Dataset, name: str, attack: Attack) -> str | None:
    """Return the problem if an attack has too few rows to evaluate. None: no problem.

    The text is about the first split with too few rows.
    """
    for key, split in benchmark.splits.items():
        with plugin_code(f"`selects` of attack {name!r}"):
            numbers = _numbers_of_selected_rows(config, benchmark, key, attack)
        if not any(numbers.values()):
            roles = ", ".join(sorted(attack.roles))
            return (
                f"it leaves no row of the evaluation sets of role {roles} at split {split.name} "
                "(`unlearnbench attacks show` describes which rows it takes); leave it out"
            )
        single = [set_name for set_name, number in numbers.items() if number == 1]
        if single and searches(attack):
            return (
                f"a search needs two rows of {single[0]} or more, one to choose an attacker and "
                f"one to report it, and there is one at split {split.name}; evaluate more rows, or "
                "leave `search` out"
            )
    return None


def _numbers_of_selected_rows(
    config: SweepConfig, benchmark: Dataset, split: SplitKey, attack: Attack
) -> dict[str, int]:
    """Return how many rows an attack selects of each evaluation set of its roles, by set."""
    sets = evaluation_sets(benchmark, split, profile_of(config.evaluation))
    of_roles = {
        name: questions
        for name, questions in sets.items()
        if config.data.set_roles[name] in attack.roles
    }
    questions_of_roles = [question for questions in of_roles.values() for question in questions]
    rows = with_made_up_answers(attack_rows(benchmark, split), questions_of_roles)
    return {
        name: sum(attack.selects(question, rows) for question in questions)
        for name, questions in of_roles.items()
    }


def _sharding_problem(config: SweepConfig, attack: Attack) -> str | None:
    """Return the problem if an attack trains a model with sharded weights. None: no problem.

    The text is about the first such model.
    """
    if not isinstance(attack, WeightAttack) or not attack.trains:
        return None
    for model in config.models:
        resources = config.resources_of(model.name)
        if resources.world_size > 1 and resources.parallel == "fsdp":
            return (
                f"it trains, and the weights of model {model.name!r} are sharded over "
                f"{resources.world_size} processes; set resources.parallel: ddp, or one GPU for a "
                "run, or leave it out"
            )
    return None
