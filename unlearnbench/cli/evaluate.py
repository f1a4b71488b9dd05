"""`unlearnbench evaluate`, `attack` and `score`: the verdict on one model, or on its log."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from unlearnbench.api import registry
from unlearnbench.base.console import Console, progress_bar
from unlearnbench.base.errors import EvaluationError
from unlearnbench.base.hashing import json_ready
from unlearnbench.base.outputs import check_file, check_folder
from unlearnbench.cli.command import argument, command, new_group, option
from unlearnbench.cli.options import (
    DEFAULT_PROFILE,
    Data,
    Json,
    ModelOptions,
    Plugins,
    ProfileChanges,
    dotted_values,
    is_log_file,
    register_for_evaluation,
)
from unlearnbench.cli.own_data import RowOptions

if TYPE_CHECKING:
    from unlearnbench.analysis.lasting import AttackedSetting
    from unlearnbench.analysis.results import Results
    from unlearnbench.api.benchmark import Benchmark, SplitKey
    from unlearnbench.api.metric import MetricColumn
    from unlearnbench.api.observations import Evaluation, Statistics
    from unlearnbench.api.profile import Profile
    from unlearnbench.config.entries import AttackSpec
    from unlearnbench.evaluation.harness_tasks import TaskScores
    from unlearnbench.results.table import TableRow

_SPLIT_OF_LOGS = "log"
"""Name of the split of logs, which do not say what share was to be forgotten. It is not shown."""
_LOPSIDED = 0.2
"""Share of half an interval's width by which a value may be off its middle, to be shown with ±."""

app = new_group()

Model = Annotated[str, argument("MODEL", "Hub id, folder, or LoRA adapter's folder.")]


@command(app, "evaluate")
def evaluate(
    model: Model,
    own: RowOptions,
    options: ModelOptions,
    changes: ProfileChanges,
    retain: Annotated[
        str | None,
        option("MODEL_OR_LOG", "Retain model, for Forget Quality, Forgotten and Private."),
    ] = None,
    start: Annotated[
        str | None, option("MODEL_OR_LOG", "Model before unlearning, for Forgotten and Kept.")
    ] = None,
    out: Annotated[str | None, option("FILE", "Log to write, .safetensors.")] = None,
    questions: Annotated[
        str | None, option("FILE", "Table of all questions to write, .jsonl.")
    ] = None,
    tasks: Annotated[
        list[str] | None,
        option("NAME", "Task of lm-evaluation-harness, or its YAML file (repeatable).", "--task"),
    ] = None,
    plugins: Plugins = None,
    as_json: Json = False,
) -> int:
    r"""Evaluate a model: print its metrics and a verdict, and write its log and answers on request.

    Examples:
      unlearnbench evaluate ./my-model --data ~/tofu --out log.safetensors
      unlearnbench evaluate ./my-adapter --data ~/tofu \
          --retain ./my-retain90-model --start ./my-start-model
      unlearnbench evaluate ./my-model --forget-rows forget.jsonl \
          --retain-rows retain.jsonl --questions answers.jsonl
      unlearnbench evaluate ./my-model --data ~/tofu --task hellaswag --task gsm8k
      unlearnbench evaluate locuslab/tofu_ft_phi-1.5 --data tofu \
          --tokenizer microsoft/phi-1_5 --retain retain90.safetensors
    """
    from unlearnbench.api.benchmark import split_name
    from unlearnbench.config.profiles import get_profile
    from unlearnbench.evaluation.harness_tasks import task_scores
    from unlearnbench.evaluation.observation_file import SUFFIX, write_observations
    from unlearnbench.evaluation.privacy_control import holdout_notice
    from unlearnbench.evaluation.question_table import write_questions
    from unlearnbench.runs.evaluate_model import data_settings

    options = options.with_rows(own)
    rules = get_profile(options.profile or DEFAULT_PROFILE, **vars(changes))
    register_for_evaluation(plugins, rules)
    benchmark = data_settings(options.data)
    if questions:  # an early error saves the model's time
        check_file(questions, "the questions", (".jsonl",))
    if out:
        check_file(out, "the evaluation", (SUFFIX,))
    scores: TaskScores = {}
    if tasks:
        setup = options.setup(model, benchmark, rules)
        parts = setup.loaded(model), setup.evaluator.encoder.tokenizer
        scores = task_scores(*parts, tasks, rows=changes.rows)
    models = _evaluated(_named(model, retain, start), (), options, benchmark, rules)
    if models is None:
        return 0
    evaluations = {name: variants[""] for name, variants in models.items()}
    evaluation, console = evaluations["model"], Console()
    missing = [] if "holdout" in evaluation.sets else [split_name("holdout", options.forget)]
    if line := holdout_notice(missing, rules, benchmark):
        console.note(line)
    if out:
        write_observations(evaluation, Path(out))
        console.note(f"observations: {out}")
    if questions:
        write_questions(evaluation, questions, benchmark, evaluations.get("retain"))
        console.note(f"questions: {questions}")
    results = _results(models, options.forget, benchmark)
    return _print_verdict(results, scores, as_json=as_json)


