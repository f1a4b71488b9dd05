"""A pretrained chat model with grouped heads and tied embeddings: `make real test-real`.

What is computed with it is what plain transformers compute. The model comes from the user's cache
alone; where it was not fetched, every test skips.
"""

import copy
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.evaluation import compare
from benchmarks.plain_evaluator import PlainEvaluator
from unlearnbench.api import registry
from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.config.profiles import get_profile
from unlearnbench.config.schema import LoRA
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.sets import evaluation_sets
from unlearnbench.models.chat_template import resolve_template
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.epoch_order import TrainingRows
from unlearnbench.models.gguf import PACKAGED
from unlearnbench.models.limits import pad_id
from unlearnbench.models.loading import load_model
from unlearnbench.models.lora import add_lora
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.models.source import Source
from unlearnbench.models.token_row import Row
from unlearnbench.models.whole_model import load_tokenizer
from unlearnbench.results.records import read_records
from unlearnbench.runs.evaluate_model import model_settings
from unlearnbench.training.objective import Objective
from unlearnbench.training.optimizers import TrainerSettings
from unlearnbench.training.trainer import Trainer

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
NAME = "smollm2-135m"
CONFIG = f"""
name: real
data: {{source: synthetic, authors: 4, questions_per_author: 2, pretraining_authors: 0}}
models: [{{name: smollm2, base: {NAME}, fine_tuned: {NAME}, retain: {{retain50: {NAME}}}}}]
forget_fractions: [0.5]
methods: [{{method: npo, retain: nll}}]
learning_rates: [1.0e-5]
epochs: 2
training: {{batch_size: 2}}
evaluation: {{rows: 2, max_length: 80, every: 2}}
tracking: {{enabled: false}}
"""
"""The start model stands for the retain model, too: what it would have is of no matter here."""


@pytest.fixture(scope="module", autouse=True)
def _fetched(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("markexpr") != "real":
        pytest.skip("takes minutes: make real test-real")
    if not PACKAGED[NAME].path.is_file():
        pytest.skip(f"{PACKAGED[NAME].path} is not there: make real")


@pytest.fixture(scope="module")
def model() -> Any:
    """The model; only read."""
    return load_model(Source(NAME), model_settings(NAME, "chat", "float32")).eval()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(Source(NAME), model_settings(NAME, "chat", "float32"))


@pytest.fixture(scope="module")
def rows(model: Any, tokenizer: Any) -> TrainingRows:
    """Four rows to forget, four to retain, for the model."""
    del model
    data = Synthetic(authors=4, questions_per_author=2, pretraining_authors=0)
    split = load_benchmark(data, (0.5,)).splits[0.5]
    encoder = Encoder(tokenizer, resolve_template("chat", tokenizer), 120)
    return TrainingRows([*map(encoder.row, split.forget)], [*map(encoder.row, split.retain)])


def trainer_of(rows: TrainingRows, tokenizer: Any, *, lora: bool = False) -> Trainer:
    torch.manual_seed(0)
    trained = load_model(Source(NAME), model_settings(NAME, "chat", "float32"))
    trained = add_lora(trained, LoRA(rank=4)) if lora else trained
    objective = Objective(registry.load("methods", "gradient-difference")())
    settings = TrainerSettings(epochs=2, batch_size=2, learning_rate=1e-5, seed=0)
    return Trainer(trained, objective, rows, settings, pad_id(tokenizer))


@torch.no_grad()
def loss_of(model: Any, row: Row) -> float:
    """Mean loss in nats of the scored tokens of a row, which is alone in its batch."""
    ids = torch.tensor([row.ids])
    logits = model(input_ids=ids).logits[0, row.start - 1 : -1].double()
    return float(torch.nn.functional.cross_entropy(logits, ids[0, row.start :]))


def test_the_converted_weights_are_those_that_transformers_read(model: Any) -> None:
    from transformers import AutoModelForCausalLM

    path = PACKAGED[NAME].path
    files: dict[str, Any] = {"gguf_file": path.name}
    read: Any = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **files)
    weights = read.state_dict()
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


def test_prompts_are_the_chat_template_and_the_model_answers(model: Any, tokenizer: Any) -> None:
    question = {"role": "user", "content": "What is the capital of France?"}
    prompt = tokenizer.apply_chat_template([question], add_generation_prompt=True, tokenize=False)
    assert "<|im_start|>user\nWhat is the capital of France?<|im_end|>" in prompt
    ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")
    answer = model.generate(**ids, max_new_tokens=12, do_sample=False)[
        0, ids["input_ids"].size(1) :
    ]
    assert tokenizer.decode(answer, skip_special_tokens=True) == "The capital of France is Paris."


