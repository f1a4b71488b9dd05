"""`unlearnbench evaluate`, `attack` and `score`: the verdict on one model, or on its log."""

from __future__ import annotations

import json
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from unlearnbench.api import registry
from unlearnbench.base.console import Console, progress_bar
from unlearnbench.base.errors import EvaluationError, shortened
from unlearnbench.base.hashing import json_ready
from unlearnbench.base.outputs import check_file, check_folder
from unlearnbench.cli.command import argument, command, new_group, option
from unlearnbench.cli.options import (
    Data,
    Json,
    ModelOptions,
    Plugins,
    ProfileChanges,
    dotted_values,
    is_log_file,
    register_for_evaluation,
)

if TYPE_CHECKING:
    from unlearnbench.analysis.given_back import AttackFindings
    from unlearnbench.analysis.model_verdict import ModelVerdict
    from unlearnbench.api.benchmark import Benchmark
    from unlearnbench.api.observations import Evaluation, Statistics
    from unlearnbench.api.profile import Profile
    from unlearnbench.config.entries import AttackSpec
    from unlearnbench.evaluation.harness_tasks import TaskScores

_WIDTH = 100
_LOPSIDED = 0.2
"""Share of half an interval's width by which a value may be off its middle, to be shown with ±."""

app = new_group()

Model = Annotated[str, argument("MODEL", "Hub id, folder, or LoRA adapter's folder.")]