@command(app, "score")
def score(
    log: Annotated[str, argument("LOG", "A log, or a record's epoch-<k>.safetensors.")],
    changes: ProfileChanges,
    retain: Annotated[str | None, option("LOG", "Log of the retain model.")] = None,
    start: Annotated[str | None, option("LOG", "Log of the model before unlearning.")] = None,
    data: Data = "tofu",
    profile: Annotated[
        str | None,
        option(
            "NAME",
            "Evaluation rules for a log that names none.",
            default="the log's own, else tofu",
        ),
    ] = None,
    plugins: Plugins = None,
    as_json: Json = False,
) -> int:
    r"""Compute the metrics of an evaluation log: ours, TOFU's or open-unlearning's.

    Examples:
      unlearnbench score eval_log_aggregated.json --retain retain90.json --json
      unlearnbench score TOFU_EVAL.json --retain retain90/TOFU_EVAL.json \
          --start full/TOFU_EVAL.json
    """
    from unlearnbench.config.profiles import TOFU, get_profile, profile_of_id
    from unlearnbench.evaluation.logs import read_log
    from unlearnbench.evaluation.summary import plan_of
    from unlearnbench.evaluation.word_check import (
        evaluated_shares,
        rouge_sets,
        uncounted_notice,
    )
    from unlearnbench.runs.evaluate_model import data_settings

    given: Profile | None = None
    if any(value is not None for value in (profile, *vars(changes).values())):
        given = get_profile(profile or TOFU.name, **vars(changes))
    evaluation = read_log(log, profile=given or TOFU)
    rules = profile_of_id(evaluation.profile)
    if given is not None and given.id != rules.id:
        raise EvaluationError(
            f"{log}: the log was made by profile {rules.id}, and the options ask for {given.id}; "
            "leave the options out, or evaluate the model again by those rules"
        )
    register_for_evaluation(plugins, rules)
    benchmark = data_settings(data)
    present = {
        *evaluation.sets,
        *(n for n, role in benchmark.set_roles.items() if role == "holdout"),
    }
    if missing := [name for name in benchmark.set_roles if name not in present]:
        raise EvaluationError(
            f"{log}: the set {missing[0]!r} is missing or incomplete, so the metrics of "
            f"{benchmark.source} cannot be computed; name the log's benchmark with --data, or give "
            "this log only as --retain"
        )
    shares = evaluated_shares(evaluation, rouge_sets(plan_of(rules, benchmark)))
    if notice := uncounted_notice(shares, rules, "evaluate the model again with --profile"):
        Console().note(f"warning: {notice}")
    others = {"retain": retain, "start": start}
    logs = {name: read_log(path, profile=rules) for name, path in others.items() if path}
    models = {"model": {"": evaluation}} | {name: {"": item} for name, item in logs.items()}
    return _print_verdict(_results(models, _SPLIT_OF_LOGS, benchmark), {}, as_json=as_json)


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
    from unlearnbench.base.atomic import write_text
    from unlearnbench.base.deferred_warnings import drain
    from unlearnbench.config.profiles import get_profile
    from unlearnbench.evaluation.observation_file import SUFFIX, write_observations
    from unlearnbench.runs.evaluate_model import data_settings

    if out:
        check_folder(out, "the evaluations")
    options = options.with_rows(own)
    rules = get_profile(options.profile or DEFAULT_PROFILE, **vars(changes))
    specs = _specs(attacks, settings, register_for_evaluation(plugins, rules))
    benchmark, console = data_settings(options.data), Console()
    models = _evaluated(_named(model, retain, start), specs, options, benchmark, rules)
    if models is None:
        return 0
    if out:
        # Before anything is computed of them: attacks may have taken hours.
        for name, variants in models.items():
            folder = Path(out) if name == "model" else Path(out, name)
            for variant, evaluation in variants.items():
                write_observations(evaluation, folder / f"{variant or 'plain'}{SUFFIX}")
    results = _results(models, options.forget, benchmark)
    judged = [_AttackedModel(results, spec) for spec in specs]
    document = _document(results, judged)
    if out:
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
        write_text(Path(out, "attack.json"), text + "\n")
        console.note(f"attack.json and observations: {out}")
    if as_json:
        console.print_json(document)
    else:
        kept = benchmark.headline.kept
        value = kept.text(document["plain"]["model"].get(kept.column))
        console.paragraph(_rules(models["model"][""]))
        console.print(f"{kept.plain_label} without an attack: {value}")
        for item in judged:
            _print_attack(item, console)
        if document["unknown"]:
            console.print()
        for line in document["unknown"]:
            console.paragraph(line)
    for line in filter(None, (*drain(), *results.table.notes)):
        console.note(f"warning: {line}")
    return 0


