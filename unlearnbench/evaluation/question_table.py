"""An evaluation as a table: a row per question, for a notebook.

JSON lines, which `pandas.read_json(path, lines=True)` reads. The perturbed answers' values are
lists, so that there is one row per question whatever their number.
"""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from unlearnbench.api.benchmark import Benchmark
from unlearnbench.api.membership import MembershipInference
from unlearnbench.api.metric import EvaluatedModel, MetricInputs, guarded
from unlearnbench.api.metric_engine import MetricPlan
from unlearnbench.api.observations import Evaluation, FloatArray, SetEvaluation
from unlearnbench.api.profile import Profile
from unlearnbench.base.errors import PluginError
from unlearnbench.base.outputs import writing
from unlearnbench.config.profiles import profile_of_id
from unlearnbench.evaluation.summary import plan_of, truth_ratios


def questions_table(
    evaluation: Evaluation, benchmark: Benchmark | None = None, retain: Evaluation | None = None
) -> list[dict[str, Any]]:
    """One dictionary per question, set by set, with the metrics of a benchmark, or of TOFU.

    set, index            where the question stands, as in TOFU's log
    question, reference, generated      None where the evaluation has scores only
    answer_loss, answer_tokens          true answer: mean loss in nats, scored tokens
    base_loss, base_tokens              what the truth ratio is about: paraphrase, or answer
    perturbed_loss, perturbed_tokens    lists, one value per perturbed answer
    truth_ratio           R by the evaluation's own profile: above 1 the true answer is likelier
    rouge1_recall, rougeL_recall        of the generated answer
    and each metric       by its name (`exact_memorization`; `mia_loss`, an attack's score), None
                          where it is not computed on that set; the truth ratio in the set's own
                          form is `truth_ratio_value`
    """
    profile = profile_of_id(evaluation.profile)
    compared = None if retain is None else EvaluatedModel(retain.sets)
    of = MetricInputs(EvaluatedModel(evaluation.sets), compared)
    result = {name: _metrics(name, of, plan_of(profile, benchmark)) for name in evaluation.sets}
    metrics = tuple(dict.fromkeys(key for values in result.values() for key in values))
    return [
        row
        for name, seen in evaluation.sets.items()
        for row in _rows(name, seen, profile, {key: result[name].get(key) for key in metrics})
    ]


def _metrics(name: str, of: MetricInputs, plan: MetricPlan) -> dict[str, FloatArray]:
    """[n] the values of every metric that gives each example of a set a number.

    One that fails is left out, as it is from the summary, which warns of it.
    """
    arraies: dict[str, FloatArray | None] = {}
    for measure in plan.measures:
        if name in measure.sets:
            with suppress(PluginError):
                arraies[measure.name] = measure.per_example(of.model.sets[name])
    for attack in plan.summaries.values():
        if isinstance(attack, MembershipInference) and name in (attack.members, attack.others):
            with suppress(PluginError), guarded(attack, "scores"):
                arraies[f"mia_{attack.key}"] = attack.of_set(of, name)
    return {key: values for key, values in arraies.items() if values is not None}


def _rows(
    name: str, seen: SetEvaluation, profile: Profile, metrics: Mapping[str, FloatArray | None]
) -> list[dict[str, Any]]:
    n = len(seen.answer_loss)
    columns: dict[str, list[Any]] = {
        "set": [name] * n,
        "index": list(range(n)),
        "question": list(seen.questions) or [None] * n,
        "reference": list(seen.references) or [None] * n,
        "generated": list(seen.generated) or [None] * n,
        "answer_loss": seen.answer_loss.tolist(),
        "answer_tokens": seen.answer_tokens.tolist(),
        "base_loss": seen.base_loss.tolist(),
        "base_tokens": seen.base_tokens.tolist(),
        "perturbed_loss": _of_each(seen, seen.perturbed_loss),
        "perturbed_tokens": _of_each(seen, seen.perturbed_tokens),
        "truth_ratio": truth_ratios(seen, profile).tolist(),
        "rouge1_recall": seen.rouge1_recall.tolist(),
        "rougeL_recall": seen.rouge_l_recall.tolist(),
    }
    for key, values in metrics.items():
        column = key if key not in columns else f"{key}_value"
        columns[column] = [None] * n if values is None else values.tolist()
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def _of_each(seen: SetEvaluation, column: NDArray[Any]) -> list[list[Any]]:
    """The values of each question's own perturbed answers."""
    return [item[part].tolist() for item, part in zip(column, seen.perturbed, strict=True)]


def write_questions(
    evaluation: Evaluation,
    path: Path | str,
    benchmark: Benchmark | None = None,
    retain: Evaluation | None = None,
) -> None:
    """Write `questions_table` to `path` as JSON lines; whole or not at all."""
    rows = questions_table(evaluation, benchmark, retain)
    finite = ({key: _finite(value) for key, value in row.items()} for row in rows)
    with writing(Path(path), "the questions") as part, part.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in finite)


def _finite(value: Any) -> Any:
    """`value` with None for what JSON lacks, NaN and infinity."""
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
