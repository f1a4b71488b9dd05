"""Predictions of the frozen start model, computed once for the same rows and shared by all runs.

They are stored on disk, so that no second model is in memory while a run trains. Token
log-probabilities are stored for every row that a run will draw. For methods that read whole
distributions, the final hidden states are stored, too, and the start model's output layer turns
them into logits when they are read. Inner hidden states are stored for methods that read them.

Sampled answers exist only during training. Their references are computed by the start model itself,
which is then in memory.
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
from unlearnbench.models.epoch_order import TrainingRows
from unlearnbench.models.forward import OutputLayer
from unlearnbench.models.row_states import RowReader, RowStates
from unlearnbench.models.token_row import Row
from unlearnbench.training.optimizers import PRODUCTS

_BATCH_TOKENS = 2048


@dataclass(frozen=True, eq=False)
class ReferenceRows:
    """Stored predictions of the start model, looked up by row."""

    offsets: dict[Row, tuple[int, int]]
    """Position of the first scored token of a row, and the position after its last one."""
    logprobs: Tensor
    """Log-probabilities of the scored tokens of all rows [ΣN]."""
    hidden: Tensor | None = None
    """Final hidden states [ΣN, H]; None if no whole distribution is read."""
    output: OutputLayer | None = None
    """Output layer of the start model; None if no whole distribution is read."""
    states: Mapping[int, Tensor] = field(default_factory=dict[int, Tensor])
    """Hidden states [ΣN, D] by decoder layer."""
    directions: Mapping[int, Tensor] = field(default_factory=dict[int, Tensor])
    """Directions [D] by decoder layer, see `Reference.direction`."""

    def batch(self, rows: Sequence[Row], device: torch.device) -> Reference:
        """Look up the reference of a micro-batch.

        Args:
            rows: The rows of a part, in the order of the micro-batch. There may be none.
            device: Device of the result.
        """
        spans = [self.offsets[row] for row in rows]
        # The empty range gives the index its type if there are no rows.
        index = torch.cat([torch.arange(0), *(torch.arange(begin, end) for begin, end in spans)])
        lengths = torch.tensor([end - begin for begin, end in spans], dtype=torch.long)
        row_of_token = torch.arange(len(rows)).repeat_interleave(lengths)

        tensors = [self.logprobs[index], row_of_token]
        if self.hidden is not None:
            tensors.append(self.hidden[index])
        tensors += [states[index] for states in self.states.values()]
        tensors += self.directions.values()
        sent = iter(send(tensors, device))
        return Reference(
            next(sent),
            next(sent),
            len(rows),
            None if self.hidden is None else next(sent),
            None if self.output is None else self.output.projection,
            {layer: next(sent) for layer in self.states},
            {layer: next(sent) for layer in self.directions},
        )


@dataclass(frozen=True, eq=False)
class LiveReference:
    """The start model itself, for samples, which exist only during training.

    It is in memory together with the trained model, and runs in every step.
    """

    model: Any
    pad: int
    """Id of the padding token."""
    distributions: bool = False
    """Whether whole distributions are read."""
    layers: Sequence[int] = ()
    """Decoder layers whose hidden states are read."""
    longest: int = 0
    """Number of tokens of the longest row that is known in advance, see `RowReader`."""

    @cached_property
    def _reader(self) -> RowReader:
        return RowReader(self.model, self.pad, self.longest)

    def batch(self, rows: Sequence[Row], device: torch.device) -> Reference:
        """Compute the reference of a micro-batch, with the meaning of `ReferenceRows.batch`."""
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
    """Read the start model's predictions of rows from disk, or compute and store them.

    Several processes may write the same file. Each one renames its own file into place, and the
    contents are equal.

    Args:
        load: Returns the start model in evaluation mode. Called only if it is needed.
        weights_hash: Identity of the start model's weights. Tokenizer and template need none,
            because the ids of the rows depend on them.
        rows: The rows, which may contain the same row several times.
        distributions: Store final hidden states, for methods that read whole distributions.
        layers: Store the hidden states after these decoder layers.
        pad: Id of the padding token.
        folder: Folder of the stored predictions.
        precision: Precision of the run's training, in which the start model is computed, too.
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
"""References by part. A number stands for the forget rows' answers after the prompt with this index
in `Needs.prompts`."""


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
    """Load the references of all parts for which `needs` has one.

    Args:
        load: Returns the start model in evaluation mode. Called only if it is needed.
        weights_hash: Identity of the start model's weights.
        rows: The training rows.
        needs: The inputs of the loss.
        seed: Seed of the run, which its rows are drawn by.
        epochs: Number of epochs whose rows are needed.
        pad: Id of the padding token.
        folder: Folder of the stored predictions.
        precision: Precision of the run's training.
    """
    references: dict[Part | int, ReferenceRows | LiveReference] = {}
    predictions_of = partial(
        reference_rows, load, weights_hash, pad=pad, folder=folder, precision=precision
    )
    parts: list[Part | int] = [*sorted(needs.reference), *range(len(needs.prompts))]
    for part in parts:
        distributions = isinstance(part, int) or part in needs.distributions
        layers = sorted(needs.layers) if part in needs.states else ()
        if part == "sample":
            model = copy.deepcopy(load())
            references[part] = LiveReference(model, pad, distributions, layers, rows.longest)
            continue
        distinct = rows.rows_of_epochs(part, needs, seed, epochs)
        known = predictions_of(distinct, distributions=distributions, layers=layers)
        if part == "forget" and needs.questions:
            others, own = (
                _mean_states(predictions_of(ends, distributions=False, layers=layers))
                for ends in rows.prompt_ends
            )
            directions = {layer: others[layer] - own[layer] for layer in layers}
            known = replace(known, directions=directions)
        references[part] = known
    return references