def _named(model: str, retain: str | None, start: str | None) -> dict[str, str]:
    others = {"retain": retain, "start": start}
    return {"model": model} | {name: source for name, source in others.items() if source}


def _evaluated(
    sources: Mapping[str, str],
    attacks: Sequence[AttackSpec],
    options: ModelOptions,
    benchmark: Benchmark,
    rules: Profile,
) -> dict[str, dict[str, Evaluation]] | None:
    """Evaluations of each model by variant, `` without an attack; None but in the main process.

    The start model is not attacked. Logs are read, where there are no attacks.
    """
    from unlearnbench.base.distributed import is_main_process
    from unlearnbench.config.precision import resolve_precision
    from unlearnbench.evaluation.logs import read_log
    from unlearnbench.evaluation.summary import plan_of
    from unlearnbench.evaluation.word_check import rouge_sets, uncounted_notice, uncounted_shares
    from unlearnbench.models.source import Source
    from unlearnbench.results.single import check_profile

    models: dict[str, dict[str, Evaluation]] = {"model": {}}
    resolve_precision("cpu", options.dtype, options.precision)
    for name, source in sources.items():
        if not is_log_file(source):
            Source(source, None, options.adapter_base).check()
        elif attacks or name == "model":
            raise EvaluationError(f"{source} is a log; give the model")
        else:
            models[name] = {"": read_log(source, profile=rules)}
            check_profile(source, models[name][""], rules.id)
    if options.adapter_base and not any(Source(place).is_adapter for place in sources.values()):
        raise EvaluationError(
            "--adapter-base: none of the models is the folder of an adapter, so it has no effect; "
            "leave it out"
        )
    setup, console = options.setup(sources["model"], benchmark, rules), Console()
    main = is_main_process()
    answers = setup.evaluator.references(rouge_sets(plan_of(rules, benchmark)))
    notice = uncounted_notice(uncounted_shares(answers, rules.words), rules, "use --profile")
    if notice and main:
        console.note(f"warning: {notice}")
    for name, source in sources.items():
        if models.get(name):
            continue
        with progress_bar(console, f"evaluating {source}") as progress:
            evaluations = setup.evaluations(
                source,
                () if name == "start" else attacks,
                start=sources.get("start"),
                progress=progress if main else None,
            )
            for variant, evaluation in evaluations:
                models.setdefault(name, {})[variant] = evaluation
                if variant and main:
                    console.note(f"evaluated {source} under {variant}")
    return models if main else None


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
    for name in given.keys() - chosen.keys():
        raise EvaluationError(
            f"--set {name}: expected NAME.KEY=VALUE with the name of an attack that is "
            f"carried out: {', '.join(chosen)}"
        )
    return attack_specs({name: given.get(name, {}) for name in chosen})


