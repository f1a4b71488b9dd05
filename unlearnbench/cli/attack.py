"""`unlearnbench attack`: whether a model gives back what it is said to have forgotten."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from unlearnbench.api import registry
from unlearnbench.base.console import Console
from unlearnbench.base.errors import EvaluationError
from unlearnbench.base.garbage_collection import import_torch
from unlearnbench.base.outputs import check_folder
from unlearnbench.cli.command import command, new_group, option
from unlearnbench.cli.options import (
    DEFAULT_PROFILE,
    Json,
    Model,
    ModelOptions,
    Plugins,
    ProfileChanges,
    dotted_values,
    register_for_evaluation,
)
from unlearnbench.cli.own_data import RowOptions

if TYPE_CHECKING:
    from unlearnbench.api.observations import Evaluation
    from unlearnbench.config.entries import AttackSpec
    from unlearnbench.results.single import ModelRole

app = new_group()


@command(app, "attack")
def attack(
    model: Model,
    own: RowOptions,
    options: ModelOptions,
    changes: ProfileChanges,
    attacks: Annotated[
        list[str] | None,
        option("NAME", "An attack (repeatable).", "--attack", default="those of --plugin files"),
    ] = None,
    settings: Annotated[
        list[str] | None, option("NAME.KEY=VALUE", "Setting of an attack (repeatable).", "--set")
    ] = None,
    retain: Annotated[
        str | None, option("MODEL", "The retain model. What it gains itself does not count.")
    ] = None,
    start: Annotated[
        str | None,
        option("MODEL", "The model before unlearning: it tells what was removed and is kept."),
    ] = None,
    out: Annotated[
        str | None, option("FOLDER", "Write attack.json and all observations there.")
    ] = None,
    plugins: Plugins = None,
    as_json: Json = False,
) -> int:
    r"""Attack a model: does it give back what it is said to have forgotten?

    The model is evaluated without an attack and under each attack. Its files are not changed. A
    gain alone means little, because some attacks teach the model. The retain model shows how much
    an attack teaches, and the start model shows how much there was to forget. If one of these two
    models is missing, nothing is scored.

    Examples:
      unlearnbench attack ./my-model --attack paraphrase --data ~/tofu
      unlearnbench attack ./my-model --attack relearning --attack quantization \
          --retain ./my-retain90-model --start ./my-start-model
      unlearnbench attack ./my-model --forget-rows forget.jsonl \
          --retain-rows retain.jsonl --start ./my-start-model \
          --attack relearning --set relearning.learning_rate=1e-4
      unlearnbench attack ./my-model --plugin my_attack.py --out attacked
    """
    import_torch()
    from unlearnbench.base.atomic import write_text
    from unlearnbench.base.deferred_warnings import drain
    from unlearnbench.cli.attack_verdict import AttackedModel, attack_document, print_attacks
    from unlearnbench.cli.evaluated_models import evaluate_models, results_of, sources_of
    from unlearnbench.config.profiles import get_profile
    from unlearnbench.results.single import PLAIN, ModelRole
    from unlearnbench.runs.evaluate_model import data_settings

    if out:
        check_folder(out, "the evaluations")
    options = options.with_rows(own)
    rules = get_profile(options.profile or DEFAULT_PROFILE, **vars(changes))
    specs = _attack_specs(attacks, settings, register_for_evaluation(plugins, rules))
    benchmark = data_settings(options.data)
    sources = sources_of(model, retain, start)
    # Each evaluation is written at once, because a later attack may fail after hours.
    keep = partial(_write_evaluation, Path(out)) if out else None
    models = evaluate_models(sources, specs, options, benchmark, rules, keep=keep)
    if models is None:
        return 0

    console = Console()
    results = results_of(models, options.forget, benchmark, specs)
    attacked = [AttackedModel(results, spec) for spec in specs]
    document = attack_document(results, attacked)
    if out:
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
        write_text(Path(out, "attack.json"), f"{text}\n")
        console.note(f"attack.json and observations: {out}")
    if as_json:
        console.print_json(document)
    else:
        evaluation = models[ModelRole.MODEL][PLAIN]
        print_attacks(evaluation, attacked, document, benchmark.headline.kept, console)
    for warning in filter(None, (*drain(), *results.table.notes)):
        console.note(f"warning: {warning}")
    return 0


def _attack_specs(
    names: Sequence[str] | None, settings: Sequence[str] | None, plugins: Sequence[str]
) -> tuple[AttackSpec, ...]:
    """Return the attacks to carry out, with their settings.

    Args:
        names: Of attacks. None or empty means those of plug-in files.
        settings: As they were typed: `relearning.learning_rate=1e-4`.
        plugins: Names of the plug-ins that files have registered, of any kind.

    Raises:
        PluginError: If there is no attack of a name.
        UnlearnbenchError: If a setting is wrong.
        EvaluationError: If there is no attack, or if settings belong to no attack.
    """
    from unlearnbench.config.entries import attack_specs

    known = registry.names("attacks")
    from_files = [name for name in plugins if name in known]
    # An attack that is named twice is carried out once.
    chosen = list(dict.fromkeys(names or from_files))
    if not chosen:
        raise EvaluationError(
            f"no attack: name one or more with --attack, of {', '.join(known)}; or --plugin FILE "
            "with one of your own"
        )
    settings_of_attack = dotted_values(settings or (), "NAME.KEY=VALUE")
    for name in settings_of_attack.keys() - set(chosen):
        raise EvaluationError(
            f"--set {name}: expected NAME.KEY=VALUE with the name of an attack that is "
            f"carried out: {', '.join(chosen)}"
        )
    return attack_specs({name: settings_of_attack.get(name, {}) for name in chosen})


def _write_evaluation(folder: Path, role: ModelRole, variant: str, evaluation: Evaluation) -> None:
    """Write the observations of an evaluation.

    Args:
        folder: Folder of the model. Other models have folders of their own in it.
        role: Role of the model that was evaluated.
        variant: Name of the evaluation. It is empty without an attack.
        evaluation: The evaluation.
    """
    from unlearnbench.evaluation.observation_file import SUFFIX, write_observations
    from unlearnbench.results.single import ModelRole

    target = folder if role == ModelRole.MODEL else folder / role
    write_observations(evaluation, target / f"{variant or 'plain'}{SUFFIX}")
