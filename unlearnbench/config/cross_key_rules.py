"""The rules of a configuration that concern several of its keys.

Each rule is a function that yields faults: the path of a key, and what is wrong with it. The rules
read a configuration in which every key is right by itself, with the training settings of entries
completed and with what `tune` sets. They are no part of `SweepConfig`, because that class also
reads stored configurations, which may name metrics that are not installed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from unlearnbench.api import registry
from unlearnbench.api.attack import Attack, WeightAttack
from unlearnbench.api.benchmark import split_name
from unlearnbench.api.metric import OBSERVATIONS
from unlearnbench.base.errors import EvaluationError, PluginError, did_you_mean
from unlearnbench.base.messages import Fault, Loc
from unlearnbench.config.entries import attack_from_spec
from unlearnbench.config.evaluation_settings import EntryEvaluation, Patience
from unlearnbench.config.method_entry import Axis
from unlearnbench.config.method_settings import Rates
from unlearnbench.config.metric_plan import benchmark_plan
from unlearnbench.config.model_settings import ModelSettings
from unlearnbench.config.precision import FLOAT16_IS_NOT_TRAINED, resolve_precision
from unlearnbench.config.profiles import profile_of
from unlearnbench.config.schema import NO_BUDGET, SweepConfig
from unlearnbench.config.search import Metric, Range, Scheduler
from unlearnbench.config.training_settings import EIGHT_BIT, ONE_PROCESS, TrainingSettings

_COUNTS_STEPS = "counts steps, and the budget of this sweep is in epochs"
_COUNTS_EPOCHS = "counts epochs, and the budget of this sweep is in steps"


def faults_across_keys(
    config: SweepConfig, modifiers: Mapping[str, Mapping[str, Axis]]
) -> Iterator[Fault]:
    """Yield the faults of all rules.

    Args:
        config: The configuration.
        modifiers: Stated settings of the sweep's modifiers, by modifier.
    """
    yield from _one_unit_of_budget(config)
    yield from _entries_of_one_method_agree(config)
    yield from _no_ranges_in_a_grid(config, modifiers)
    yield from _no_eight_bit_optimizer_with_several_processes(config)
    yield from _metrics_can_be_reported(config)
    yield from _search_can_run(config)
    yield from _precision_is_allowed(config)
    yield from _float16_is_not_trained(config)
    yield from _attacks_have_their_texts(config)
    yield from _requests_can_follow_each_other(config)


def _one_unit_of_budget(config: SweepConfig) -> Iterator[Fault]:
    """Refuse two budgets, and evaluations or a patience in another unit than the budget.

    In a sweep by steps, a key in epochs is refused only if the configuration states it.
    """
    evaluation = config.evaluation
    patience = evaluation.patience
    if config.steps is None:
        if config.epochs is None:
            yield Fault(("epochs",), NO_BUDGET)
        if evaluation.every_steps is not None:
            fix = "state steps in place of epochs, or evaluation.every in place of this"
            yield Fault(("evaluation", "every_steps"), f"{_COUNTS_STEPS}; {fix}")
        if patience is not None and patience.steps is not None:
            fix = "state the patience in epochs"
            yield Fault(("evaluation", "patience", "steps"), f"{_COUNTS_STEPS}; {fix}")
        return

    # The defaults are in epochs, so a key counts as stated only if it is in the fields set.
    if "epochs" in config.model_fields_set and config.epochs is not None:
        text = "epochs are stated as well, and a run has one budget"
        fix = "leave one of the two out (null, where another file has it)"
        yield Fault(("steps",), f"{text}; {fix}")
    if "every" in evaluation.model_fields_set and evaluation.every is not None:
        fix = "state evaluation.every_steps in place of this (null, where another file has it)"
        yield Fault(("evaluation", "every"), f"{_COUNTS_EPOCHS}; {fix}")
    if patience is not None and patience.epochs is not None:
        fix = "state the patience in steps"
        yield Fault(("evaluation", "patience", "epochs"), f"{_COUNTS_EPOCHS}; {fix}")


def _entries_of_one_method_agree(config: SweepConfig) -> Iterator[Fault]:
    """Refuse entries of one method with other training settings, or other moments of evaluation."""
    first_entry: dict[str, int] = {}
    for index, grid in enumerate(config.methods):
        name = grid.specs[0].name
        first = first_entry.setdefault(name, index)
        other = config.methods[first]
        if (grid.training or config.training) != (other.training or config.training):
            yield Fault(
                ("methods", index, "training"),
                f"{name} has other training settings in methods.{first}, and tables would mix "
                "the two; give all entries of a method the same, or another sweep",
            )
        if grid.evaluation != other.evaluation:
            yield Fault(
                ("methods", index, "evaluation"),
                f"{name} is evaluated at other times in methods.{first}; give all entries of a "
                "method the same",
            )
        if grid.evaluation is not None:
            yield from _evaluation_of_entry(config, index, grid.evaluation)


def _evaluation_of_entry(
    config: SweepConfig, index: int, evaluation: EntryEvaluation
) -> Iterator[Fault]:
    """Refuse moments of an entry in another unit, or if all methods need the same moments."""
    place: Loc = ("methods", index, "evaluation")
    if config.steps is None and evaluation.every_steps is not None:
        yield Fault((*place, "every_steps"), f"{_COUNTS_STEPS}; write every")
    if config.steps is not None and evaluation.every is not None:
        fix = "write every_steps (if another file has it, state methods in yours)"
        yield Fault((*place, "every"), f"{_COUNTS_EPOCHS}; {fix}")
    if config.epochs_as == "runs":
        text = "epochs_as: runs makes a run of each evaluation, for all methods alike"
        yield Fault(place, f"{text}; leave this out, or epochs_as")
    if config.search.scheduler is not None:
        text = "search.scheduler compares runs at the same evaluations"
        yield Fault(place, f"{text}; leave this out, or the scheduler")


def _no_ranges_in_a_grid(
    config: SweepConfig, modifiers: Mapping[str, Mapping[str, Axis]]
) -> Iterator[Fault]:
    """Refuse ranges in a grid, which draws nothing."""
    if config.search.kind != "grid":
        return
    axes: dict[Loc, Axis | Rates | None] = {("learning_rates",): config.learning_rates}
    for index, grid in enumerate(config.methods):
        axes["methods", index, "learning_rates"] = grid.learning_rates
        for key, spanned in grid.ranges.items():
            axes["methods", index, *key.split(".")] = spanned
    for name, settings in modifiers.items():
        for key, axis in settings.items():
            axes["modifiers", name, key] = axis
    for loc, values in axes.items():
        if isinstance(values, Range):
            yield Fault(
                loc,
                "only a search draws from a range, and this is a grid; write a list such as "
                f"[{values.low:g}, {values.high:g}], or add search: {{kind: random, "
                "trials: 20}",
            )


def _no_eight_bit_optimizer_with_several_processes(config: SweepConfig) -> Iterator[Fault]:
    """Refuse 8-bit optimisers for runs that have several processes."""
    trainings: dict[Loc, TrainingSettings | None] = {("training",): config.training}
    for index, grid in enumerate(config.methods):
        trainings["methods", index, "training"] = grid.training
    for model in config.models:
        processes = config.resources_of(model.name).world_size
        if processes <= 1:
            continue
        for loc, training in trainings.items():
            if training is not None and training.optimizer in EIGHT_BIT:
                yield Fault(
                    (*loc, "optimizer"),
                    f"{training.optimizer} works in one process, and a run of {model.name} has "
                    f"{processes}: {ONE_PROCESS}",
                )


def _metrics_can_be_reported(config: SweepConfig) -> Iterator[Fault]:
    """Refuse chosen metrics that this benchmark cannot report, or that need unsharded weights."""
    sharded = _sharded_models(config)
    profile = profile_of(config.evaluation)
    for name, settings in config.evaluation.metrics.items():
        loc = ("evaluation", "metrics", name)
        try:
            plan = benchmark_plan(profile, config.data, {name: settings}, config.references)
        except PluginError as error:
            yield Fault(loc, str(error))
            continue
        with_all_references = benchmark_plan(profile, config.data, {name: settings})
        if name in with_all_references.summaries and name not in plan.summaries:
            yield Fault(
                loc,
                "it compares with the retain model, which these models do not have; leave the "
                "metric out, or give each model a base",
            )
        needs_whole_weights = any(OBSERVATIONS[name].needs_whole_weights for name in plan.extra)
        if needs_whole_weights and sharded:
            text = f"needs whole weights in each process, and runs of {sharded[0]} shard theirs"
            fix = "set resources.parallel: ddp, or leave the metric out"
            yield Fault(loc, f"{text}; {fix}")


def _sharded_models(config: SweepConfig) -> list[str]:
    """List the models whose weights are sharded over processes."""
    sharded: list[str] = []
    for model in config.models:
        resources = config.resources_of(model.name)
        if resources.world_size > 1 and resources.parallel == "fsdp":
            sharded.append(model.name)
    return sharded


def _search_can_run(config: SweepConfig) -> Iterator[Fault]:
    """Refuse a search without its package, unknown metrics, and early ends that cannot happen."""
    search = config.search
    if search.kind == "optuna" and find_spec("optuna") is None:
        fix = "pip install 'unlearnbench[search]', or take kind random"
        yield Fault(("search", "kind"), f"optuna is not installed; {fix}")
    if search.metric is not None:
        yield from _metric_is_known(config, search.metric, ("search", "metric"))
    rules_of_early_end: dict[Loc, Scheduler | Patience | None] = {
        ("search", "scheduler"): search.scheduler,
        ("evaluation", "patience"): config.evaluation.patience,
    }
    for loc, rule in rules_of_early_end.items():
        if rule is None:
            continue
        yield from _metric_is_known(config, rule.metric, (*loc, "metric"))
        if config.epochs_as == "runs":
            text = "with epochs_as: runs, a run is evaluated only at its end"
            yield Fault(loc, f"{text}, so none can end early; set epochs_as: checkpoints")


def _metric_is_known(config: SweepConfig, metric: Metric, loc: Loc) -> Iterator[Fault]:
    """Refuse a column, or a weighted sum of columns, that the table will not have."""
    try:
        profile = profile_of(config.evaluation)
        plan = benchmark_plan(profile, config.data, config.evaluation.metrics, config.references)
    except PluginError:
        return  # a fault of a chosen metric, which another rule reports
    known = [column.name for column in plan.columns]
    for name in [metric] if isinstance(metric, str) else metric:
        if name not in known:
            near = did_you_mean(name, known) or ";"
            yield Fault(loc, f"unknown metric {name!r}{near} known: {', '.join(known)}")


def _precision_is_allowed(config: SweepConfig) -> Iterator[Fault]:
    """Refuse an evaluation precision that a model does not allow."""
    for index, model in enumerate(config.models):
        try:
            resolve_precision("cpu", model.dtype, config.evaluation.precision)
        except EvaluationError as error:
            yield Fault(("evaluation", "precision"), f"models.{index}: {error}")


def _float16_is_not_trained(config: SweepConfig) -> Iterator[Fault]:
    """Refuse weights of float16 that something would train."""
    for index, model in enumerate(config.models):
        if model.dtype != "float16":
            continue
        reasons = [*_trainings_of_weights(config, model), *_trainings_by_attacks(config)]
        if reasons:
            yield Fault(("models", index, "dtype"), f"{reasons[0]}: {FLOAT16_IS_NOT_TRAINED}")


def _trainings_of_weights(config: SweepConfig, model: ModelSettings) -> Iterator[str]:
    """Yield a sentence for each training of a model's weights, except of adapters in float16."""
    if model.fine_tuned is None:
        yield "the start model is trained here"
    retain_models = {split_name("retain", key) for key in config.split_keys}
    if "retain" in config.references and not retain_models <= {*model.retain}:
        yield "the retain model is trained here"
    for grid in config.methods:
        training = grid.training or config.training
        trains_adapters = model.lora is not None and training.precision == "fp16"
        name = grid.specs[0].name
        if registry.trains(name) and not trains_adapters:
            yield f"{name} trains this model"


