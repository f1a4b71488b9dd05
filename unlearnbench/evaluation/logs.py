"""Evaluation logs of others, read: TOFU's and open-unlearning's; our own observations, too.

TOFU's `eval_log_aggregated.json` has four top-level keys, one per set, and in each set a table per
metric, {"0": value, "1": value, …}. Of losses that it stores twice, as sum and mean, the means are
read. Version 0.2 wrote such logs, too, with `question`, `profile` and `precision` inside the sets.

open-unlearning's TOFU_EVAL.json has a key per metric, and in each `value_by_index`: {"0":
{"avg_loss": …, "prob": …}, …}, where the perturbed answers have a list in place of each number. The
losses that a truth ratio is made of are logged as metrics of their own: these are read, and no
reduced value is. There are no token counts (0 here), no values by token and no questions. A set is
read when its losses are complete; a log of the forget set alone serves as a retain model's.
Memorization and membership inference are logged as one number per question.
Source: locuslab/open-unlearning, src/evals/base.py, metrics/base.py, metrics/memorization.py.
"""

import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from unlearnbench.api.observations import Evaluation, FloatArray, SetEvaluation, SetName
from unlearnbench.api.profile import Profile
from unlearnbench.base.errors import EvaluationError
from unlearnbench.config.profiles import OPEN_UNLEARNING, TOFU
from unlearnbench.evaluation.observation_file import SUFFIX, read_observations
from unlearnbench.stats.text_overlap import WordRule, rouge_recall

FILES: dict[SetName, str] = {
    "retain": "eval_log.json",
    "real_authors": "eval_real_author_wo_options.json",
    "world_facts": "eval_real_world_wo_options.json",
    "forget": "eval_log_forget.json",
}
"""Names of the sets in TOFU's log, in the order of the published ones."""
_TEMPLATES = (("[INST] ", " [/INST]"), ("Question: ", "\n"))
"""Prompts of the published logs, as (before, after) the question."""

_SETS: dict[SetName, tuple[str, str]] = {
    "retain": ("retain", "Q_A_PARA_Prob"),
    "forget": ("forget", "Q_A_PARA_Prob"),
    "real_authors": ("ra", "Q_A_Prob"),
    "world_facts": ("wf", "Q_A_Prob"),
}
"""Prefix of a set's metrics in open-unlearning, and the one that its truth ratio is about."""
_MEMORIZATION = {
    "exact_memorization": "exact_memorization",
    "extraction_strength_ou": "extraction_strength",
}
"""Our metrics of the forget set, and their names in open-unlearning."""
_ATTACK = "mia_"
_RENAMED = {"mia_gradnorm": "mia_grad_norm"}
"""Attacks that have another name here."""
_DAMAGE = (OSError, EOFError, KeyError, TypeError, ValueError, AttributeError, zlib.error)


def read_log(path: Path | str, *, profile: Profile = TOFU) -> Evaluation:
    """Read a log of TOFU or open-unlearning, gzipped or not, or our own `.safetensors`.

    Args:
        path: The file.
        profile: Evaluation rules of a log that names none. TOFU's published logs do not.

    Raises:
        EvaluationError: The file cannot be read, or has another form. The message names the place.
    """
    path = Path(path)
    if path.suffix == SUFFIX:
        return read_observations(path)
    try:
        content = path.read_bytes()
        is_gzip = content.startswith(b"\x1f\x8b")
        document = json.loads(gzip.decompress(content) if is_gzip else content)
        if not isinstance(document, dict):
            raise ValueError("expected an object with a table for each metric or set")
        tables = {k: t for k, t in document.items() if isinstance(t, dict)}
        if any("value_by_index" in table for table in tables.values()):
            return _open_unlearning(tables)
        return _tofu(tables, profile)
    except _DAMAGE as error:
        reason = getattr(error, "strerror", None) or error
        reason = f"no {error} in it" if isinstance(error, KeyError) else reason
        raise EvaluationError(
            f"{path}: cannot read the evaluation log: {reason}; copy or write it again"
        ) from error


_TEXTS = 3
"""Texts of a row in TOFU's logs: prompt, generated answer, true answer."""