def test_losses_and_greedy_answers_are_those_of_plain_transformers(
    model: Any, tokenizer: Any
) -> None:
    data = Synthetic(authors=4, questions_per_author=2, pretraining_authors=0)
    benchmark = load_benchmark(data, (0.5,))
    template = resolve_template("chat", tokenizer)
    profile = get_profile("tofu", rows=3, max_length=100)
    sets = evaluation_sets(benchmark, 0.5, profile)
    sets = {name: sets[name] for name in ("forget", "retain")}
    arguments = (sets, tokenizer, template, profile, pad_id(tokenizer))
    plain, ours = PlainEvaluator(*arguments), Evaluator(*arguments)
    slow, seen = plain(model), ours(model)
    # Not the library's own mean: in float32 it is 1.3e-4 nats off, over 49 152 classes.
    for name, several in plain.rows.items():
        losses = [[loss_of(model, row) for row in rows] for rows in several]
        each = seen.sets[name]
        np.testing.assert_allclose(each.answer_loss, [one[0] for one in losses], atol=2e-5)
        false = [one[-each.perturbed_loss.shape[1] :] for one in losses]
        np.testing.assert_allclose(each.perturbed_loss, false, atol=2e-5)
    found = compare(model, plain, slow, seen)
    assert not found.different_answers
    assert found.ties <= 1


def test_a_packed_step_has_the_gradient_of_plain_rows(tokenizer: Any, rows: TrainingRows) -> None:
    trainer = trainer_of(rows, tokenizer)
    assert trainer.batches.reader.packs(trainer.model, rows.forget)
    draws = trainer.rows.items(trainer.objective.needs, 0, 1)[:2]
    terms, _ = trainer.passes.backward(trainer.step_rows(draws))
    own = {name: p.grad.clone() for name, p in trainer.trained().items() if p.grad is not None}
    trainer.passes.model.discard_gradient()
    losses: dict[Any, list[tuple[Tensor, int]]] = {"forget": [], "retain": []}
    for draw in draws:
        for part in losses:
            (row,) = rows.of(part, [draw], trainer.objective.needs)
            ids = torch.tensor([row.ids])
            logits = trainer.model(input_ids=ids).logits[0, row.start - 1 : -1]
            loss = torch.nn.functional.cross_entropy(logits, ids[0, row.start :], reduction="sum")
            losses[part].append((loss, len(row.ids) - row.start))
    means = {
        part: sum(loss for loss, _ in each) / sum(count for _, count in each)
        for part, each in losses.items()
    }
    whole: Any = means["retain"] - means["forget"]
    whole.backward()
    assert sum(terms.values()) == pytest.approx(float(whole.detach()), abs=1e-4)
    # The gradients of the two terms cancel in part, which leaves 1e-4 of rounding in float32.
    for name, parameter in trainer.trained().items():
        plain: Any = parameter.grad
        assert (own[name] - plain).norm() < 1e-3 * plain.norm(), name


@pytest.mark.parametrize("lora", [False, True])
def test_a_resumed_run_goes_on_as_if_nothing_had_happened(
    lora: bool, tokenizer: Any, rows: TrainingRows, tmp_path: Path, model: Any
) -> None:
    whole = trainer_of(rows, tokenizer, lora=lora)
    assert sum(p.numel() for p in whole.trained().values()) < model.num_parameters() / (
        20 if lora else 0.9
    )
    [*_] = whole.epoch(1)
    whole.save(tmp_path / "one.safetensors")
    last = [*whole.epoch(2)]
    again = trainer_of(rows, tokenizer, lora=lora)
    again.load(tmp_path / "one.safetensors")
    assert [*again.epoch(2)] == last
    for name, value in whole.trained().items():
        assert torch.equal(value, again.trained()[name]), name


def test_four_bits_are_near_the_weights(model: Any) -> None:
    attack, attacked = registry.load("attacks", "quantization")(), copy.deepcopy(model)
    plain = model.model.layers[0].mlp.up_proj.weight.detach()
    with closing(attack.change(attacked, None)) as points:
        assert next(points) == "nf4"
        coded = attacked.model.layers[0].mlp.up_proj.weight.detach()
        assert 0.02 < float((coded - plain).norm() / plain.norm()) < 0.15
        assert coded.flatten()[:64].unique().numel() <= 16, "a block of 64 has 16 values"


@pytest.mark.usefixtures("model")
def test_two_processes_that_share_the_weights_run_as_one(tmp_path: Path) -> None:
    (tmp_path / "real.yaml").write_text(CONFIG)
    words = ["-m", "unlearnbench", "run", "real.yaml", "--select", "0"]
    two = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    steps: list[list[Any]] = []
    for name, launcher in (("one", ()), ("two", two)):
        count = f"resources.processes={1 + bool(launcher)}"
        more = ["--set", f"name={name}", "--set", count, "--set", "resources.cpu=1"]
        command = [sys.executable, *launcher, *words, *more]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        (run,) = (r for r in read_records(tmp_path / "runs" / name) if r.kind == "run")
        assert run.provenance["processes"] == 1 + bool(launcher)
        steps.append([*run.steps, run.epochs[-1].metrics["probability_forget"]])
    *one, first = steps[0]
    *other, second = steps[1]
    assert [s.loss for s in other] == pytest.approx([s.loss for s in one], rel=1e-4)
    assert second == pytest.approx(first, rel=1e-3)