def _rules(evaluation: Evaluation) -> str:
    """Profile, precision and sizes of an evaluation."""
    sizes = (f"{len(seen.answer_loss)} {_spaced(name)}" for name, seen in evaluation.sets.items())
    precision = f" in {evaluation.precision}" if evaluation.precision else ""
    base, _, changes = evaluation.profile.partition("+")
    unlike = f" (not comparable with numbers by {base})" if changes else ""
    return f"rules: profile {evaluation.profile}{unlike}{precision}; {', '.join(sizes)} questions"


def _results(
    models: Mapping[str, Mapping[str, Evaluation]], split: SplitKey, benchmark: Benchmark
) -> Results:
    """Compute all numbers of the model and of its retain and start model, as of a sweep.

    Args:
        models: Evaluations of the `model`, and those of its `retain` and `start` model if they are
            given, by variant.
        split: Division into forget and retain rows.
        benchmark: On whose sets the models were evaluated.
    """
    from unlearnbench.analysis.results import Results
    from unlearnbench.results.single import ModelRole, records_of

    roles = {ModelRole(name): variants for name, variants in models.items()}
    return Results.of(records_of(roles, benchmark, split), name="model")


class _JudgedModel:
    """The row of a model, those of the models beside it, and intervals over questions."""

    def __init__(self, results: Results) -> None:
        from unlearnbench.analysis.over_questions import OverQuestions

        row_of_kind = {row.kind: row for row in results.rows}
        self.row: TableRow = row_of_kind["run"]
        self.retain: TableRow | None = row_of_kind.get("retain")
        self.start: TableRow | None = row_of_kind.get("fine-tuned")
        evaluation = results.observed(self.row)
        if evaluation is None:
            raise AssertionError("a model that is judged has its evaluation in memory")
        self.evaluation: Evaluation = evaluation
        self.over_questions = OverQuestions(
            results.schema, results.observed, retain=self.retain, start=self.start
        )
        self.intervals: Mapping[str, tuple[float, float]] = self.over_questions.intervals(self.row)

    @property
    def others(self) -> Mapping[str, TableRow]:
        """The rows of the models beside it by role."""
        rows = {"retain": self.retain, "start": self.start}
        return {role: row for role, row in rows.items() if row is not None}


def _print_verdict(results: Results, tasks: TaskScores, *, as_json: bool) -> int:
    """Print all numbers of a model and the verdict on it."""
    from unlearnbench.analysis.model_text import model_sentences
    from unlearnbench.base.deferred_warnings import drain
    from unlearnbench.evaluation.privacy_control import failed_control

    console = Console()
    judged = _JudgedModel(results)
    evaluation = judged.evaluation
    sentences = model_sentences(
        judged.row, judged.over_questions, judged.intervals, results.profile
    )
    warnings = [*drain(), *results.table.notes]
    if judged.start is not None:
        warnings.append(failed_control(judged.start.metrics))
    for line in filter(None, warnings):
        console.note(f"warning: {line}")
    if as_json:
        document: dict[str, Any] = {
            "profile": evaluation.profile,
            "precision": evaluation.precision,
            "questions": {name: len(seen.answer_loss) for name, seen in evaluation.sets.items()},
            **_numbers(judged.row),
        }
        if judged.others:
            document["models"] = {role: _numbers(row) for role, row in judged.others.items()}
        if tasks:
            document["tasks"] = {
                task: {name: score._asdict() for name, score in scores.items()}
                for task, scores in tasks.items()
            }
        document |= {"intervals": judged.intervals, "verdict": sentences}
        console.print_json(document)
    else:
        console.paragraph(_rules(evaluation))
        console.print()
        _print_metrics(judged, console)
        console.print()
        for sentence in sentences:
            console.paragraph(sentence)
        _print_tasks(tasks, console)
    if evaluation.statistics:
        _print_statistics(evaluation.statistics, console)
    return 0