class _Columns:
    """Tables {index: value} by name, aligned by question; errors name the table."""

    def __init__(self, location: str, tables: Mapping[str, Any]) -> None:
        self._place, self._tables = location, tables
        self._order: list[str] = []

    def __contains__(self, key: str) -> bool:
        return key in self._tables

    def rows(self, key: str) -> list[Any]:
        """Return the values [n] of a table, ordered by index.

        A log that was merged from several processes may have them in another order.

        Raises:
            ValueError: The table has another form, or other questions than the first one.
        """
        table = self._tables[key]
        if not isinstance(table, dict) or not all(map(str.isdecimal, table)):
            raise ValueError(f"{self._place}{key}: expected {{index: value}} with indices 0, 1, …")
        self._order = self._order or sorted(table, key=int)
        if not table or table.keys() != {*self._order}:
            message = f"{len(table)} entries for {len(self._order)} questions"
            raise ValueError(f"{self._place}{key}: {message}")
        return [table[index] for index in self._order]

    def numbers(
        self, key: str, field: str = "", *, whole: bool = False, per_answer: bool = False
    ) -> Any:
        """Return the numbers of a table: [n], or [n, k] for a value per perturbed answer.

        Args:
            key: Name of the table.
            field: Field to read, if a question has an object of several; empty for plain values.
            whole: Whether the numbers are integers, such as counts.
            per_answer: Whether each question has a list with a number per perturbed answer.

        Raises:
            ValueError: The table has another form.
        """
        rows = self.rows(key)
        if field:
            rows = [row.get(field) if isinstance(row, dict) else None for row in rows]
        lengths = {len(row) if isinstance(row, list) else 0 for row in rows}
        values = np.array(rows) if len(lengths) == 1 else np.empty(0)
        if values.ndim != 1 + per_answer or values.dtype.kind not in ("iu" if whole else "iuf"):
            expected = f"{'whole ' * whole}numbers, equally many for every question"
            raise ValueError(f"{self._place}{key}: expected {expected}")
        return values.astype(np.int64 if whole else np.float64)


def _tofu(document: Mapping[str, Any], profile: Profile) -> Evaluation:
    """Return the evaluation in a log of TOFU. `profile` holds for sets that name none."""
    rules = {
        (str(document[file].get("profile", profile.id)), document[file].get("precision"))
        for file in FILES.values()
    }
    if len(rules) > 1:
        listed = [
            name if kind is None else f"{name} in {kind}" for name, kind in sorted(rules, key=str)
        ]
        raise ValueError(f"its sets were evaluated by different rules ({', '.join(listed)})")
    ((name, precision),) = rules
    sets: dict[SetName, SetEvaluation] = {}
    for set_name, file in FILES.items():
        evaluated = _tofu_set(_Columns(f"{file}.", document[file]))
        # A log has ROUGE by the rule `ascii`.
        if name == profile.id and profile.words != "ascii":
            evaluated = _recounted(evaluated, profile.words)
        sets[set_name] = evaluated
    return Evaluation(name, sets, precision=precision)


def _recounted(seen: SetEvaluation, word_rule: WordRule) -> SetEvaluation:
    """Compute ROUGE again by another rule than the log's; NaN if the log has no texts."""
    rouge = np.full((2, len(seen.answer_loss)), np.nan)
    if seen.generated:
        rouge[:] = rouge_recall(seen.references, seen.generated, word_rule=word_rule)
    return replace(seen, rouge1_recall=rouge[0], rouge_l_recall=rouge[1], word_rule=word_rule)


def _tofu_set(tables: _Columns) -> SetEvaluation:
    questions: tuple[str, ...] = ()
    generated: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    answer_loss = tables.numbers("avg_gt_loss")
    if "generated_text" in tables:
        rows = tables.rows("generated_text")
        if not all(isinstance(row, list) and len(row) == _TEXTS for row in rows):
            raise ValueError("generated_text: expected prompt, answer and true answer in each row")
        texts = [(_question_of(prompt), *rest) for prompt, *rest in rows]
        questions, generated, references = zip(*texts, strict=True)
        questions = questions if any(questions) else ()
    if "question" in tables:
        questions = tuple(map(str, tables.rows("question")))
    return SetEvaluation(
        questions=questions,
        generated=generated,
        references=references,
        answer_loss=answer_loss,
        answer_tokens=tables.numbers("num_token_gt", whole=True),
        base_loss=tables.numbers("avg_paraphrased_loss"),
        base_tokens=tables.numbers("num_token_paraphrased", whole=True),
        perturbed_loss=tables.numbers("average_perturb_loss", per_answer=True),
        perturbed_tokens=tables.numbers("num_token_perturb", whole=True, per_answer=True),
        rouge1_recall=tables.numbers("rouge1_recall"),
        rouge_l_recall=tables.numbers("rougeL_recall"),
    )


def _question_of(prompt: str) -> str:
    """Return the question inside a prompt of the published logs; another prompt as it is."""
    for before, after in _TEMPLATES:
        if prompt.startswith(before) and prompt.endswith(after):
            return prompt[len(before) : -len(after)]
    return prompt