def _mean_states(predictions: ReferenceRows) -> dict[int, Tensor]:
    """Average hidden states over all tokens, by decoder layer."""
    return {layer: at_least_fp32(states).mean(0) for layer, states in predictions.states.items()}


def _key(weights_hash: str, rows: Sequence[Row], stored: Sequence[str | int]) -> str:
    """Return the name of the file with predictions of rows.

    Args:
        weights_hash: Identity of the start model's weights.
        rows: The rows, in the order in which they are stored.
        stored: What is stored beside log-probabilities, and the precision.
    """
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
    """Compute what is stored of all rows, by name and row by row. See `_predicted`."""
    reader = RowReader(model, pad, max((len(row.ids) for row in rows), default=0))
    device = next(model.parameters()).device.type
    products = PRODUCTS.get(precision)
    autocast = torch.autocast(device, products, enabled=products is not None)
    # Batches have rows of similar length, so the parts are put in order at the end.
    parts_by_name: dict[str, dict[int, Tensor]] = {}
    for batch in token_budget([len(row.ids) for row in rows], _BATCH_TOKENS):
        with autocast:
            tensors, _ = _predicted(reader, model, [rows[i] for i in batch], layers)
        counts = [rows[i].scored for i in batch]
        for name, tensor in tensors.items():
            parts = (part.cpu() for part in tensor.split(counts))
            parts_by_name.setdefault(name, {}).update(zip(batch, parts, strict=True))
    return {
        name: torch.cat([part_of_row[i] for i in range(len(rows))])
        for name, part_of_row in parts_by_name.items()
    }


@torch.no_grad()
def _predicted(
    reader: RowReader, model: Any, rows: Sequence[Row], layers: Sequence[int]
) -> tuple[dict[str, Tensor], RowStates]:
    """Compute what a reference stores of some rows.

    Returns:
        Tensors of the scored tokens, row by row: `logprobs` [N], `hidden` [N, H], and [N, D] for
        each `layer.<number>`. Then the model's states, from which they were computed.
    """
    states = reader(model, rows, layers)
    odds, _ = apply_kernel(states.hidden, states.projection, LogOdds(states.labels), eager=False)
    tensors = {"logprobs": logsigmoid(odds), "hidden": states.hidden}
    return tensors | {f"layer.{n}": state for n, state in states.inner.items()}, states


def _read(path: Path) -> dict[str, Tensor] | None:
    """Read stored predictions, memory-mapped.

    Returns:
        None if there is no file, or if it is damaged. A damaged file is warned of.
    """
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
