"""Rows through a model, packed or padded: states and gradients of one row at a time."""

from typing import Any

import pytest
import torch
from torch import Tensor

from unlearnbench.losses.predictions import Predictions
from unlearnbench.models.row_states import RowReader
from unlearnbench.models.token_row import Row

ROWS = [Row(tuple(range(5, 5 + n)), start) for n, start in ((9, 4), (3, 1), (24, 9), (6, 5))]


def loss_of(logprobs: Tensor) -> Tensor:
    return (logprobs * torch.linspace(-1, 2, len(logprobs)).to(logprobs)).sum()


def gradients(model: Any, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def test_equals_one_row_at_a_time(architecture: tuple[Any, bool]) -> None:
    model, packed = architecture
    kind = model.config.model_type
    model = model.double() if kind != "mamba" else model  # its scan is fp32
    exact = 1e-3 if kind in ("mamba", "opt", "gemma2") else 1e-6  # or their softmax is
    near: Any = {"rtol": exact, "atol": exact / 100}
    reader = RowReader(model, pad=0)
    assert reader.packs(model, ROWS) is packed
    found = reader(model, ROWS, [1])
    parts = (found.hidden, found.projection, found.labels, found.rows)
    predictions = Predictions(*parts, len(ROWS), len(found.labels), len(ROWS))
    truth, inner = [], []
    for row in ROWS:
        output = model(torch.tensor([row.ids]), output_hidden_states=True)
        places = slice(row.start - 1, -1)
        labels = torch.tensor(row.ids[row.start :]).unsqueeze(1)
        truth.append(output.logits[0, places].log_softmax(1).gather(1, labels).squeeze(1))
        inner.append(output.hidden_states[1][0, places])
    torch.testing.assert_close(predictions.token_logprob, torch.cat(truth), **near)
    torch.testing.assert_close(found.inner[1], torch.cat(inner), **near)
    assert found.rows.tolist() == [i for i, row in enumerate(ROWS) for _ in range(row.scored)]
    expected = gradients(model, loss_of(torch.cat(truth)))
    for name, gradient in gradients(model, loss_of(predictions.token_logprob)).items():
        error = (gradient - expected[name]).norm()
        assert error <= exact * (expected[name].norm() + 1e-3), name


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_activations_are_packed_as_well(
    architecture: tuple[Any, bool], reentrant: bool
) -> None:
    """They are computed again after the model has its own attention back."""
    model, packed = architecture
    if model.config.model_type == "mamba":
        pytest.skip("its scan is fp32")
    model = model.double().train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
    plain = RowReader(model, pad=0)
    expected = gradients(model, loss_of(plain(model, ROWS).hidden[:, 0]))
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    reader = RowReader(model, pad=0)
    assert reader.packs(model, ROWS) is packed
    for name, gradient in gradients(model, loss_of(reader(model, ROWS).hidden[:, 0])).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-8, atol=1e-10)
    assert model.training, "the trial leaves the model as it was"


@pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)  # peft
def test_an_adapter_on_the_output_layer_is_not_fused(model: Any) -> None:
    """Its own weight is not all of the map: the model makes the logits."""
    from peft import LoraConfig, get_peft_model

    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model.config.tie_word_embeddings = False
    adapted: Any = get_peft_model(model, LoraConfig(target_modules=["lm_head"]))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(0))
    reader = RowReader(adapted, pad=0)
    assert reader.output is None
    found = reader(adapted, ROWS[:1])
    logits = adapted(torch.tensor([ROWS[0].ids])).logits[0, ROWS[0].start - 1 : -1]
    torch.testing.assert_close(found.projection(found.hidden), logits, rtol=1e-4, atol=1e-4)