def _open_unlearning(document: Mapping[str, Any]) -> Evaluation:
    """Return the evaluation in a log of open-unlearning, under the profile `open-unlearning`.

    Raises:
        KeyError: The forget set lacks a metric.
    """
    values = {k: t["value_by_index"] for k, t in document.items() if "value_by_index" in t}
    tables = _Columns("", values)
    sets: dict[SetName, SetEvaluation] = {}
    for name, (prefix, base) in _SETS.items():
        needed = {base, "Q_A_PERT_Prob"}
        if name != "forget":
            needed |= {"Q_A_Prob", "Q_A_ROUGE"}
        keys = [f"{prefix}_{metric}" for metric in needed]
        missing = sorted(key for key in keys if key not in tables)
        if missing and name == "forget":
            # open-unlearning logs these metrics together with forget_truth_ratio.
            raise KeyError(missing[0])
        if missing:
            continue
        sets[name] = _open_unlearning_set(_Columns("", values), prefix, base)
    memorized = {
        name: tables.numbers(key, "score") for name, key in _MEMORIZATION.items() if key in tables
    }
    members, others = (_attack_scores(document, group) for group in ("forget", "holdout"))
    known = {**sets["forget"].values, **memorized, **members}
    sets["forget"] = replace(sets["forget"], values=known)
    if others:
        sets["holdout"] = _scores_alone(others)
    return Evaluation(OPEN_UNLEARNING.id, sets)


def _attack_scores(document: Mapping[str, Any], group: str) -> dict[str, FloatArray]:
    """Return the scores [n] of the forget or the holdout rows, by membership inference attack."""
    tables = {
        key: groups[group].get("value_by_index")
        for key, groups in document.items()
        if key.startswith(_ATTACK) and group in groups
    }
    columns = _Columns(f"{group} rows of ", tables)
    return {_RENAMED.get(key, key): columns.numbers(key, "score") for key in tables}


def _scores_alone(values: Mapping[str, FloatArray]) -> SetEvaluation:
    """Return a set of which only the scores of membership inference attacks are known."""
    n = len(next(iter(values.values())))
    unknown, none = np.full(n, np.nan), np.zeros(n, dtype=np.int64)
    return SetEvaluation(
        questions=(),
        generated=(),
        references=(),
        answer_loss=values.get("mia_loss", unknown),
        answer_tokens=none,
        base_loss=unknown,
        base_tokens=none,
        perturbed_loss=np.empty((n, 0)),
        perturbed_tokens=np.empty((n, 0), dtype=np.int64),
        rouge1_recall=unknown,
        rouge_l_recall=unknown,
        values=values,
    )


def _open_unlearning_set(columns: _Columns, prefix: str, base: str) -> SetEvaluation:
    """Return one evaluation set of a log of open-unlearning.

    Args:
        columns: The columns of the log.
        prefix: Name of the set in the columns: `forget` in `forget_Q_A_ROUGE`.
        base: Column of the truth ratio's true answer, after the prefix: `Q_A_PARA_Prob`.
    """
    answer_column = f"{prefix}_Q_A_Prob"
    rouge_column = f"{prefix}_Q_A_ROUGE"
    # The false answers are always there, so they say how many questions the set has.
    perturbed = columns.numbers(f"{prefix}_Q_A_PERT_Prob", "avg_loss", per_answer=True)
    question_count = len(perturbed)
    tokens = np.zeros(question_count, dtype=np.int64)  # the log has none
    unknown = np.full(question_count, np.nan)
    has_answers = answer_column in columns
    rows = columns.rows(rouge_column) if rouge_column in columns else []
    has_texts = all("generation" in row and "ground_truth" in row for row in rows)
    texts = rows if has_texts else []
    has_f1 = bool(rows) and all("rougeL_f1" in row for row in rows)
    return SetEvaluation(
        questions=(),
        generated=tuple(str(row["generation"]) for row in texts),
        references=tuple(str(row["ground_truth"]) for row in texts),
        answer_loss=columns.numbers(answer_column, "avg_loss") if has_answers else unknown,
        answer_tokens=tokens,
        base_loss=columns.numbers(f"{prefix}_{base}", "avg_loss"),
        base_tokens=tokens,
        perturbed_loss=perturbed,
        perturbed_tokens=np.zeros(perturbed.shape, dtype=np.int64),
        rouge1_recall=columns.numbers(rouge_column, "rouge1_recall") if rows else unknown,
        rouge_l_recall=columns.numbers(rouge_column, "rougeL_recall") if rows else unknown,
        values={"rouge_l_f1": columns.numbers(rouge_column, "rougeL_f1")} if has_f1 else {},
    )
