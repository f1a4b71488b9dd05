"""Read the evaluation logs of TOFU and open-unlearning, and our own observations.

**TOFU.** `eval_log_aggregated.json` has a key per set, and in each set a table per metric:

    {"eval_log.json": {"avg_gt_loss": {"0": 0.53, "1": 0.81, …}, …}, …}

Losses are stored twice there, as sum and mean, and the means are read. Version 0.2 of unlearnbench
wrote such logs, too, with `question`, `profile` and `precision` inside the sets.

**open-unlearning.** TOFU_EVAL.json has a key per metric:

    {"forget_Q_A_Prob": {"value_by_index": {"0": {"avg_loss": 0.53, "prob": 0.59}, …}, …}, …}

Perturbed answers have a list in place of each number. The losses that a truth ratio consists of are
logged as metrics of their own, and these are read instead of the reduced values. Memorization and
membership inference are logged as one number per question. There are no token counts (0 here), no
values by token and no questions. A set is read if its losses are complete. A log of only the forget
set can serve as a retain model's.
Source: locuslab/open-unlearning, src/evals/base.py, metrics/base.py, metrics/memorization.py.
"""

import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

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
"""The text before and after the question in prompts of the published logs."""


class _LoggedSet(NamedTuple):
    """How open-unlearning names a set in its logs."""

    prefix: str
    """Beginning of the names of the set's metrics: `forget` in `forget_Q_A_ROUGE`."""
    base: str
    """Metric with the losses of the truth ratio's true answers, without the prefix."""


_SETS: dict[SetName, _LoggedSet] = {
    "retain": _LoggedSet("retain", "Q_A_PARA_Prob"),
    "forget": _LoggedSet("forget", "Q_A_PARA_Prob"),
    "real_authors": _LoggedSet("ra", "Q_A_Prob"),
    "world_facts": _LoggedSet("wf", "Q_A_Prob"),
}
_MEMORIZATION = {
    "exact_memorization": "exact_memorization",
    "extraction_strength_ou": "extraction_strength",
}
"""Our metrics of the forget set, and their names in open-unlearning."""
_ATTACK = "mia_"
"""Beginning of the names of membership inference attacks."""
_RENAMED = {"mia_gradnorm": "mia_grad_norm"}
"""Attacks of open-unlearning that have another name here."""
_GZIP = b"\x1f\x8b"
"""The first bytes of a gzipped file."""
_TEXTS = 3
"""Texts of a row in TOFU's logs: prompt, generated answer, true answer."""
_DAMAGE = (OSError, EOFError, KeyError, TypeError, ValueError, AttributeError, zlib.error)
"""Errors of reading a file that is missing, cut or something else."""


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
        is_gzip = content.startswith(_GZIP)
        document = json.loads(gzip.decompress(content) if is_gzip else content)
        if not isinstance(document, dict):
            raise ValueError("expected an object with a table for each metric or set")
        tables = {key: table for key, table in document.items() if isinstance(table, dict)}
        if any("value_by_index" in table for table in tables.values()):
            return _open_unlearning(tables)
        return _tofu(tables, profile)
    except _DAMAGE as error:
        reason = getattr(error, "strerror", None) or error
        reason = f"no {error} in it" if isinstance(error, KeyError) else reason
        raise EvaluationError(
            f"{path}: cannot read the evaluation log: {reason}; copy or write it again"
        ) from error


class _Columns:
    """Tables {index: value} by name, aligned by question. Errors name the table."""

    def __init__(self, place: str, tables: Mapping[str, Any]) -> None:
        """Take the tables of one part of a log.

        Args:
            place: What stands in front of a table's name in errors, such as `eval_log.json.`.
            tables: Tables by name.
        """
        self._place = place
        self._tables = tables
        self._order: list[str] = []
        """The indices of the first table that was read, in order."""

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
    """Return the evaluation in a log of TOFU.

    Args:
        document: The log's tables by set and metric.
        profile: Evaluation rules of sets that name none.

    Raises:
        ValueError: The sets were evaluated by different rules.
    """
    rules: set[tuple[str, str | None]] = set()
    for file in FILES.values():
        tables = document[file]
        rules.add((str(tables.get("profile", profile.id)), tables.get("precision")))
    if len(rules) > 1:
        listed = [
            rule if precision is None else f"{rule} in {precision}"
            for rule, precision in sorted(rules, key=str)
        ]
        raise ValueError(f"its sets were evaluated by different rules ({', '.join(listed)})")
    ((profile_id, precision),) = rules
    sets: dict[SetName, SetEvaluation] = {}
    for set_name, file in FILES.items():
        evaluated = _tofu_set(_Columns(f"{file}.", document[file]))
        # A log has ROUGE by the rule `ascii`.
        if profile_id == profile.id and profile.words != "ascii":
            evaluated = _recounted(evaluated, profile.words)
        sets[set_name] = evaluated
    return Evaluation(profile_id, sets, precision=precision)