def _numbers(row: TableRow) -> dict[str, float | None]:
    """The numbers of a row by column, in the order of a table; None if undefined.

    Columns that only an attack makes are left out if they have no number.
    """
    plan = row.schema.plan
    numbers = {column.name: row.metrics.get(column.name) for column in plan.columns}
    for column in plan.under_attack:
        value = row.metrics.get(column.name)
        if value is not None:
            numbers[column.name] = value
    return numbers


def _print_tasks(tasks: TaskScores, console: Console) -> None:
    rows = [
        (task, name, _rounded(score.value), score.rows, _ends_text(score.interval))
        for task, scores in tasks.items()
        for name, score in scores.items()
    ]
    if rows:
        columns = ("task of lm-evaluation-harness", "metric", "value", "rows", "95 % interval")
        console.print()
        console.table(columns, rows)


def _print_metrics(judged: _JudgedModel, console: Console) -> None:
    """Print the scores that answer a question, all other numbers, and the metrics by set."""
    plan = judged.row.schema.plan
    labels = {column.name: _plain(column.label) for column in plan.columns}
    rows_of_models = [judged.row, *judged.others.values()]
    headings_of_others = [f"{role} model's" for role in judged.others]

    def numbers_of(column: str) -> list[float | None]:
        return [_rounded(row.metrics.get(column)) for row in rows_of_models]

    # First what is relative to the retain model: what was to be forgotten; then what is kept.
    ordered = sorted(plan.summaries.values(), key=lambda item: "retain" not in item.relative_to)
    scores = {item.columns()[0].name: item for item in ordered if item.question}
    score_lines = [
        (labels[name], *numbers_of(name), item.question, " and ".join(sorted(item.relative_to)))
        for name, item in scores.items()
    ]
    # A table of dashes would say nothing. What is not measured is named below.
    if any(value is not None for name in scores for value in numbers_of(name)):
        schema = judged.row.schema
        aim = "" if schema.could_have_retain and not schema.has_retain else " (1 is best)"
        headings = ("score", "value", *headings_of_others, f"question{aim}", "relative to models")
        console.table(headings, score_lines, flowing=headings[-2:])
        console.print()

    known = [name for name in labels if judged.row.metrics.get(name) is not None]
    of_no_set = [column.name for column in plan.columns if not column.set]
    lines = [
        (labels[name], *numbers_of(name))
        for name in of_no_set
        if name in known and name not in scores
    ]
    if lines:
        console.table(("metric", "value", *headings_of_others), lines)
        console.print()

    _print_metrics_by_set(judged, console)
    missing = [label for name, label in labels.items() if name not in known]
    if missing:
        console.note(f"not measured: {'; '.join(missing)}")


def _print_metrics_by_set(judged: _JudgedModel, console: Console) -> None:
    """Print the metrics of each set with their intervals, and below those of the other models."""
    schema = judged.row.schema
    sets = [
        name
        for name in schema.roles
        if name in judged.evaluation.sets and any(c.set == name for c in schema.plan.columns)
    ]
    # Measures of one name stand in one line: each is of other sets.
    names = {measure.name: measure.metric.label for measure in schema.plan.measures}
    lines: list[tuple[str, ...]] = []
    for name, label in names.items():
        columns = [f"{name}_{on}" for on in sets]
        cells = [_with_half_width(judged, column) for column in columns]
        if not any(cells):
            continue
        lines.append((label, *(("model",) if judged.others else ()), *cells))
        for role, row in judged.others.items():
            values = [row.metrics.get(column) for column in columns]
            texts = ["" if value is None else f"{value:.3f}" for value in values]
            lines.append(("", f"{role} model", *texts))
    counts = {name: len(seen.answer_loss) for name, seen in judged.evaluation.sets.items()}
    headings = [f"{_spaced(name)} (n={counts[name]})" for name in sets]
    of = ("of",) if judged.others else ()
    console.table(("metric, ± 95 % of questions", *of, *headings), lines, keys=1 + len(of))


def _with_half_width(judged: _JudgedModel, column: str) -> str:
    """A table's cell: `0.842 ±0.031`, or `1.000 [0.158, 1.000]` if the ends are not alike.

    The number alone without an interval.
    """
    value = judged.row.metrics.get(column)
    ends = judged.intervals.get(column)
    if value is None:
        return ""
    if ends is None:
        return f"{value:.4g}"
    half = (ends[1] - ends[0]) / 2
    is_lopsided = abs(value - ends[0] - half) > _LOPSIDED * half
    return f"{value:.3f} {_ends_text(ends)}" if is_lopsided else f"{value:.3f} ±{half:.3f}"