@command(app, "evaluate")
def evaluate(
    model: Model,
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
    r"""Evaluate a model: its metrics and a verdict; its log and answers where they are wanted.

    Examples:
      unlearnbench evaluate ./my-model --data ~/tofu --out log.safetensors
      unlearnbench evaluate ./my-adapter --data ~/tofu --retain ./my-retain90-model \
          --start ./my-full-model
      unlearnbench evaluate ./my-model --questions answers.jsonl
      unlearnbench evaluate ./my-model --data ~/tofu --task hellaswag --task gsm8k
      unlearnbench evaluate locuslab/tofu_ft_phi-1.5 --tokenizer microsoft/phi-1_5 \
          --data tofu --retain retain90.safetensors
    """
    from unlearnbench.api.benchmark import split_name
    from unlearnbench.config.profiles import get_profile
    from unlearnbench.evaluation.harness_tasks import task_scores
    from unlearnbench.evaluation.observation_file import SUFFIX, write_observations
    from unlearnbench.evaluation.privacy_control import holdout_notice
    from unlearnbench.evaluation.question_table import write_questions
    from unlearnbench.runs.evaluate_model import data_settings

    rules = get_profile(options.profile, **vars(changes))
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
    return _print_verdict(evaluations, rules, benchmark, scores, as_json=as_json)


@command(app, "score")
def score(
    log: Annotated[str, argument("LOG", "A log, or a record's epoch-<k>.safetensors.")],
    changes: ProfileChanges,
    retain: Annotated[str | None, option("LOG", "The retain model's.")] = None,
    start: Annotated[str | None, option("LOG", "That of the model before unlearning.")] = None,
    data: Data = "tofu",
    profile: Annotated[
        str | None,
        option("NAME", "Rules of a log that names none.", default="the log's own, else tofu"),
    ] = None,
    plugins: Plugins = None,
    as_json: Json = False,
) -> int:
    r"""Compute the metrics of an evaluation log: ours, TOFU's or open-unlearning's.

    Examples:
      unlearnbench score eval_log_aggregated.json --retain retain90.json --json
      unlearnbench score TOFU_EVAL.json --retain retain90/TOFU_EVAL.json --start full/TOFU_EVAL.json
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
            f"{log}: by profile {rules.id}, as the log says, and the options say {given.id}: leave "
            "them out, or evaluate the model again by those rules"
        )
    register_for_evaluation(plugins, rules)
    benchmark = data_settings(data)
    present = {*evaluation.sets, *(n for n, role in benchmark.roles.items() if role == "holdout")}
    if missing := [name for name in benchmark.roles if name not in present]:
        raise EvaluationError(
            f"{log}: no whole set {missing[0]!r} in it, so there are no metrics of "
            f"{benchmark.source}; if it is of another benchmark, name that with --data, else it "
            "serves as --retain alone"
        )
    shares = evaluated_shares(evaluation, rouge_sets(plan_of(rules, benchmark)))
    if notice := uncounted_notice(shares, rules, "evaluate the model again with --profile"):
        Console().note(f"warning: {notice}")
    others = {"retain": retain, "start": start}
    logs = {name: read_log(path, profile=rules) for name, path in others.items() if path}
    return _print_verdict({"model": evaluation} | logs, rules, benchmark, {}, as_json=as_json)


@command(app, "attack")
def attack(
    model: Model,
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
    from unlearnbench.analysis.given_back import attack_findings
    from unlearnbench.base.atomic import write_text
    from unlearnbench.base.deferred_warnings import drain
    from unlearnbench.config.profiles import get_profile
    from unlearnbench.evaluation.observation_file import SUFFIX, write_observations
    from unlearnbench.evaluation.summary import plan_of
    from unlearnbench.runs.attack_model import variants_of
    from unlearnbench.runs.evaluate_model import data_settings

    if out:
        check_folder(out, "the evaluations")
    rules = get_profile(options.profile, **vars(changes))
    specs = _specs(attacks, settings, register_for_evaluation(plugins, rules))
    benchmark, console = data_settings(options.data), Console()
    models = _evaluated(_named(model, retain, start), specs, options, benchmark, rules)
    if models is None:
        return 0
    plan = plan_of(rules, benchmark)
    findings = [
        (spec, attack_findings(plan, benchmark.roles, models, variants_of(spec))) for spec in specs
    ]
    document = _document(models, findings, rules, benchmark)
    if out:
        for name, variants in models.items():
            folder = Path(out) if name == "model" else Path(out, name)
            for variant, evaluation in variants.items():
                write_observations(evaluation, folder / f"{variant or 'plain'}{SUFFIX}")
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
        write_text(Path(out, "attack.json"), text + "\n")
        console.note(f"attack.json and observations: {out}")
    if as_json:
        console.print_json(document)
    else:
        kept = benchmark.headline.kept
        value = kept.text(document["plain"]["model"].get(kept.column))
        console.print(_rules(models["model"][""]))
        console.print(f"{kept.plain_label} without an attack: {value}")
        for spec, item in findings:
            _print_attack(spec.name, item, console)
    for line in drain():
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
    from unlearnbench.models.loading import Source

    models: dict[str, dict[str, Evaluation]] = {"model": {}}
    resolve_precision("cpu", options.dtype, options.precision)
    for name, source in sources.items():
        if not is_log_file(source):
            Source(source, None, options.adapter_base).check()
        elif attacks or name == "model":
            raise EvaluationError(f"{source} is a log; give the model")
        else:
            models[name] = {"": read_log(source, profile=rules)}
            _check_profile(source, models[name][""], rules.id)
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


def _check_profile(source: str, evaluation: Evaluation, expected: str) -> None:
    """Raise EvaluationError unless an evaluation has the profile of the model's."""
    if evaluation.profile != expected:
        raise EvaluationError(
            f"{source}: by profile {shortened(evaluation.profile)[1:-1]}, and the model by "
            f"{expected}: numbers of different profiles do not compare; evaluate both by the same "
            "one (--profile)"
        )


def _check_start(evaluation: Evaluation, start: Evaluation) -> None:
    """Raise EvaluationError unless the start model was evaluated as the model was."""
    from unlearnbench.evaluation.precision import check_precision
    from unlearnbench.evaluation.summary import first_difference

    _check_profile("--start", start, evaluation.profile)
    check_precision("the model", evaluation.precision, "the start model", start.precision)
    for name in evaluation.sets.keys() & start.sets.keys():
        questions, others = evaluation.sets[name].questions, start.sets[name].questions
        if len(questions) != len(others) or first_difference(questions, others) is not None:
            raise EvaluationError(
                f"--start: evaluated on {len(others)} {name} questions, the model on "
                f"{len(questions)}, and they must be the same; evaluate both on the same split"
            )


def _rules(evaluation: Evaluation) -> str:
    """Profile, precision and sizes of an evaluation."""
    sizes = (f"{len(seen.answer_loss)} {_spaced(name)}" for name, seen in evaluation.sets.items())
    precision = f" in {evaluation.precision}" if evaluation.precision else ""
    base, _, changes = evaluation.profile.partition("+")
    unlike = f" (not comparable with numbers by {base})" if changes else ""
    return f"rules: profile {evaluation.profile}{unlike}{precision}; {', '.join(sizes)} questions"


def _print_verdict(
    evaluations: Mapping[str, Evaluation],
    rules: Profile,
    benchmark: Benchmark,
    tasks: TaskScores,
    *,
    as_json: bool,
) -> int:
    from unlearnbench.analysis.model_verdict import ModelVerdict
    from unlearnbench.analysis.text import model_sentences
    from unlearnbench.base.deferred_warnings import drain
    from unlearnbench.evaluation.privacy_control import failed_control

    evaluation, console = evaluations["model"], Console()
    if "start" in evaluations:
        _check_start(evaluation, evaluations["start"])
    verdict = ModelVerdict(rules, benchmark, **{**evaluations})
    values, sentences = verdict.values, model_sentences(verdict)
    warnings = [*drain(), failed_control(verdict.of_start)]
    for line in filter(None, warnings):
        console.note(f"warning: {line}")
    if as_json:
        counts = {name: len(seen.answer_loss) for name, seen in evaluation.sets.items()}
        about = {"profile": evaluation.profile, "precision": evaluation.precision}
        about |= {"questions": counts} | json_ready(values, lambda _: None)
        given: dict[str, Any] = {}
        if tasks:
            given["tasks"] = {
                task: {name: score._asdict() for name, score in scores.items()}
                for task, scores in tasks.items()
            }
        console.print_json(about | given | {"intervals": verdict.intervals, "verdict": sentences})
    else:
        console.print(f"{_rules(evaluation)}\n")
        _print_metrics(verdict, console)
        console.print("\n" + "\n".join(sentences))
        _print_tasks(tasks, console)
    if evaluation.statistics:
        _print_statistics(evaluation.statistics, console)
    return 0


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


def _print_metrics(verdict: ModelVerdict, console: Console) -> None:
    """Print the scores that answer a question, all other numbers, and the metrics by set."""
    plan, values = verdict.plan, verdict.values
    labels = {column.name: _plain(column.label) for column in plan.columns}
    # First what is relative to the retain model: what was to be forgotten; then what is kept.
    ordered = sorted(plan.summaries.values(), key=lambda item: "retain" not in item.relative_to)
    scores = {item.columns()[0].name: item for item in ordered if item.question}
    rows = [
        (labels[name], _rounded(values.get(name)), item.question, " and ".join(item.relative_to))
        for name, item in scores.items()
    ]
    console.table(("score", "value", "question (1 is best)", "relative to models"), rows)
    console.print()
    known = {name: values[name] for name in labels if values.get(name) is not None}
    others = [column.name for column in plan.columns if not column.set]
    numbers = [
        (labels[name], *(_rounded(of.get(name)) for of in (values, verdict.of_retain)))
        for name in others
        if name in known and name not in scores
    ]
    console.table(("metric", "value", "retain model's"), numbers)
    console.print()
    sets = [
        name
        for name in verdict.benchmark.roles
        if name in verdict.model.sets and any(c.set == name for c in plan.columns)
    ]
    by_set: dict[str, list[str]] = {}
    for measure in plan.measures:
        cells = [_with_half_width(verdict, f"{measure.name}_{name}") for name in sets]
        if any(cells):
            by_set[measure.name] = [measure.metric.label, *cells]
    counts = {name: len(seen.answer_loss) for name, seen in verdict.model.sets.items()}
    headings = [f"{_spaced(name)} (n = {counts[name]})" for name in sets]
    columns = ("metric, ± 95 % of questions", *headings)
    console.table(columns, [*by_set.values()])
    if missing := [labels[name] for name in labels if name not in known]:
        console.note(f"not measured: {'; '.join(missing)}")


def _with_half_width(verdict: ModelVerdict, column: str) -> str:
    """A table's cell: `0.842 ±0.031`, or `1.000 [0.158, 1.000]` if the ends are not alike.

    The number alone without an interval.
    """
    value, ends = verdict.values.get(column), verdict.intervals.get(column)
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


def _document(
    models: Mapping[str, Mapping[str, Evaluation]],
    findings: Sequence[tuple[AttackSpec, AttackFindings]],
    rules: Profile,
    benchmark: Benchmark,
) -> dict[str, Any]:
    """Everything about attacks as JSON: metrics of each evaluation, and each largest gain."""
    from unlearnbench.evaluation.summary import summarize

    def metrics(variant: str, name: str) -> dict[str, float | None]:
        """The metrics of a model, relative to the others under the same attack."""
        retain, start = (models.get(other, {}).get(variant) for other in ("retain", "start"))
        values = summarize(models[name][variant], retain, rules, start, benchmark)
        return {key: value for key, value in values.items() if value is not None}

    plain = models["model"][""]
    attacked = [name for name in models if name != "start"]
    derived = ("gain", "retain_gain", "excess", "share", "comes_back")
    document: dict[str, Any] = {
        "profile": plain.profile,
        "precision": plain.precision,
        "questions": {name: len(seen.answer_loss) for name, seen in plain.sets.items()},
        "plain": {name: metrics("", name) for name in models},
        "attacks": [
            {
                "attack": spec.name,
                "version": spec.version,
                "settings": {key: v for key, v in spec.settings.items() if key != "at"},
                "variants": {v: {name: metrics(v, name) for name in attacked} for v in item.points},
                "largest_gain": item.gain
                and asdict(item.gain) | {key: getattr(item.gain, key) for key in derived},
            }
            for spec, item in findings
        ],
    }
    ready: dict[str, Any] = json_ready(document, lambda _: None)
    return ready


def _print_attack(name: str, item: AttackFindings, console: Console) -> None:
    """Print a table and the verdict on an attack."""
    from unlearnbench.analysis.text import gain_sentences

    rows: list[tuple[Any, ...]] = []
    for metric in item.metrics:
        for model in metric.values:
            numbers = metric.numbers(model)
            cells = (_rounded(numbers.get(variant)) for variant in ("", *item.points))
            of = ("", f"{model} model") if model != "model" else (metric.column.label, model)
            rows.append((*of, *cells))
    points = (variant.removeprefix(name) or variant for variant in item.points)
    console.print()
    console.table(("metric", "of", "plain", *points), rows, title=name)
    console.print()
    lines = (f"{name}: no metric of the forget set could be measured under it",)
    for line in gain_sentences(item.gain) if item.gain else lines:
        console.print(textwrap.fill(line, _WIDTH, break_on_hyphens=False))


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