def _recounted(evaluated: SetEvaluation, word_rule: WordRule) -> SetEvaluation:
    """Compute ROUGE again by another rule than the log's; NaN if the log has no texts."""
    rouge_1 = np.full(len(evaluated.answer_loss), np.nan)
    rouge_l = rouge_1
    if evaluated.generated:
        rouge_1, rouge_l = rouge_recall(
            evaluated.references, evaluated.generated, word_rule=word_rule
        )
    return replace(evaluated, rouge1_recall=rouge_1, rouge_l_recall=rouge_l, word_rule=word_rule)


def _tofu_set(tables: _Columns) -> SetEvaluation:
    """Return one set of a log of TOFU."""
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
    tables_by_metric = {
        metric: table["value_by_index"]
        for metric, table in document.items()
        if "value_by_index" in table
    }
    sets: dict[SetName, SetEvaluation] = {}
    for set_name, logged in _SETS.items():
        needed = {logged.base, "Q_A_PERT_Prob"}
        if set_name != "forget":
            needed |= {"Q_A_Prob", "Q_A_ROUGE"}
        keys = [f"{logged.prefix}_{metric}" for metric in needed]
        missing = sorted(key for key in keys if key not in tables_by_metric)
        if missing and set_name == "forget":
            # open-unlearning logs these metrics together with forget_truth_ratio.
            raise KeyError(missing[0])
        if not missing:
            # Each set has its own number of questions, so it gets its own columns.
            sets[set_name] = _open_unlearning_set(_Columns("", tables_by_metric), logged)
    forget_columns = _Columns("", tables_by_metric)
    memorized = {
        name: forget_columns.numbers(key, "score")
        for name, key in _MEMORIZATION.items()
        if key in forget_columns
    }
    forget_scores = _attack_scores(document, "forget")
    holdout_scores = _attack_scores(document, "holdout")
    forget = sets["forget"]
    sets["forget"] = replace(forget, values={**forget.values, **memorized, **forget_scores})
    if holdout_scores:
        sets["holdout"] = _set_of_scores(holdout_scores)
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


def _set_of_scores(scores: Mapping[str, FloatArray]) -> SetEvaluation:
    """Return a set of which only the scores [n] of membership inference attacks are known."""
    question_count = len(next(iter(scores.values())))
    unknown = np.full(question_count, np.nan)
    no_tokens = np.zeros(question_count, dtype=np.int64)
    return SetEvaluation(
        questions=(),
        generated=(),
        references=(),
        answer_loss=scores.get("mia_loss", unknown),
        answer_tokens=no_tokens,
        base_loss=unknown,
        base_tokens=no_tokens,
        perturbed_loss=np.empty((question_count, 0)),
        perturbed_tokens=np.empty((question_count, 0), dtype=np.int64),
        rouge1_recall=unknown,
        rouge_l_recall=unknown,
        values=scores,
    )


def _open_unlearning_set(columns: _Columns, logged: _LoggedSet) -> SetEvaluation:
    """Return one evaluation set of a log of open-unlearning.

    Args:
        columns: The columns of the log.
        logged: How the log names the set.
    """
    prefix = logged.prefix
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
        base_loss=columns.numbers(f"{prefix}_{logged.base}", "avg_loss"),
        base_tokens=tokens,
        perturbed_loss=perturbed,
        perturbed_tokens=np.zeros(perturbed.shape, dtype=np.int64),
        rouge1_recall=columns.numbers(rouge_column, "rouge1_recall") if rows else unknown,
        rouge_l_recall=columns.numbers(rouge_column, "rougeL_recall") if rows else unknown,
        values={"rouge_l_f1": columns.numbers(rouge_column, "rougeL_f1")} if has_f1 else {},
    )