def _ends_text(ends: tuple[float, float] | None) -> str | None:
    """A table's cell: `[0.158, 1.000]`; None without an interval."""
    return None if ends is None else f"[{ends[0]:.3f}, {ends[1]:.3f}]"


class _AttackedModel:
    """A model under one attack, beside the models that it is compared with."""

    def __init__(self, results: Results, spec: AttackSpec) -> None:
        from unlearnbench.analysis.attack_text import single_attack_sentences, start_fault_sentence
        from unlearnbench.results.asked_rows import NumbersBefore
        from unlearnbench.results.attack_variants import attack_of

        self.spec = spec
        self.plain: Mapping[str, TableRow] = _rows_of_models(results)
        self.rows: dict[str, dict[str, TableRow]] = {}
        """By variant, the row of each attacked model."""
        for row in results.attacked:
            if attack_of(row.variant) == spec.name:
                self.rows.setdefault(row.variant, {})[row.run_id] = row
        self.numbers_before = NumbersBefore.of(results.before)

        self.setting: AttackedSetting | None = None
        """The model under the attack; None if nothing can be said about it."""
        fault = results.panels[0].start.fault
        of_model = any("model" in rows for rows in self.rows.values())
        if not of_model or not (results.lasting or fault):
            self.sentences: tuple[str, ...] = (
                f"{spec.name}: no metric of the forget set could be measured under it",
            )
        elif fault:
            self.sentences = (start_fault_sentence(spec.name, fault),)
        else:
            (panel,) = results.lasting
            (setting,) = panel.settings
            self.setting = setting.only(spec.name)
            self.sentences = single_attack_sentences(panel, spec.name)

    def before(self, model: str, column: str) -> float | None:
        """The number of a model without the attack, on the rows that the attack asked."""
        from unlearnbench.results.attack_variants import is_before_attack

        for variant, rows in self.rows.items():
            # An attack that trains has evaluated the model on its rows before the first step.
            if is_before_attack(variant) and model in rows:
                return rows[model].metrics.get(column)
        # All points of an attack ask the same rows.
        variant = next(iter(self.rows), "")
        return self.numbers_before(self.plain[model], variant).get(column)

    def columns(self) -> list[MetricColumn]:
        """The metrics by set with a number under the attack, the most telling ones first."""
        from unlearnbench.analysis.yardstick import MEMORIZATION

        schema = self.plain["model"].schema
        order = {name: rank for rank, name in enumerate(("expected_best", *MEMORIZATION))}
        columns = [
            column
            for column in (*schema.plan.columns, *schema.plan.under_attack)
            if column.set and self._has_number(column.name)
        ]

        def rank(column: MetricColumn) -> int:
            return order.get(column.name.removesuffix(f"_{column.set}"), len(order))

        return sorted(columns, key=rank)

    def _has_number(self, column: str) -> bool:
        of_model = [rows["model"] for rows in self.rows.values() if "model" in rows]
        return any(row.metrics.get(column) is not None for row in of_model)

    def document(self) -> dict[str, Any]:
        """Numbers under the attack, and what comes back, as JSON."""
        return {
            "attack": self.spec.name,
            "version": self.spec.version,
            "settings": {key: v for key, v in self.spec.settings.items() if key != "at"},
            "variants": {
                variant: {model: _known_numbers(row) for model, row in rows.items()}
                for variant, rows in self.rows.items()
            },
            "lasting": None if self.setting is None else _lasting_document(self.setting),
            "verdict": self.sentences,
        }


def _rows_of_models(results: Results) -> dict[str, TableRow]:
    """The plain rows of the model, and of its retain and start model, in this order."""
    from unlearnbench.results.single import ModelRole

    row_of_model = {row.run_id: row for row in results.rows}
    return {role.value: row_of_model[role] for role in ModelRole if role in row_of_model}


