"""Predictions of the frozen start model, computed once per content and shared by all runs.

So no second model is in memory while a run trains. Token log-probabilities are stored for every row
that a run will draw. For methods that read whole distributions, the final hidden states are stored
too, and the start model's output layer turns them into logits when they are read; inner hidden
states are stored for methods that read them.
"""

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from unlearnbench.api.method import Needs, Part
from unlearnbench.base.atomic import atomic_path
from unlearnbench.base.deferred_warnings import warn_later
from unlearnbench.base.hashing import tensors_hash
from unlearnbench.config.precision import Precision
from unlearnbench.losses.chunked import apply_kernel
from unlearnbench.losses.kernels import LogOdds
from unlearnbench.losses.lm_head import at_least_fp32
from unlearnbench.losses.predictions import Reference
from unlearnbench.models.batching import send, token_budget
from unlearnbench.models.encoding import Row
from unlearnbench.models.epoch_order import TrainingRows
from unlearnbench.models.forward import OutputLayer
from unlearnbench.models.row_states import RowReader, RowStates
from unlearnbench.training.optimizers import PRODUCTS

_BATCH_TOKENS = 2048


@dataclass(frozen=True, eq=False)
class ReferenceRows:
    """The start model's predictions for a set of rows, looked up by row."""

    offsets: dict[Row, tuple[int, int]]
    logprobs: Tensor
    """[ΣN]"""
    hidden: Tensor | None = None
    """[ΣN, H]"""
    output: OutputLayer | None = None
    states: Mapping[int, Tensor] = field(default_factory=dict[int, Tensor])
    """[ΣN, D] by decoder layer."""
    directions: Mapping[int, Tensor] = field(default_factory=dict[int, Tensor])
    """[D] by decoder layer, see `Reference.direction`."""

    def batch(self, rows: Sequence[Row], device: torch.device) -> Reference:
        """The reference of a micro-batch, token for token as `collate` orders them."""
        spans = [self.offsets[row] for row in rows]
        # The first, and the type, for no rows at all.
        index = torch.cat([torch.arange(0), *(torch.arange(begin, end) for begin, end in spans)])
        lengths = torch.tensor([end - begin for begin, end in spans], dtype=torch.long)
        states = [*([] if self.hidden is None else [self.hidden]), *self.states.values()]
        of = torch.arange(len(rows)).repeat_interleave(lengths)
        rowwise = [self.logprobs[index], of, *(tensor[index] for tensor in states)]
        logprobs, of, *rest = send([*rowwise, *self.directions.values()], device)
        hidden = None if self.hidden is None else rest.pop(0)
        projection = None if self.output is None else self.output.projection
        inner = dict(zip(self.states, rest, strict=False))  # behind them are the directions
        directions = dict(zip(self.directions, rest[len(inner) :], strict=True))
        return Reference(logprobs, of, len(rows), hidden, projection, inner, directions)


@dataclass(frozen=True, eq=False)
class LiveReference:
    """The start model itself, for rows that exist only during training: samples.

    It is in memory with the trained model, and runs in every step.
    """

    model: Any
    pad: int
    distributions: bool = False
    layers: Sequence[int] = ()
    longest: int = 0
    """Tokens of the longest row that is known in advance, see `RowReader`."""

    @cached_property
    def _reader(self) -> RowReader:
        return RowReader(self.model, self.pad, self.longest)

    def batch(self, rows: Sequence[Row], device: torch.device) -> Reference:
        """The reference of a micro-batch, as `ReferenceRows.batch` gives it."""
        tensors, states = _predicted(self._reader, self.model, rows, self.layers)
        return Reference(
            tensors["logprobs"].to(device),
            states.rows.to(device),
            len(rows),
            tensors["hidden"].to(device) if self.distributions else None,
            states.projection if self.distributions else None,
            {layer: tensors[f"layer.{layer}"].to(device) for layer in self.layers},
        )


def reference_rows(
    load: Callable[[], Any],
    weights_hash: str,
    rows: Sequence[Row],
    *,
    distributions: bool,
    layers: Sequence[int] = (),
    pad: int,
    folder: Path,
    precision: Precision = "fp32",
) -> ReferenceRows:
    """The start model's token log-probabilities of `rows`, from disk where they are stored.

    load           returns the start model, in evaluation mode; called only if needed
    weights_hash   identity of those weights (and of tokenizer and template, through the rows' ids)
    distributions  store final hidden states too, for methods that read whole distributions
    layers         store the hidden states after these decoder layers too
    precision      of the run's training: bf16 and fp16 for autocast

    Several processes may write the same file: each renames its own into place, and their contents
    are equal.
    """
    distinct = sorted(set(rows), key=lambda row: (row.ids, row.start))
    stored = ["hidden"] if distributions else []
    stored += [precision] if precision in PRODUCTS else []
    path = folder / f"{_key(weights_hash, distinct, [*stored, *layers])}.safetensors"
    tensors = _read(path)
    model = None
    if tensors is None:
        model = load()
        tensors = _compute(model, distinct, pad, layers, precision)
        if not distributions:
            del tensors["hidden"]
        _write(tensors, path)
    ends = accumulate(row.scored for row in distinct)
    offsets = {row: (end - row.scored, end) for row, end in zip(distinct, ends, strict=True)}
    output = OutputLayer(model if model is not None else load()) if distributions else None
    states = {layer: tensors[f"layer.{layer}"] for layer in layers}
    return ReferenceRows(offsets, tensors["logprobs"], tensors.get("hidden"), output, states)


