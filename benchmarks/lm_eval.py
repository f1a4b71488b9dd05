"""Multiple choice beside lm-evaluation-harness: the same options chosen, and what both take.

pip install lm-eval==0.4.13
python -m benchmarks.lm_eval MODEL FOLDER [--subjects virology …] [--texts] [--chat]

FOLDER has the rows of `Choice` as test/<subject>.jsonl, such as MMLU's.
"""

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from unlearnbench.api.benchmark import Format, Question
from unlearnbench.api.observations import SetEvaluation
from unlearnbench.base.console import Console
from unlearnbench.benchmarks.multiple_choice import Style, choices
from unlearnbench.benchmarks.published_tables import Table, Tables
from unlearnbench.config.profiles import TOFU
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.metrics.choice_accuracy import ChoiceAccuracy
from unlearnbench.models.chat_template import resolve_template

LONGEST = 2048


def harness(
    model: Any, tokenizer: Any, folder: Path, subjects: Sequence[str], style: Style, **more: Any
) -> tuple[float, dict[str, list[list[float]]], dict[str, Any]]:
    """Seconds, log-probabilities [n][k] and results by subject of lm-evaluation-harness.

    more  arguments of its `simple_evaluate`
    """
    package, models, managers = (
        import_module(f"lm_eval{part}") for part in ("", ".models.huggingface", ".tasks")
    )
    kind = "default/_default" if style == "letters" else "continuation/_continuation"
    included = Path(str(package.__file__)).parent / f"tasks/mmlu/{kind}_template_yaml"
    with tempfile.TemporaryDirectory() as part:
        for subject in subjects:
            task = {
                "include": str(included),
                "task": f"own_{subject}",
                "dataset_path": "json",
                "dataset_kwargs": {"data_files": {"test": str(folder / f"test/{subject}.jsonl")}},
                "fewshot_split": None,
                "description": opening(subject, style),
            }
            (Path(part) / f"{subject}.yaml").write_text(yaml.safe_dump(task), encoding="utf-8")
        tasks = managers.TaskManager(include_path=part, include_defaults=False)
        wrapped = models.HFLM(model, tokenizer=tokenizer, batch_size=16, max_length=LONGEST)
        begin = time.perf_counter()
        names = [f"own_{subject}" for subject in subjects]
        result: Any = package.simple_evaluate(
            wrapped, tasks=names, task_manager=tasks, bootstrap_iters=0, **more
        )
        seconds = time.perf_counter() - begin
    logprobs = {
        subject: [
            [float(value[0]) for value in sample["filtered_resps"]]
            for sample in sorted(result["samples"][f"own_{subject}"], key=lambda s: s["doc_id"])
        ]
        for subject in subjects
    }
    return seconds, logprobs, {s: result["results"][f"own_{s}"] for s in subjects}


def opening(subject: str, style: Style) -> str:
    """The description of a task."""
    kind = "multiple choice questions" if style == "letters" else "questions"
    return f"The following are {kind} (with answers) about {subject.replace('_', ' ')}.\n\n"


def questions(folder: Path, subject: str, style: Style, format_: Format = "text") -> list[Question]:
    """The rows of a subject."""
    text = opening(subject, style)
    rows = choices(Tables(folder, str(folder)), Table("test", subject))
    return [row.row(style, text, place, format_) for place, row in rows]


def ours(
    model: Any, tokenizer: Any, sets: Mapping[str, Sequence[Question]]
) -> tuple[float, Mapping[str, SetEvaluation]]:
    """Seconds, tokenization included, and the evaluated sets."""
    begin = time.perf_counter()
    profile = replace(TOFU, max_length=LONGEST, rows=None)
    template = resolve_template("auto", tokenizer)
    evaluator = Evaluator(sets, tokenizer, template, profile, tokenizer.eos_token_id)
    result = evaluator(model).sets
    return time.perf_counter() - begin, result


def main(words: list[str] | None = None) -> int:
    """Print differences and times."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--subjects", nargs="*", default=["virology"])
    parser.add_argument("--texts", action="store_true", help="score texts, not letters")
    parser.add_argument("--chat", action="store_true", help="ask in the model's chat template")
    given = parser.parse_args(words)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    style: Style = "texts" if given.texts else "letters"
    model = AutoModelForCausalLM.from_pretrained(given.model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    format_: Format = "chat" if given.chat else "text"
    sets = {s: questions(given.folder, s, style, format_) for s in given.subjects}
    seconds, result = ours(model, tokenizer, sets)
    other, logprobs, results = harness(
        model, tokenizer, given.folder, given.subjects, style, apply_chat_template=given.chat
    )
    console = Console()
    for subject, seen in result.items():
        gap = max(
            abs(a - b)
            for row, theirs in zip(own_logprobs(seen), logprobs[subject], strict=True)
            for a, b in zip(row, theirs, strict=True)
        )
        metrics = {
            "acc": ChoiceAccuracy(per="option"),
            "acc_norm": ChoiceAccuracy(per="character"),
        }
        scores = {
            key: float(metric.per_example(seen).mean())
            for key, metric in metrics.items()
            if f"{key},none" in results[subject]
        }
        console.print(f"{subject:26} {len(seen.questions):4} rows  |Δ log p| ≤ {gap:.1e}")
        for key, value in scores.items():
            console.print(f"    {key:8} {value:.6f}  {results[subject][f'{key},none']:.6f}")
    console.print(f"seconds: {seconds:.1f}, {other:.1f} ({other / seconds:.2f}×)")
    return 0


def own_logprobs(seen: SetEvaluation) -> list[list[float]]:
    """[n][k] sums over the options' tokens, in the options' order."""
    rows: list[list[float]] = []
    places: Any = seen.answer_index
    for i, place in enumerate(places):
        others = -(seen.perturbed_loss[i] * seen.perturbed_tokens[i])
        present = others[~np.isnan(others)].tolist()
        answer = float(-seen.answer_loss[i] * seen.answer_tokens[i])
        rows.append([*present[:place], answer, *present[place:]])
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