def _document(results: Results, judged: Sequence[_AttackedModel]) -> dict[str, Any]:
    """Everything about attacks as JSON: the numbers of each evaluation, and what comes back."""
    from unlearnbench.analysis.attack_text import unknown_under_attack

    rows_of_models = _rows_of_models(results)
    plain = results.observed(rows_of_models["model"])
    sets = {} if plain is None else plain.sets
    document: dict[str, Any] = {
        "profile": results.profile,
        "precision": None if plain is None else plain.precision,
        "questions": {name: len(seen.answer_loss) for name, seen in sets.items()},
        "plain": {model: _known_numbers(row) for model, row in rows_of_models.items()},
        "attacks": [item.document() for item in judged],
        "unknown": unknown_under_attack(
            has_retain="retain" in rows_of_models, has_start="start" in rows_of_models
        ),
    }
    ready: dict[str, Any] = json_ready(document, lambda _: None)
    return ready


def _known_numbers(row: TableRow) -> dict[str, float]:
    return {name: value for name, value in _numbers(row).items() if value is not None}


def _lasting_document(setting: AttackedSetting) -> dict[str, Any] | None:
    """What comes back at the worst point of an attack, as JSON; None if nothing is measured.

    Gains are in the direction of more memorisation.
    """
    from unlearnbench.analysis.under_attack import worst_of_level

    under = setting.worst or setting.most_gained
    if under is None or under.measured is None:
        return None

    def oriented(gain: float | None) -> float | None:
        return None if gain is None else under.sign * gain

    points = sum(point.gain is not None for point in setting.under)
    level = worst_of_level(points)
    questions = under.questions
    interval = setting.lasting_interval
    return {
        "variant": under.variant,
        "points": points,
        "column": under.measured.after.name,
        "column_before": under.measured.before.name,
        "before": under.before,
        "after": under.after,
        "retain_before": under.retain.before,
        "retain_after": under.retain.after,
        "start": under.start.before,
        "gain": oriented(under.gain),
        "retain_gain": oriented(under.null),
        "excess": oriented(under.excess),
        "n": None if questions is None else questions.count,
        "level": level,
        "interval": None if questions is None else questions.gain_interval(level),
        "excess_interval": None if questions is None else questions.excess_interval(level),
        "removed": under.removed,
        "lasting": setting.lasting,
        "lasting_interval": None if interval is None else (interval.low, interval.high),
        "comes_back": None if setting.lasting is None else setting.comes_back,
        "why_not": setting.why_not or None,
    }


def _print_attack(judged: _AttackedModel, console: Console) -> None:
    """Print a table and the verdict on an attack."""
    name = judged.spec.name
    lines: list[tuple[Any, ...]] = []
    for column in judged.columns():
        for model in judged.plain:
            cells = [_rounded(judged.before(model, column.name))]
            for rows in judged.rows.values():
                row = rows.get(model)
                cells.append(None if row is None else _rounded(row.metrics.get(column.name)))
            if model == "model":
                lines.append((column.label, model, *cells))
            else:
                lines.append(("", f"{model} model", *cells))
    points = (variant.removeprefix(name) or variant for variant in judged.rows)
    console.print()
    console.table(("metric", "of", "plain", *points), lines, title=name, keys=2)
    console.print()
    for line in judged.sentences:
        console.paragraph(line)


def _plain(label: str) -> str:
    """The label without subscripts, for terminals."""
    return unicodedata.normalize("NFKC", label)


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _rounded(value: float | None) -> float | None:
    """The value to four significant digits, for a table."""
    return None if value is None else float(f"{value:.4g}")


def _print_statistics(seen: Statistics, console: Console) -> None:
    """Print which answers may differ elsewhere, and that outputs were not finite."""
    if seen.ties:
        console.note(
            f"{len(seen.ties)} answers hung on a tie between two tokens and may differ elsewhere, "
            f"such as that to {seen.ties[0]!r}"
        )
    if seen.cut:
        console.note(f"{seen.cut} true answers are cut at the profile's max_length")
    for remark in seen.remarks:
        console.note(remark)
    if seen.not_finite is not None:
        console.note(
            f"the model's outputs are not finite, first at {seen.not_finite!r}: what depends on "
            "them is undefined"
        )
