"""`unlearnbench attack`: what one model gives back under attacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from unlearnbench.api import registry
from unlearnbench.base.console import Console, progress_bar
from unlearnbench.base.errors import EvaluationError
from unlearnbench.base.outputs import check_folder
from unlearnbench.cli.command import argument, command, new_group, option
from unlearnbench.cli.options import (
    Json,
    ModelOptions,
    Plugins,
    ProfileChanges,
    dotted_values,
    is_log_file,
    register_for_evaluation,
)

if TYPE_CHECKING:
    from unlearnbench.config.entries import AttackSpec
    from unlearnbench.runs.evaluate_model import AttackedModel

app = new_group()


@command(app, "attack")
def attack(
    model: Annotated[str, argument("MODEL", "Hub id, folder, or LoRA adapter's folder.")],
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
        str | None, option("MODEL", "The retain model; what it gains under attack is the null.")
    ] = None,
    start: Annotated[
        str | None, option("MODEL", "The model before unlearning, which some attacks read.")
    ] = None,
    out: Annotated[
        str | None, option("FOLDER", "Write attack.json and all observations there.")
    ] = None,
    plugins: Plugins = None,
    as_json: Json = False,
) -> int:
    r"""Attack a model: does it give back what it is said to have forgotten?

    The model is evaluated as it is, and under each attack; its files are not changed. A gain means
    little by itself: some attacks teach. Give the retain model, too, which shows how much they do.

    Examples:
      unlearnbench attack ./my-model --attack paraphrase --data ~/tofu
      unlearnbench attack ./my-model --attack relearning --attack quantization \
          --retain ./my-retain90-model --start ./my-full-model
      unlearnbench attack ./my-model --attack relearning --set relearning.learning_rate=1e-4
      unlearnbench attack ./my-model --plugin my_attack.py --out attacked
    """
    from unlearnbench.base.distributed import is_main_process
    from unlearnbench.cli.attack_report import AttackReport
    from unlearnbench.config.precision import resolve_precision
    from unlearnbench.config.profiles import get_profile
    from unlearnbench.models.loading import Source
    from unlearnbench.models.lora import check_any_model
    from unlearnbench.runs.evaluate_model import (
        attack_checkpoint,
        data_settings,
    )

    if out:
        check_folder(out, "the evaluations")
    rules = get_profile(options.profile, **vars(changes))
    specs = _specs(attacks, settings, register_for_evaluation(plugins, rules))
    benchmark = data_settings(options.data)
    resolve_precision("cpu", options.dtype, options.precision)
    for source in filter(None, (model, retain, start)):
        if is_log_file(source):
            raise EvaluationError(f"{source} is a log, which cannot be attacked; give the model")
        check_any_model(Source(source))
    setup = options.setup(model, benchmark, rules)
    main, console = is_main_process(), Console()

    def attacked(source: str, specs: Sequence[AttackSpec]) -> AttackedModel:
        def done(variant: str) -> None:
            if main:
                console.note(f"evaluated {source} under {variant}")

        with progress_bar(console, f"evaluating {source}") as progress:
            counted = progress if main else None
            return attack_checkpoint(source, specs, setup, start=start, progress=counted, done=done)

    models = {"model": attacked(model, specs)}
    if retain:
        models["retain"] = attacked(retain, specs)
    if start:
        models["start"] = attacked(start, ())
    if not main:
        return 0
    report = AttackReport.of(models, specs, rules, benchmark)
    if out:
        report.write(Path(out))
        console.note(f"attack.json and observations: {out}")
    if as_json:
        console.print_json(report.document())
    else:
        report.print(console)
    return 0


def _specs(
    names: Sequence[str] | None, settings: Sequence[str] | None, files: Sequence[str]
) -> tuple[AttackSpec, ...]:
    """The attacks that are named, else those of plug-in files, with their settings.

    Raises: PluginError, ConfigError, EvaluationError for wrong names and settings, and for none.
    """
    from unlearnbench.config.entries import attack_specs

    known = registry.names("attacks")
    chosen = dict.fromkeys(names or [name for name in files if name in known])
    if not chosen:
        raise EvaluationError(
            f"no attack: name one or more with --attack, of {', '.join(known)}; or --plugin FILE "
            "with one of your own"
        )
    given = dotted_values(settings or ())
    for name, values in given.items():
        if name not in chosen:
            raise EvaluationError(
                f"--set {name}: expected NAME.KEY=VALUE with the name of an attack that is "
                f"carried out: {', '.join(chosen)}"
            )
        if isinstance(values, Mapping) and "at" in values:
            raise EvaluationError(
                f"--set {name}.at is about the epochs of a run; a model is attacked as it is"
            )
    return attack_specs({name: given.get(name, {}) for name in chosen})
