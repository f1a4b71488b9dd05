"""Options and arguments that several commands have, and functions that read their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unlearnbench.api import registry
from unlearnbench.api.profile import QuestionKey
from unlearnbench.base.errors import EvaluationError, RecordError, UnlearnbenchError
from unlearnbench.cli.command import argument, flag, option
from unlearnbench.cli.own_data import ALL, RowOptions
from unlearnbench.config.precision import Attention, Dtype, Precision, Template

if TYPE_CHECKING:
    from unlearnbench.api.benchmark import Benchmark, SplitKey
    from unlearnbench.api.profile import Profile
    from unlearnbench.config.metric_plan import MetricChoices
    from unlearnbench.runs.evaluate_model import EvaluationSetup


def split_key(text: str | float) -> SplitKey:
    """Parse a fraction to forget, such as `0.05`, or the name of a split.

    Raises:
        typer.BadParameter: If the text is neither.
    """
    from unlearnbench.api.benchmark import is_split_name

    if isinstance(text, str) and is_split_name(text):
        return text
    try:
        return float(text)
    except ValueError:
        rule = f"{text} is neither a fraction nor the name of a split"
        raise typer.BadParameter(rule) from None


def row_count(text: str | int) -> int:
    """Parse a number of rows.

    Raises:
        typer.BadParameter: If the text is no number, or less than 1.
    """
    number = str(text).strip()
    if number.isdecimal() and int(number) > 0:
        return int(number)
    rule = f"{text} is no number of rows; give 1 or more"
    if not number.lstrip("+-").isdecimal():
        # `configs new` names a table with this option.
        rule += " (`evaluate` and `attack` take a table with all rows as --marked-rows)"
    raise typer.BadParameter(rule)


Model = Annotated[str, argument("MODEL", "Hub id, folder, or LoRA adapter's folder.")]
Config = Annotated[str, argument("CONFIG", "YAML file, or a shipped config's name.")]
Overrides = Annotated[
    list[str] | None,
    option("KEY=VALUE", "Override a key by its dotted path (repeatable).", "--set"),
]
Plugins = Annotated[
    list[str] | None, option("FILE", "Python file that defines a plug-in (repeatable).", "--plugin")
]
Json = Annotated[bool, flag("--json", "Print JSON, for a program.")]
Wide = Annotated[bool, flag("--wide", "Print all columns, each entry on one line.")]
Folder = Annotated[str, argument("FOLDER", "A sweep's folder, such as runs/quickstart.")]
DATA = "`tofu` (from the hub), a folder of its files, or NAME[=FOLDER]."
DEFAULT_DATA = "tofu"
DEFAULT_SPLIT = 0.1
DEFAULT_PROFILE = "tofu"
Data = Annotated[str, option("DATA", DATA)]
BatchTokens = Annotated[
    int | None, option("N", "Tokens of a forward pass; use fewer if memory is short.", min=1)
]

AttentionOption = Annotated[
    Attention,
    typer.Option(help="Attention implementation. With sdpa, models without SDPA use eager."),
]
RemoteCode = Annotated[
    bool, flag("--trust-remote-code", "Run Python code that comes with the model.")
]


@dataclass(frozen=True)
class ProfileChanges:
    """Options that replace rules of the profile. None leaves a rule as it is."""

    rows: Annotated[
        Any,  # a number, or None; Typer takes no union
        option("N", "Evaluate only the first N rows of each set.", parser=row_count),
    ] = None
    max_length: Annotated[
        int | None, option("N", "Most tokens of prompt and answer together.", min=1)
    ] = None
    question_key: Annotated[
        QuestionKey | None, typer.Option(help="Question column of forget and retain sets.")
    ] = None


@dataclass(frozen=True)
class ModelOptions:
    """Options on how a model is read and evaluated."""

    tokenizer: Annotated[str | None, option("MODEL", "Tokenizer for a MODEL that has none.")] = None
    data: Annotated[
        Any,  # `str | Benchmark`: a text, until `with_rows` replaces it by a benchmark
        option("DATA", DATA, parser=str, default=DEFAULT_DATA),
    ] = None
    forget: Annotated[
        Any,  # `SplitKey`; Typer takes no union
        option(
            "SPLIT",
            "Fraction to forget, such as 0.05, or a split's name.",
            parser=split_key,
            default=f"{DEFAULT_SPLIT}, or all with rows of your own",
        ),
    ] = None
    template: Annotated[Template, typer.Option(help="How question and answer become text.")] = (
        "auto"
    )
    template_arg: Annotated[
        list[str] | None, option("KEY=VALUE", "Variable of the chat template (repeatable).")
    ] = None
    dtype: Annotated[Dtype, typer.Option(help="Type of the weights.")] = "float32"
    attention: AttentionOption = "sdpa"
    trust_remote_code: RemoteCode = False
    adapter_base: Annotated[
        str | None, option("MODEL", "Base of LoRA adapters, in place of the one that they name.")
    ] = None
    precision: Annotated[
        Precision | None,
        typer.Option(
            help="Precision of the evaluation.", show_default="bf16 on a GPU, else the weights' own"
        ),
    ] = None
    batch_tokens: BatchTokens = None
    profile: Annotated[
        str | None,
        option(
            "NAME",
            "Evaluation rules.",
            default=f"{DEFAULT_PROFILE}, or unlearnbench with rows of your own",
        ),
    ] = None

    def with_rows(self, rows: RowOptions) -> ModelOptions:
        """Return the options with values for those that were not given: data, split and profile.

        Args:
            rows: Rows of the user's own. If they are given, the defaults are theirs.

        Raises:
            EvaluationError: If there are rows and `--data` as well.
            DataError: If a table or column is missing.
        """
        data: str | Benchmark = DEFAULT_DATA
        split: SplitKey = DEFAULT_SPLIT
        profile = DEFAULT_PROFILE
        if rows.is_given:
            if self.data is not None:
                given = "--forget-rows and --retain-rows"
                if rows.marked_rows is not None:
                    given = f"{rows.marked_option} and --forget-if"
                raise EvaluationError(
                    f"--data: rows of your own are given with {given}; leave out the one or the "
                    "others"
                )
            benchmark = rows.benchmark()
            data = benchmark
            split = ALL
            profile = benchmark.default_profile
        return replace(
            self,
            data=data if self.data is None else self.data,
            forget=split if self.forget is None else self.forget,
            profile=profile if self.profile is None else self.profile,
        )

    def setup(
        self,
        model: str,
        benchmark: Benchmark,
        profile: Profile,
        metrics: MetricChoices | None = None,
    ) -> EvaluationSetup:
        """Load the rows of a benchmark, and the tokenizer of a model.

        Args:
            model: Folder or hub id.
            benchmark: Whose rows are loaded.
            profile: Rules of the evaluation.
            metrics: Metrics in addition to the usual ones, with their settings.
        """
        from unlearnbench.runs.evaluate_model import set_up

        values: dict[str, Any] = {**vars(self), "data": benchmark, "profile": profile}
        values["metrics"] = metrics or {}
        values["template_args"] = template_arguments(values.pop("template_arg"))
        return set_up(model, **values)


@dataclass(frozen=True)
class MetricOptions:
    """Options on metrics that are computed in addition to the usual ones."""

    names: Annotated[
        list[str] | None,
        option("NAME", "Metric in addition to the usual ones (repeatable).", "--metric"),
    ] = None
    settings: Annotated[
        list[str] | None,
        option("NAME.KEY=VALUE", "Setting of such a metric (repeatable).", "--set"),
    ] = None

    def choices(self) -> MetricChoices:
        """Return the metrics and their settings. Plug-ins must be registered before.

        Raises:
            PluginError: If there is no metric of a name, or a setting is wrong.
            EvaluationError: If settings belong to no metric that is named.
        """
        from unlearnbench.config.entries import metric_choices

        settings_of_metric = dotted_values(self.settings or (), "NAME.KEY=VALUE")
        named = dict.fromkeys(self.names or ())
        for name in settings_of_metric.keys() - named.keys():
            raise EvaluationError(
                f"--set {name}: expected NAME.KEY=VALUE with the name of a metric that --metric "
                f"names; add --metric {name}, or leave the setting out"
            )
        return metric_choices({name: settings_of_metric.get(name, {}) for name in named})


def template_arguments(texts: Sequence[str] | None) -> dict[str, str | bool]:
    """Return the variables that `--template-arg KEY=VALUE` sets.

    The texts `true` and `false` become truth values, as in YAML.

    Raises:
        typer.BadParameter: If a text has another form.
    """
    truth_values = {"true": True, "false": False}
    values: dict[str, str | bool] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not key or not equals:
            rule = f"expected KEY=VALUE, got {text!r}"
            raise typer.BadParameter(rule, param_hint="'--template-arg'")
        values[key] = truth_values.get(value, value)
    return values


def register_plugins(files: Sequence[str] | None) -> list[str]:
    """Register the plug-ins of `--plugin` files, and return their names."""
    return [registry.register_file(file) for file in files or ()]


def register_for_evaluation(files: Sequence[str] | None, profile: Profile) -> list[str]:
    """Register the plug-ins of `--plugin` files, and return their names.

    The profile's metrics are tried, so that a broken metric is an error before any work.
    """
    from unlearnbench.evaluation.metric_trial import try_metrics
    from unlearnbench.evaluation.summary import plan_of

    names = register_plugins(files)
    if names:
        try_metrics(plan_of(profile))
    return names


def dotted_values(texts: Sequence[str], form: str) -> dict[str, Any]:
    """Return the values that `--set` sets for a plug-in, as nested sections.

    `relearning.steps=[1, 3]` becomes `{"relearning": {"steps": (1, 3)}}`.

    Args:
        texts: The texts after `--set`.
        form: Their form, for a message: `KEY=VALUE`.

    Raises:
        UnlearnbenchError: If a text has no `=`, or its value is no YAML. It has a line for each.
    """
    from unlearnbench.config.stored_values import with_tuples
    from unlearnbench.config.yaml_document import COMMAND_LINE, Document

    document = Document({}, {(): COMMAND_LINE})
    for text in texts:
        document.override(text, form)
    if document.problems:
        lines = [f"--set {problem.key}: {problem.message}" for problem in document.problems]
        raise UnlearnbenchError("\n".join(lines))
    values: dict[str, Any] = with_tuples(document.values)
    return values


def sweep_folder(name: str) -> Path:
    """Return the folder of a sweep.

    Raises:
        RecordError: If it has no records.
    """
    folder = Path(name)
    if not (folder / "records").is_dir():
        raise RecordError(
            f"{name} is not a sweep folder: it has no records/; name the one that your sweep "
            "wrote (output/name), such as runs/mine"
        )
    return folder


def named_in(text: str, folder: str) -> tuple[Path, str]:
    """Return a sweep's folder, and the name of something in it.

    Args:
        text: `FOLDER:NAME`, or only a name.
        folder: The sweep's folder if the text has none.

    Raises:
        RecordError: If there is no sweep in the folder.
    """
    own_folder, colon, name = text.partition(":")
    # A setting's label may contain a colon, too.
    if colon and ("/" in own_folder or Path(own_folder).is_dir()):
        return sweep_folder(own_folder), name
    return sweep_folder(folder), text


def is_log_file(source: str) -> bool:
    """Whether a model is given by its evaluation log."""
    from unlearnbench.models.named_models import is_log

    return is_log(source) or Path(source).is_file()