ReferenceParts = Mapping[Part | int, ReferenceRows | LiveReference]
"""By part; by number for the forget rows' answers behind a prompt of the method's needs."""


def load_references(
    load: Callable[[], Any],
    weights_hash: str,
    rows: TrainingRows,
    needs: Needs,
    *,
    seed: int,
    epochs: int,
    pad: int,
    folder: Path,
    precision: Precision = "fp32",
) -> ReferenceParts:
    """The references of each part for which `needs` has one, for all of a run's epochs."""
    rowss: dict[Part | int, ReferenceRows | LiveReference] = {}
    computed = partial(
        reference_rows, load, weights_hash, pad=pad, folder=folder, precision=precision
    )
    every: list[Part | int] = [*sorted(needs.reference), *range(len(needs.prompts))]
    for part in every:
        distributions = isinstance(part, int) or part in needs.distributions
        layers = sorted(needs.layers) if part in needs.states else ()
        if part == "sample":  # its rows exist only during training
            model = copy.deepcopy(load())
            rowss[part] = LiveReference(model, pad, distributions, layers, rows.longest)
            continue
        distinct = rows.rows_of_epochs(part, needs, seed, epochs)
        known = computed(distinct, distributions=distributions, layers=layers)
        if part == "forget" and needs.questions:
            ends = (computed(r, distributions=False, layers=layers) for r in rows.prompt_ends)
            means = [{n: at_least_fp32(s).mean(0) for n, s in e.states.items()} for e in ends]
            known = replace(known, directions={n: means[0][n] - means[1][n] for n in layers})
        rowss[part] = known
    return rowss


def _key(weights_hash: str, rows: Sequence[Row], stored: Sequence[str | int]) -> str:
    digest = hashlib.sha256(f"{weights_hash}:{stored}".encode())
    for row in rows:
        numbers = [len(row.ids), row.start, *row.ids, *row.masked]
        digest.update(np.asarray(numbers, dtype=np.int64).tobytes())
    return digest.hexdigest()[:24]


@torch.no_grad()
def _compute(
    model: nn.Module,
    rows: Sequence[Row],
    pad: int,
    layers: Sequence[int],
    precision: Precision,
) -> dict[str, Tensor]:
    reader = RowReader(model, pad, max((len(row.ids) for row in rows), default=0))
    device = next(model.parameters()).device.type
    products = PRODUCTS.get(precision)
    autocast = torch.autocast(device, products, enabled=products is not None)
    tensorss: dict[str, dict[int, Tensor]] = {}
    for batch in token_budget([len(row.ids) for row in rows], _BATCH_TOKENS):
        with autocast:
            tensors, _ = _predicted(reader, model, [rows[i] for i in batch], layers)
        counts = [rows[i].scored for i in batch]
        for name, tensor in tensors.items():
            split = (part.cpu() for part in tensor.split(counts))
            tensorss.setdefault(name, {}).update(zip(batch, split, strict=True))
    return {
        name: torch.cat([parts[i] for i in range(len(rows))]) for name, parts in tensorss.items()
    }


@torch.no_grad()
def _predicted(
    reader: RowReader, model: Any, rows: Sequence[Row], layers: Sequence[int]
) -> tuple[dict[str, Tensor], RowStates]:
    """Token log-probabilities and hidden states by name, row by row; and the states they are of."""
    states = reader(model, rows, layers)
    odds, _ = apply_kernel(states.hidden, states.projection, LogOdds(states.labels), eager=False)
    tensors = {"logprobs": logsigmoid(odds), "hidden": states.hidden}
    return tensors | {f"layer.{n}": state for n, state in states.inner.items()}, states


def _read(path: Path) -> dict[str, Tensor] | None:
    """The tensors, memory-mapped; None, with a warning where the file is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if tensors_hash(tensors) == (file.metadata() or {}).get("sha256"):
                return tensors
    except FileNotFoundError:
        return None
    except SafetensorError:
        pass  # a truncated file is damaged, too
    warn_later(f"{path}: the start model's predictions are damaged; they are computed again")
    return None


def _write(tensors: dict[str, Tensor], path: Path) -> None:
    with atomic_path(path) as part:
        save_file(tensors, part, metadata={"sha256": tensors_hash(tensors)})
