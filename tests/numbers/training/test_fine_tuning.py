"""Fine-tuning in memory: the steps of a plain loop, and nothing left behind but the weights."""

import copy
import math
from collections.abc import Sequence
from itertools import islice
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from unlearnbench.api.benchmark import Question
from unlearnbench.config.schema import LoRA
from unlearnbench.models.batching import collate
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.epoch_order import draw_epoch
from unlearnbench.models.limits import pad_id
from unlearnbench.models.lora import add_lora
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.training.fine_tuning import SCALE, FineTuner
from unlearnbench.training.trainer import NonFiniteError

HOW: dict[str, Any] = {"steps": 5, "learning_rate": 1e-3, "batch_size": 4}


@pytest.fixture
def tuner(tokenizer: Any) -> FineTuner:
    return FineTuner(Encoder(tokenizer, TEMPLATES["plain"], 200), pad_id(tokenizer))


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(input_ids=torch.arange(3, 40).unsqueeze(0)).logits
    return found


def state(model: nn.Module) -> dict[str, Any]:
    """All of a model but the values of its weights."""
    return {
        "modules": {name: type(module) for name, module in model.named_modules()},
        "weights": {n: (id(p), p.requires_grad, p.grad) for n, p in model.named_parameters()},
        "modes": [module.training for module in model.modules()],
        "hooks": [len(vars(module)["_forward_hooks"]) for module in model.modules()],
        "attributes": [set(vars(module)) for module in model.modules()],
    }


def plain_steps(
    model: Any, tuner: FineTuner, rows: Sequence[Question], schedule: str, seed: int = 0
) -> None:
    """`HOW` by a loop over padded rows."""
    steps, rate, size = HOW["steps"], HOW["learning_rate"], HOW["batch_size"]
    encoded = [tuner.encoder.row(row) for row in rows]
    orders = (draw_epoch(seed, epoch, len(rows), len(rows), 0) for epoch in range(1, 9))
    batches = [order[i : i + size] for order in orders for i in range(0, len(rows), size)]
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.0)
    for step, batch in enumerate(batches[:steps]):
        optimizer.param_groups[0]["lr"] = rate * (1 - step / steps if schedule == "linear" else 1)
        tokens = collate([encoded[draw.index] for draw in batch], 0, torch.device("cpu"))
        found = model(input_ids=tokens.ids, attention_mask=tokens.attention).logits
        nn.functional.cross_entropy(found[tokens.predicts], tokens.labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_steps_are_those_of_a_plain_loop(
    schedule: Literal["constant", "linear"],
    model: Any,
    tuner: FineTuner,
    questions: tuple[Question, ...],
) -> None:
    """Ten rows are steps of 4, 4 and 2 rows, so five steps end within the second epoch."""
    plain, start = copy.deepcopy(model.double()), flat(model)
    assert [*tuner(model, questions, schedule=schedule, **HOW)] == [1, 2, 3, 4, 5]
    plain_steps(plain, tuner, questions, schedule)
    assert (flat(model) - start).abs().max() > 1e-3
    torch.testing.assert_close(flat(model), flat(plain), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("rank", [None, 3])
def test_the_seed_alone_decides(
    rank: int | None, make_model: Any, tuner: FineTuner, questions: tuple[Question, ...]
) -> None:
    """Neither evaluations nor random numbers drawn between steps change the course."""
    found: list[Tensor] = []
    before = torch.random.get_rng_state()
    for seed, between in ((0, False), (0, True), (1, False)):
        model, last = make_model(), torch.zeros(1)
        for _ in tuner(model, questions, lora_rank=rank, seed=seed, **HOW):
            assert not any(module.training for module in model.modules())
            if between:
                logits(model)
                torch.rand(7)
            last = logits(model)
        found.append(last)
        if not between:
            assert torch.equal(torch.random.get_rng_state(), before)
        torch.random.set_rng_state(before)
    assert torch.equal(found[0], found[1])
    assert not torch.allclose(found[0], found[2])


@pytest.mark.parametrize("rank", [None, 3])
@pytest.mark.parametrize("adapter", [False, True])
def test_nothing_but_the_weights_is_left_behind(
    rank: int | None,
    adapter: bool,
    model: Any,
    tuner: FineTuner,
    questions: tuple[Question, ...],
) -> None:
    """With frozen parameters and a run's own adapter, at the end and in the middle."""
    if adapter:
        model = add_lora(model, LoRA(rank=2)).eval()
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter, std=0.02)
    else:
        model.model.embed_tokens.requires_grad_(False)
    before, start = state(model), {n: p.clone() for n, p in model.named_parameters()}
    for taken in (5, 2):
        steps = tuner(model, questions, lora_rank=rank, **HOW)
        assert [*islice(steps, taken)] == [1, 2, 3, 4, 5][:taken]
        steps.close()
        assert state(model) == before
    same = {name for name, p in model.named_parameters() if torch.equal(p, start[name])}
    own = {name for name in start if ".lora_" not in name}
    assert same == (set(start) if rank else set(start) - own), "all own weights, and no others"


@pytest.mark.parametrize("kind", ["llama", "peft", "gpt2"])
def test_an_adapter_is_a_sum_of_low_rank(
    kind: str, model: Any, build: Any, tuner: FineTuner, questions: tuple[Question, ...]
) -> None:
    model = build("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 2}) if kind == "gpt2" else model
    if kind == "peft":
        model = add_lora(model, LoRA(rank=2)).eval()
    model, start = model.double(), logits(model.double())
    steps = tuner(model, questions, lora_rank=3, **HOW)
    [*_] = islice(steps, 5)
    attacked, merged = logits(model), copy.deepcopy(model)
    steps.close()
    assert torch.equal(logits(model), start)
    assert (attacked - start).abs().max() > 1e-3
    adapted: list[str] = []
    for name, layer in merged.named_modules():
        if hasattr(layer, "attack_lora_a"):
            product = SCALE * layer.attack_lora_b @ layer.attack_lora_a
            assert torch.linalg.matrix_rank(product) == 3
            layer.weight.data += product.T if kind == "gpt2" else product
            layer._forward_hooks.clear()
            adapted.append(name)
    assert len(adapted) == (8 if kind == "gpt2" else 14), "every linear layer but the output"
    torch.testing.assert_close(logits(merged), attacked, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rank", [None, 3])
def test_a_collapsed_model_ends_the_attack(
    rank: int | None, model: Any, tuner: FineTuner, questions: tuple[Question, ...]
) -> None:
    before = state(model)
    steps = tuner(model, questions, lora_rank=rank, **HOW)
    assert next(steps) == 1
    with torch.no_grad():
        model.model.norm.weight.fill_(math.nan)
    with pytest.raises(NonFiniteError, match="fine-tuning by an attack: NaN loss at step 2"):
        next(steps)
    assert state(model) == before
