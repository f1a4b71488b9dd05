"""Rows that training or evaluation cuts are counted, and the longest of them is named."""

from pathlib import Path
from typing import Any

from unlearnbench.api.benchmark import Question
from unlearnbench.base.deferred_warnings import drain
from unlearnbench.config.schema import EvaluationSettings, ModelSettings, Preparation
from unlearnbench.config.training_settings import TrainingSettings
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.results.sweep_folder import claim_folder
from unlearnbench.runs.plan_sweep import plan_sweep
from unlearnbench.runs.prerequisites import execute_task, preparation_tasks
from unlearnbench.runs.row_warnings import cut_warning
from unlearnbench.runs.run import run_epochs

from ..small_run import ARCHITECTURE, config_of

MOST = 64


def test_the_line_has_the_count_and_the_longest(
    tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    whole = Encoder(tokenizer, TEMPLATES["plain"], 10_000)
    lengths = [len(whole.row(question).ids) for question in questions]
    least = max(whole.row(question).start for question in questions) + 1
    for most in range(least, max(lengths) + 1):
        encoder = Encoder(tokenizer, TEMPLATES["plain"], most)
        rows = [encoder.row(question) for question in questions]
        line = cut_warning("tiny", rows, questions, encoder, "training.max_length")
        cut = sum(length > most for length in lengths)
        if not cut:
            assert line is None
            continue
        assert line is not None
        assert line.startswith(
            f"tiny: {cut} of {len(questions)} rows are longer than training.max_length "
            f"({most} tokens), the longest"
        )
        assert f" has {max(lengths)}: they are cut there" in line


def test_a_sweep_tells_it_once_of_preparation_evaluation_and_training(tmp_path: Path) -> None:
    preparation = Preparation(
        epochs=1, base_epochs=1, optimizer="muon", learning_rate=3e-3, max_length=MOST
    )
    config = config_of(
        tmp_path,
        models=(
            ModelSettings(
                name="tiny", base="tiny", architecture=ARCHITECTURE, preparation=preparation
            ),
        ),
        training=TrainingSettings(batch_size=4, max_length=MOST),
        evaluation=EvaluationSettings(rows=4, max_length=MOST),
        epochs=1,
    )
    plan, _ = plan_sweep(config)
    folder = claim_folder(plan)
    drain()
    for task in preparation_tasks(config, plan.runs, folder):
        execute_task(task, config, folder)
    lines = [line for line in drain() if "longe" in line]
    (trained,) = (line for line in lines if "preparation.max_length" in line)
    assert trained.startswith("tiny: ")
    (scored,) = (line for line in lines if "evaluation.max_length" in line)
    assert f"true answers are cut at evaluation.max_length ({MOST} tokens" in scored
    assert int(scored.partition("the longest has ")[2].partition(":")[0]) > MOST
    for _ in run_epochs(plan.runs[0], config, folder):
        pass
    (line,) = (line for line in drain() if "longer than" in line)
    assert line.startswith("tiny, forget 0.5: ")
    assert f"longer than training.max_length ({MOST} tokens), the longest" in line