def _trainings_by_attacks(config: SweepConfig) -> Iterator[str]:
    """Yield a sentence for each attack that trains weights, except of adapters in float16."""
    for spec in config.attacks:
        attack: type[Attack] = registry.load("attacks", spec.name)
        if not issubclass(attack, WeightAttack) or not attack.trains:
            continue
        attackers = attack_from_spec(spec).attackers().values()
        only_adapters = all(getattr(attacker, "lora_rank", None) for attacker in attackers)
        trains_adapters = only_adapters and config.training.precision == "fp16"
        if not trains_adapters:
            yield f"the attack {spec.name} trains this model (with lora_rank, adapters)"


def _attacks_have_their_texts(config: SweepConfig) -> Iterator[Fault]:
    """Refuse attacks that read answers, if the sweep keeps no texts."""
    if config.keep_texts:
        return
    for spec in config.attacks:
        if registry.load("attacks", spec.name).reads_answers:
            yield Fault(
                ("attacks", spec.name),
                "reads the model's own answers, and keep_texts: false keeps none of them; "
                "leave the attack out",
            )


def _requests_can_follow_each_other(config: SweepConfig) -> Iterator[Fault]:
    """Refuse a search, untrained methods, and sharded weights, if requests run in sequence."""
    if config.requests == "apart":
        return
    loc: Loc = ("requests",)
    if config.search.kind != "grid" or config.select is not None:
        text = "in-sequence takes a grid; leave search, select and tune out, or take apart"
        yield Fault(loc, text)
    for grid in config.methods:
        name = grid.specs[0].name
        if not registry.trains(name):
            yield Fault(loc, f"{name} trains nothing that the next request could go on from")
    if _sharded_models(config):
        text = "in-sequence needs whole weights in a process; set resources.parallel: ddp"
        yield Fault(loc, text)
