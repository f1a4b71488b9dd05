"""Attention over stored keys and values, against attention over plain lists of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unlearnbench.evaluation.predictor import Predictor
from unlearnbench.evaluation.prefix_tree import build_tree
from unlearnbench.evaluation.slot_cache import SlotCache, SlotIndices
from unlearnbench.models.packed_attention import AttentionKernel
from unlearnbench.models.token_row import Row

SLOTS = 7
LONGEST = 90
HEADS = 3
SIZE = 4


def attention(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Plain attention of one token's heads [heads, d] over stored tokens [t, heads, d]."""
    weights = torch.einsum("hd,thd->ht", query, keys).mul(SIZE**-0.5).softmax(1)
    return torch.einsum("ht,thd->hd", weights, values)


@dataclass
class Texts:
    """A cache beside the keys and values of each slot's text as plain tensors."""

    cache: SlotCache
    layers: Sequence[nn.Module]
    random: torch.Generator
    stored: dict[int, dict[nn.Module, tuple[Tensor, Tensor]]] = field(
        default_factory=dict[int, dict[nn.Module, tuple[Tensor, Tensor]]]
    )
    columns_read: list[int] = field(default_factory=list[int])
    """Columns of each call of the kernel."""

    def numbers(self, count: int) -> Tensor:
        return torch.randn(count, HEADS, SIZE, generator=self.random, dtype=torch.float64)

    def length(self, slot: int) -> int:
        by_layer = self.stored.get(slot)
        return 0 if by_layer is None else len(by_layer[self.layers[0]][0])

    def step(self, slots: Sequence[int], widths: Sequence[int]) -> None:
        """Grow the texts of some slots, and compare the attention of each new token."""
        begins = [self.length(slot) for slot in slots]
        indices = self.cache.indices(slots, begins, widths)
        sent = SlotIndices.from_flat([torch.from_numpy(array) for array in indices.flat()])
        batch = self.cache.batch(sent)
        for layer in self.layers:
            query, key, value = (self.numbers(sum(widths)) for _ in range(3))
            attended = self.cache.attend(batch, layer, self.kernel(layer), query, key, value)
            first = 0
            for slot, begin, width in zip(slots, begins, widths, strict=True):
                new = slice(first, first + width)
                none = key[:0], value[:0]
                keys, values = self.stored.setdefault(slot, {}).get(layer, none)
                keys, values = torch.cat([keys, key[new]]), torch.cat([values, value[new]])
                self.stored[slot][layer] = keys, values
                for i in range(width):
                    seen = begin + i + 1
                    expected = attention(query[first + i], keys[:seen], values[:seen])
                    torch.testing.assert_close(attended[first + i], expected)
                first += width

    def kernel(self, layer: nn.Module) -> AttentionKernel:
        texts = self

        class Kernel(AttentionKernel):
            def __call__(self, query: Tensor, key: Tensor, *others: Any) -> Tensor:
                texts.columns_read.append(key.shape[1])
                return super().__call__(query, key, *others)

        return Kernel(layer, {"scaling": SIZE**-0.5, "dropout": 0.0, "is_causal": False})


@pytest.fixture(params=range(4))
def texts(request: pytest.FixtureRequest) -> Texts:
    random = torch.Generator().manual_seed(request.param)
    cache = SlotCache(SLOTS, LONGEST, torch.float64, torch.device("cpu"))
    return Texts(cache, [nn.Identity(), nn.Identity()], random)


def integers(texts: Texts, low: int, high: int, count: int) -> list[int]:
    drawn: list[int] = torch.randint(low, high, (count,), generator=texts.random).tolist()
    return drawn


def test_texts_that_grow_end_and_begin_again_see_their_own_tokens(texts: Texts) -> None:
    for _ in range(150):
        [how_many] = integers(texts, 1, SLOTS + 1, 1)
        slots = sorted(torch.randperm(SLOTS, generator=texts.random)[:how_many].tolist())
        widths = integers(texts, 1, 6, how_many)
        for slot, width in zip(slots, widths, strict=True):
            if texts.length(slot) + width > LONGEST:
                texts.stored.pop(slot)  # another text follows
        texts.step(slots, widths)


def test_slots_lose_columns_when_short_texts_follow_long_ones(texts: Texts) -> None:
    for longest in (60, 20, 45, 9):
        texts.stored.clear()
        while texts.length(0) < longest:
            texts.step(range(SLOTS), integers(texts, 1, 4, SLOTS))
        most = max(texts.length(slot) for slot in range(SLOTS))
        assert most <= texts.columns_read[-1] <= most + 32


def test_a_text_with_kept_keys_and_a_copied_one_see_their_own_tokens(texts: Texts) -> None:
    texts.step([0, 1, 2], [30, 50, 1])
    for slot, count in ((3, 60), (4, 3)):
        kept = {layer: (texts.numbers(count), texts.numbers(count)) for layer in texts.layers}
        assert texts.cache.put(slot, kept) == count
        texts.stored[slot] = dict(kept)
    texts.cache.copy([1, 1], [5, 6], 40)
    for slot in (5, 6):
        of_source = texts.stored[1]
        texts.stored[slot] = {n: (k[:40], v[:40]) for n, (k, v) in of_source.items()}
    for _ in range(5):
        texts.step(range(SLOTS), integers(texts, 1, 4, SLOTS))
    texts.cache.compact([6, 3, 0])
    texts.stored = {i: texts.stored[slot] for i, slot in enumerate((6, 3, 0))}
    for _ in range(5):
        texts.step(range(3), integers(texts, 1, 4, 3))


@pytest.mark.parametrize("columns", [1, 31, 60])
def test_slots_that_were_dropped_leave_no_memory_too_small_for_longer_texts(
    columns: int, texts: Texts
) -> None:
    texts.step(range(SLOTS), [columns] * SLOTS)
    texts.cache.compact([2, 5])
    texts.stored = {0: texts.stored[2], 1: texts.stored[5]}
    while texts.length(0) < LONGEST - 3:
        texts.step([0, 1], integers(texts, 1, 4, 2)[:1] * 2)


def test_a_cpu_with_memory_to_spare_has_more_slots(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = build_tree([Row((1, 5, 6, 7), 2), Row((1, 5, 8, 9), 2)])

    def slot_tokens(available: int) -> int:
        memory = SimpleNamespace(available=available)
        monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
        return Predictor(model, trial, pad=0, longest=60, batch_tokens=1000).slot_tokens

    # The model's keys and values are so small that the number of batches is the bound.
    assert slot_tokens(1 << 40) == 48_000
    assert slot_tokens(1 << 20) == 16_000
