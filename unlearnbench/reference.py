"""What the frozen start model says, computed once per content and shared by all runs.

There is no second model in memory while a run trains. Token log-probabilities are kept for every
row that a run will draw; where a method reads whole distributions, the final hidden states are kept
too, and the start's output layer turns them into logits when they are read. Where it reads inner
hidden states, these are kept.
"""

from __future__ import annotations

import copy
import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from unlearnbench.data.batching import send, token_budget
from unlearnbench.data.draws import TrainingRows
from unlearnbench.data.encoding import Row
from unlearnbench.digests import tensors_hash
from unlearnbench.fused import fused
from unlearnbench.kernels import LogOdds
from unlearnbench.losses import Reference
from unlearnbench.method import Needs, Part
from unlearnbench.models.forward import OutputLayer
from unlearnbench.models.rows import RowReader, RowStates
from unlearnbench.notices import notice

Precision = Literal["fp32", "bf16"]


@dataclass(frozen=True, eq=False)
class ReferenceRows:
    """The start model's answers to a set of rows, looked up by row."""

    offsets: dict[Row, tuple[int, int]]
    logprobs: Tensor
    """[ΣN]"""
    hidden: Tensor | None = None
    """[ΣN, H]"""
    output: OutputLayer | None = None
    states: Mapping[int, Tensor] = field(default_factory=dict[int, Tensor])
    """[ΣN, D] by decoder layer."""

    def batch(self, rows: Sequence[Row], device: torch.device) -> Reference:
        """The reference of a micro-batch, token for token as `collate` orders them."""
        tensors = self.tensors(rows)
        sent = send([*tensors.values()], device)
        return self.reference(dict(zip(tensors, sent, strict=True)), len(rows))

    def tensors(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """What the reference of a micro-batch is made of, by name, on the CPU."""
        spans = [self.offsets[row] for row in rows]
        index = torch.cat([torch.arange(begin, end) for begin, end in spans])
        lengths = torch.tensor([end - begin for begin, end in spans])
        found = {
            "logprobs": self.logprobs[index],
            "rows": torch.arange(len(rows)).repeat_interleave(lengths),
        }
        if self.hidden is not None:
            found["hidden"] = self.hidden[index]
        return found | {f"layer.{n}": states[index] for n, states in self.states.items()}

    def reference(self, tensors: Mapping[str, Tensor], count: int) -> Reference:
        """The reference of `count` rows, of their `tensors` on any device."""
        return Reference(
            tensors["logprobs"],
            tensors["rows"],
            count,
            tensors.get("hidden"),
            None if self.output is None else self.output.projection,
            {layer: tensors[f"layer.{layer}"] for layer in self.states},
        )


@dataclass(frozen=True, eq=False)
class LiveReference:
    """The start model itself, for rows that nobody knows before they are there: samples.

    It is in memory beside the model that is trained, and runs in every step.
    """

    model: Any
    pad: int
    distributions: bool = False
    layers: Sequence[int] = ()

    @cached_property
    def _reader(self) -> RowReader:
        return RowReader(self.model, self.pad)

    def batch(self, rows: Sequence[Row], device: torch.device) -> Reference:
        """The reference of a micro-batch, as `ReferenceRows.batch` gives it."""
        made, states = _predicted(self._reader, self.model, rows, self.layers)
        return Reference(
            made["logprobs"].to(device),
            states.rows.to(device),
            len(rows),
            made["hidden"].to(device) if self.distributions else None,
            states.projection if self.distributions else None,
            {layer: made[f"layer.{layer}"].to(device) for layer in self.layers},
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
    batch_tokens: int = 2048,
) -> ReferenceRows:
    """The start model's token log-probabilities of `rows`, from disk where they are known.

    load           returns the start model, in evaluation mode; called only where it is needed
    weights_hash   identity of those weights (and of tokenizer and template, through the rows' ids)
    distributions  keep final hidden states too, for methods that read whole distributions
    layers         keep the hidden states after these decoder layers too
    precision      of the run, which the policy is computed in: bf16 for autocast

    Several processes may want the same file: each writes its own and renames it into place, and
    equal content makes it irrelevant which one stays.
    """
    distinct = sorted(set(rows), key=lambda row: (row.ids, row.start))
    kept = [*(["hidden"] if distributions else []), *(["bf16"] if precision == "bf16" else [])]
    path = folder / f"{_key(weights_hash, distinct, [*kept, *layers])}.safetensors"
    tensors = _read(path)
    model = None
    if tensors is None:
        model = load()
        tensors = _compute(model, distinct, pad, layers, precision, batch_tokens)
        if not distributions:
            del tensors["hidden"]
        _write(tensors, path)
    offsets, begin = {}, 0
    for row in distinct:
        count = row.scored
        offsets[row] = (begin, begin + count)
        begin += count
    output = None
    if distributions:
        output = OutputLayer(model if model is not None else load())
    states = {layer: tensors[f"layer.{layer}"] for layer in layers}
    return ReferenceRows(offsets, tensors["logprobs"], tensors.get("hidden"), output, states)


ReferenceParts = Mapping[Part, ReferenceRows | LiveReference]


def references_of(
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
    """The start model's word on each part of which `needs` reads it, for all of a run's epochs."""
    found: dict[Part, ReferenceRows | LiveReference] = {}
    for part in sorted(needs.reference):
        distributions = part in needs.distributions
        layers = sorted(needs.layers) if part in needs.states else ()
        if part == "sample":  # nobody knows its rows before they are there
            found[part] = LiveReference(copy.deepcopy(load()), pad, distributions, layers)
            continue
        found[part] = reference_rows(
            load,
            weights_hash,
            rows.drawn(part, needs, seed, epochs),
            distributions=distributions,
            layers=layers,
            pad=pad,
            folder=folder,
            precision=precision,
        )
    return found


def _key(weights_hash: str, rows: Sequence[Row], kept: Sequence[str | int]) -> str:
    digest = hashlib.sha256(f"{weights_hash}:{kept}".encode())
    for row in rows:
        digest.update(np.asarray([len(row.ids), row.start, *row.ids], dtype=np.int64).tobytes())
    return digest.hexdigest()[:24]


@torch.no_grad()
def _compute(
    model: nn.Module,
    rows: Sequence[Row],
    pad: int,
    layers: Sequence[int],
    precision: Precision,
    batch_tokens: int,
) -> dict[str, Tensor]:
    reader = RowReader(model, pad)
    device = next(model.parameters()).device.type
    autocast = torch.autocast(device, torch.bfloat16, enabled=precision == "bf16")
    found: dict[str, dict[int, Tensor]] = {}
    for batch in token_budget([len(row.ids) for row in rows], batch_tokens):
        with autocast:
            made, _ = _predicted(reader, model, [rows[i] for i in batch], layers)
        counts = [rows[i].scored for i in batch]
        for name, tensor in made.items():
            split = (part.cpu() for part in tensor.split(counts))
            found.setdefault(name, {}).update(zip(batch, split, strict=True))
    return {name: torch.cat([parts[i] for i in range(len(rows))]) for name, parts in found.items()}


@torch.no_grad()
def _predicted(
    reader: RowReader, model: Any, rows: Sequence[Row], layers: Sequence[int]
) -> tuple[dict[str, Tensor], RowStates]:
    """Token log-probabilities and hidden states by name, row by row; and all that was read."""
    states = reader(model, rows, layers)
    odds, _ = fused(states.hidden, states.projection, LogOdds(states.labels), eager=False)
    made = {"logprobs": logsigmoid(odds), "hidden": states.hidden}
    return made | {f"layer.{n}": state for n, state in states.inner.items()}, states


def _read(path: Path) -> dict[str, Tensor] | None:
    """The tensors, memory-mapped; None where the file is missing, or damaged, which is told."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if tensors_hash(tensors) == (file.metadata() or {}).get("sha256"):
                return tensors
    except FileNotFoundError:
        return None
    except SafetensorError:
        pass  # cut off, which is damage like any other
    notice(f"{path}: what the start model says is damaged there; it is computed again")
    return None


def _write(tensors: dict[str, Tensor], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    os.close(handle)
    save_file(tensors, name, metadata={"sha256": tensors_hash(tensors)})
    Path(name).replace(path)
