"""Attacks on the rows, templates and processes of a plan, before anything is trained."""

from collections.abc import Iterator
from contextlib import suppress

from unlearnbench.api.attack import Attack, AttackRows, WeightAttack
from unlearnbench.api.benchmark import Dataset, Question
from unlearnbench.api.plugin_code import plugin_code
from unlearnbench.base.errors import ConfigError, ModelError, Problem
from unlearnbench.config.entries import attack_from_spec
from unlearnbench.config.profiles import profile_of
from unlearnbench.config.schema import SweepConfig
from unlearnbench.evaluation.sets import evaluation_sets
from unlearnbench.models.encoding import TEMPLATES, TEXT, Template
from unlearnbench.models.loading import (
    Source,
    UnreachableError,
    load_tokenizer,
    template_of,
)
from unlearnbench.runs.under_attack import attack_rows


def check_attacks(config: SweepConfig, benchmark: Dataset) -> None:
    """Raise ConfigError for attacks that leave no row, or that a model's template cannot render,
    or whose training its processes do not allow.

    Reads tokenizers; where the hub cannot be reached, runs find the latter themselves.
    """
    problems: dict[str, Problem] = {}
    templates = dict(_templates(config))
    for spec in config.attacks:
        attack = attack_from_spec(spec)
        for split in benchmark.splits:
            with plugin_code(f"`selects` or `asked` of attack {spec.name!r}"):
                prompts = [*_prompts(config, benchmark, split, attack)]
            reason = "" if prompts else _without_rows(attack, benchmark.splits[split].name)
            for name, template in templates.items():
                reason = reason or _not_rendered(name, template, prompts)
            reason = reason or _sharded(config, attack)
            if reason:
                location = f"attacks.{spec.name}"
                problems.setdefault(location, Problem(config.name, location, reason))
    if problems:
        raise ConfigError([*problems.values()])


def _without_rows(attack: Attack, split: str) -> str:
    roles = ", ".join(sorted(attack.roles))
    return (
        f"it leaves no row of the evaluation sets of role {roles} at split {split} "
        f"(`unlearnbench attacks show` describes which rows it takes); leave it out"
    )


def _not_rendered(model: str, template: Template, prompts: list[Question]) -> str:
    """The reason why a model's template renders none of the prompts; empty if it does."""
    for row in prompts:
        part = TEXT if row.format == "text" else template
        try:
            part.of(row).prompt(row.question, row.examples)
        except ModelError as error:
            return f"models.{model}: {error}"
    return ""


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


def _prompts(
    config: SweepConfig, benchmark: Dataset, split: float | str, attack: Attack
) -> Iterator[Question]:
    """The first row that the attack selects, as it is asked at each point."""
    sets = evaluation_sets(benchmark, split, profile_of(config.evaluation))
    result = [
        q for name, part in sets.items() if config.data.roles[name] in attack.roles for q in part
    ]
    made = attack_rows(benchmark, split)
    # No model has answered yet.
    answers = {row.question: "An answer." for row in result}
    rows = AttackRows(made.forget, made.retain, made.subject_rows, answers)
    first = next((row for row in result if attack.selects(row, rows)), None)
    if first is not None:
        yield from (attack.asked(first, point, rows) for point in attack.points())


def _templates(config: SweepConfig) -> Iterator[tuple[str, Template]]:
    """The template of each model, by the model's name, as far as it can be read."""
    for model in config.models:
        name = model.template
        if model.base == "tiny":  # its tokenizer is made here, without a chat template
            name = "plain" if name == "auto" else name
        if name in TEMPLATES:
            yield model.name, TEMPLATES[name]
        elif model.base != "tiny":
            with suppress(UnreachableError):
                tokenizer = load_tokenizer(Source.parse(model.base, model.revision), model)
                yield model.name, template_of(model, tokenizer)
