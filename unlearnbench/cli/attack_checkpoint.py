"""`unlearnbench attack`: what one model gives back under attacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from unlearnbench.api import registry
from unlearnbench.cli.command import argument, command, new_group, option
from unlearnbench.cli.options import (
    Json,
    ModelOptions,
    Plugins,
    ProfileChanges,
    completion,
    dotted_values,
    is_log_file,
    register_for_evaluation,
)
from unlearnbench.console import Console, progress_bar
from unlearnbench.errors import EvaluationError
from unlearnbench.files.outputs import Output

if TYPE_CHECKING:
    from unlearnbench.config.entries import AttackSpec
    from unlearnbench.evaluation.attack_checkpoint import AttackedModel

app = new_group()


@command(app, "attack", writes=[Output("out", "the evaluations", kind="folder")])
def attack(
    model: Annotated[str, argument("MODEL", "Hub id, folder, or LoRA adapter's folder.")],
    options: ModelOptions,
    changes: ProfileChanges,
    attacks: Annotated[
        list[str] | None,
        option(
            "NAME",
            "Attack, as `unlearnbench attacks list` has them (repeatable).",
            "--attack",
            default="those of --plugin files",
            autocompletion=completion("attacks"),
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        option(
            "NAME.KEY=VALUE",
            "Setting of an attack in place of its default; the value is YAML (repeatable).",
            "--set",
        ),
    ] = None,
    retain: Annotated[
        str | None,
        option(
            "MODEL",
            "The retain model, which is attacked in the same way: what it gains is the null.",
        ),
    ] = None,
    start: Annotated[
        str | None,
        option(
            "MODEL", "The model before unlearning: what there was to forget; some attacks read it."
        ),
    ] = None,
    answers: Annotated[
        int, option("N", "Print the N answers that change most under each attack.", min=0)
    ] = 0,
    out: Annotated[
        str | None,
        option("FOLDER", "Write attack.json there, and the observations of each evaluation."),
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
          --retain ./my-retain90-model --start ./my-full-model --answers 3
      unlearnbench attack ./my-model --attack relearning --set relearning.learning_rate=1e-4
      unlearnbench attack ./my-model --plugin my_attack.py --out attacked
    """
    from unlearnbench.cli.attack_report import AttackReport
    from unlearnbench.config.precision import resolve_precision
    from unlearnbench.config.profiles import get_profile
    from unlearnbench.evaluation.attack_checkpoint import attack_checkpoint
    from unlearnbench.evaluation.evaluate_model import data_settings, is_main_process
    from unlearnbench.models.loading import Source
    from unlearnbench.models.lora import check_any_model

    rules = get_profile(options.profile, **vars(changes))
    specs = _specs(attacks, settings, register_for_evaluation(plugins, rules))
    benchmark = data_settings(options.data)
    resolve_precision("cpu", options.dtype, options.precision)
    for place in filter(None, (model, retain, start)):
        if is_log_file(place):
            raise EvaluationError(f"{place} is a log, which cannot be attacked; give the model")
        check_any_model(Source(place))
    if retain and Path(retain).resolve() == Path(model).resolve():
        Console().note("warning: --retain is the model itself, so what it gains shows nothing")
    setup = options.setup(model, benchmark, rules)
    main, console = is_main_process(), Console()

    def attacked(place: str, own: Sequence[AttackSpec]) -> AttackedModel:
        def done(variant: str) -> None:
            if main:
                console.note(f"evaluated {place} under {variant}")

        with progress_bar(console, f"evaluating {place}") as progress:
            counted = progress if main else None
            return attack_checkpoint(place, own, setup, start=start, progress=counted, done=done)

    found = attacked(model, specs)
    models = {"model": found}
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
        return 0
    report.print(console)
    if answers:
        report.print_answers(console, answers)
    return 0


def _specs(
    names: Sequence[str] | None, settings: Sequence[str] | None, files: Sequence[str]
) -> tuple[AttackSpec, ...]:
    """The attacks that are named, else those of plug-in files, with their settings.

    Raises: PluginError, ConfigError, EvaluationError for wrong names and settings, and for none.
    """
    from unlearnbench.config.entries import attack_specs

    known = registry.names("attacks")
    chosen = names or [name for name in files if name in known]
    if not chosen:
        raise EvaluationError(
            f"no attack: name one or more with --attack, of {', '.join(known)}; or --plugin FILE "
            "with one of your own"
        )
    if twice := [name for name in chosen if chosen.count(name) > 1]:
        raise EvaluationError(f"--attack {twice[0]} is there twice; name each attack once")
    given = dotted_values(settings or ())
    for name, own in given.items():
        if name not in chosen:
            raise EvaluationError(
                f"--set {name}: expected NAME.KEY=VALUE with the name of an attack that is "
                f"carried out: {', '.join(chosen)}"
            )
        if isinstance(own, Mapping) and "at" in own:
            raise EvaluationError(
                f"--set {name}.at is about the epochs of a run; a model is attacked as it is"
            )
    return attack_specs({name: given.get(name, {}) for name in chosen})
