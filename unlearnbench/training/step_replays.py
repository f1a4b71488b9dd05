"""Passes of training steps through a small model, recorded as CUDA graphs and replayed.

A step of a small model consists of thousands of kernels that take microseconds each, so the GPU
waits for the host to start them. A recorded graph starts all kernels of a pass at once. Two graphs
are recorded for each shape of packed rows (`ModelRows.shape`): forward through the model, and back
through it. What lies between them is computed as without recordings:

    rows ──copied──▶ [graph: forward] ──▶ states of all tokens
                                               │  select scored tokens, loss of the method, its
                                               ▼  gradients
    gradients of the weights ◀── [graph: back] ◀──copied── gradients of the states

So a loss may do anything: wait for the GPU, depend on values, draw random numbers. Nothing of a
method is recorded, and numbers such as the tokens of a step, which a graph would repeat, stay out
of it. The gradients are added up in the order of autograd, so the numbers are equal with and
without recordings.

Few micro-batches have the same number of tokens, so filler rows are packed with them
(`filler_rows.py`). That is done whether or not anything is recorded.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from unlearnbench.base.distributed import world_size
from unlearnbench.models.dropout import draws_random_numbers
from unlearnbench.models.replays import can_record, never_waiting
from unlearnbench.models.row_states import ModelRows, RowReader, RowStates
from unlearnbench.models.token_row import Row
from unlearnbench.training.trained_model import TrainedModel

MOST_WEIGHTS = 600_000_000
"""Weights of the largest model whose passes are recorded. The matrix products of larger models keep
a GPU busy while the host starts the next kernels."""
_TIMES = 2
"""How often a shape comes before it is recorded. A recording takes as long as some passes."""
_MOST = 12
"""Largest number of shapes that are recorded."""
_DEVICES = frozenset({"cuda"})
"""Kinds of devices on which filler rows are packed."""

_Shape = tuple[tuple[int, ...], tuple[int, ...]]
"""Shape of packed rows, and the decoder layers whose states are read."""
_Places = tuple[tuple[int, bool], ...]
"""Address of each weight and buffer, and whether it is trained."""


class Graph(Protocol):
    """Work that is recorded once and then replayed."""

    def record(self, work: Callable[[], None]) -> None:
        """Record work without its results: tensors that it makes have no values yet."""
        ...

    def replay(self) -> None:
        """Do the recorded work again, with the values that its inputs have now."""
        ...


class CudaGraph:
    """A graph of kernels on a GPU."""

    def __init__(self, pool: Any) -> None:
        """Make an empty graph.

        Args:
            pool: Memory that it shares with other graphs, none of which runs at the same time.
        """
        self._graph: Any = torch.cuda.CUDAGraph()
        self._pool = pool

    def record(self, work: Callable[[], None]) -> None:
        """Record the kernels that work would start, see `Graph`."""
        with torch.cuda.graph(self._graph, pool=self._pool, capture_error_mode="thread_local"):
            work()

    def replay(self) -> None:
        """Start all recorded kernels."""
        self._graph.replay()


class _ModelPass:
    """The pass of rows of one shape through the model, and the way back through it."""

    def __init__(
        self,
        model: TrainedModel,
        reader: RowReader,
        rows: ModelRows,
        layers: Sequence[int],
        gradients: Sequence[Tensor],
    ) -> None:
        """Keep what the pass reads and writes. Nothing is recorded yet.

        Args:
            model: The model.
            reader: Its reader.
            rows: The first rows. Their tensors are overwritten by those of later rows.
            layers: Decoder layers whose states are read.
            gradients: Memory for the gradients of all trained weights. Other passes share it.
        """
        self.gradients = gradients
        self._model = model
        self._reader = reader
        self._rows = rows
        self._layers = layers
        self._forward: Graph | None = None
        self._back: Graph | None = None
        self._states: list[Tensor] = []
        """Final hidden states of all tokens, then the states of each of the layers."""
        self._leaves: list[Tensor] = []
        """The same states without the model behind them. The loss is computed from these."""
        self._given: dict[int, Tensor] = {}
        """Gradients of states, by their index in `_states`, from which the way back begins."""
        self._reached: list[int] = []
        """Indices of the weights that the way back gives a gradient."""

    def try_out(self) -> None:
        """Do all work of the pass once.

        Raises:
            RuntimeError: The host waits for the GPU. Such work cannot be recorded, and a recording
                that fails there would leave torch's random numbers unusable.
        """
        with never_waiting():
            self._run_forward()
            self._given = {
                index: torch.zeros_like(state)
                for index, state in enumerate(self._states)
                if state.requires_grad
            }
            self._run_back()
        self._states = []
        self._given = {}

    def record_forward(self, graph: Graph) -> None:
        """Record the way forward."""
        # The graph must not read casts of weights that were made outside of it, and nothing outside
        # may read casts that exist only inside.
        torch.clear_autocast_cache()
        try:
            graph.record(self._run_forward)
        finally:
            torch.clear_autocast_cache()
        self._forward = graph

    def forward(self, rows: ModelRows) -> RowStates:
        """Replay the way forward for other rows."""
        if self._forward is None or self._reader.output is None:
            raise LookupError("the way forward is not recorded")
        for own, tensor in zip(self._rows.read, rows.read, strict=True):
            if own is not tensor:
                own.copy_(tensor)
        self._forward.replay()
        self._leaves = [_copied_flag(state) for state in self._states]
        hidden, *inner = [leaf.index_select(0, rows.where) for leaf in self._leaves]
        states_of_layer = dict(zip(self._layers, inner, strict=True))
        projection = self._reader.output.projection
        return RowStates(hidden, states_of_layer, projection, rows.labels, rows.rows)

    def loss_gradients(self, loss: Tensor) -> tuple[dict[int, Tensor], Sequence[Tensor | None]]:
        """Compute the gradients of a loss as far as the states.

        Returns:
            The gradients of the states that the loss reads, by index. Then the gradient of each
            weight that the loss reads itself, such as the output layer's, and None for all others.
        """
        indices = [index for index, leaf in enumerate(self._leaves) if leaf.requires_grad]
        leaves = [self._leaves[index] for index in indices]
        inputs = [*leaves, *self._model.parameters]
        gradients = _gradients([loss], inputs)
        self._leaves = []
        gradients_of_states: dict[int, Tensor] = {}
        for index, gradient in zip(indices, gradients[: len(indices)], strict=True):
            if gradient is not None:
                gradients_of_states[index] = gradient
        return gradients_of_states, gradients[len(indices) :]

    def starts_back_from(self, indices: Collection[int]) -> bool:
        """Whether the way back can be replayed, or recorded, from the states at these indices."""
        return self._back is None or self._given.keys() == {*indices}

    def back(self, gradients: Mapping[int, Tensor], make_graph: Callable[[], Graph]) -> list[int]:
        """Replay the way back, which writes the gradients of the weights into the shared memory.

        Args:
            gradients: Gradients of states, by index.
            make_graph: Makes the graph that the first call records.

        Returns:
            The indices of the weights that get a gradient.

        Raises:
            RuntimeError: The way back cannot be recorded.
        """
        if self._back is None:
            graph = make_graph()
            self._given = {index: gradient.clone() for index, gradient in gradients.items()}
            graph.record(self._run_back)
            self._back = graph
        else:
            for index, gradient in gradients.items():
                self._given[index].copy_(gradient)
        self._back.replay()
        # This frees the memory of what forward kernels keep for the way back. Graphs of other
        # shapes may use it, because a pass always ends before the next one begins.
        self._states = [_copied_flag(state) for state in self._states]
        return self._reached

    def back_unrecorded(self, gradients: Mapping[int, Tensor]) -> list[int]:
        """Compute the same as `back` by passing forward and back once more."""
        self._run_forward()
        self._given = {**gradients}
        self._run_back()
        return self._reached

    def _run_forward(self) -> None:
        with torch.enable_grad(), self._model.autocast():
            self._states = self._reader.states_of_all_tokens(
                self._model.model, self._rows, self._layers
            )

    def _run_back(self) -> None:
        gradients = _gradients(
            [self._states[index] for index in self._given],
            self._model.parameters,
            [*self._given.values()],
        )
        self._reached = []
        for index, gradient in enumerate(gradients):
            if gradient is not None:
                self.gradients[index].copy_(gradient)
                self._reached.append(index)


def _gradients(
    values: Sequence[Tensor], inputs: Sequence[Tensor], given: Sequence[Tensor] | None = None
) -> Sequence[Tensor | None]:
    """Return the gradient of values by each input; None for an input that nothing depends on.

    Args:
        values: What the gradients are of.
        inputs: Tensors that require a gradient.
        given: The gradient of each of the values. None for scalars, whose gradient is 1.
    """
    return torch.autograd.grad(values, inputs, given, allow_unused=True)


def _copied_flag(tensor: Tensor) -> Tensor:
    """Return a leaf with the memory of a tensor, which requires a gradient if the tensor does."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


class StepReplays:
    """Reads rows for training steps, and adds gradients to those of the weights.

    The two calls belong together: `backward` is for a loss of the rows that were read last.
    """

    def __init__(self, model: TrainedModel, reader: RowReader) -> None:
        """Begin without recordings.

        Args:
            model: The model, placed on its device.
            reader: Its reader.
        """
        self.model = model
        self.reader = reader
        self.recording = False
        """Whether shapes that come again are recorded, see `start`."""
        self.given_up = False
        """Whether memory was short, or the model cannot be recorded."""
        self.passes: dict[_Shape, _ModelPass] = {}
        self.replayed = 0
        """Number of passes that were replayed."""
        self._calls: Counter[_Shape] = Counter()
        self._current: _ModelPass | None = None
        """The pass of the rows that were read last; None if it was not replayed."""
        self._memory: Sequence[Tensor] = ()
        """Memory of all graphs for the gradients of the trained weights."""
        self._pool: Any = None
        """Memory of all graphs for everything else."""
        self._places: _Places = ()

    @cached_property
    def fills(self) -> bool:
        """Whether filler rows are packed with the rows of a micro-batch.

        Random numbers depend on the shape of what they are drawn for, so there are no filler rows
        for a model with dropout.
        """
        model = self.model.module
        weights = [*model.parameters()]
        return (
            self.model.accelerator.device.type in _DEVICES
            and world_size() == 1
            and self.reader.output is not None
            and sum(weight.numel() for weight in weights) <= MOST_WEIGHTS
            and all(weight.is_floating_point() for weight in weights)
            and not _is_checkpointed(model)
            and not draws_random_numbers(model)
        )

    @property
    def shapes(self) -> int:
        """Number of different shapes that have come."""
        return len(self._calls)

    def read(self, rows: Sequence[Row], layers: Collection[int]) -> RowStates:
        """Run a forward pass over rows, as `RowReader` does.

        Args:
            rows: At least one row.
            layers: Decoder layers whose states are returned, too.
        """
        self._current = None
        model = self.model.model
        if not self.fills:
            return self.reader(model, rows, layers)
        prepared = self.reader.prepared(model, rows, filled=True)
        model_pass = self._pass_of(prepared, tuple(sorted(layers)))
        if model_pass is None:
            return self.reader.run(model, prepared, layers)
        states = model_pass.forward(prepared)
        self.replayed += 1
        self._current = model_pass
        return states

    def backward(self, loss: Tensor) -> bool:
        """Add the gradient of a loss to those of the weights, if its rows' pass was replayed.

        Returns:
            False if the pass was not replayed. Nothing is added then.
        """
        model_pass = self._current
        self._current = None
        if model_pass is None:
            return False
        gradients_of_states, own_gradients = model_pass.loss_gradients(loss)
        reached = self._go_back(model_pass, gradients_of_states)
        self._add(own_gradients, model_pass.gradients, reached)
        return True

    def start(self) -> None:
        """Record shapes that come again, except if that was given up.

        Called after the first optimiser step. By then the optimisers have allocated their states,
        which a run needs more than recordings.
        """
        self.recording = not self.given_up

    def discard(self) -> None:
        """Free the memory of all recordings. Shapes that come again are recorded again."""
        self.passes.clear()
        self._current = None
        self._memory = ()
        self._pool = None

    def stop(self) -> None:
        """Free the memory of all recordings, and record nothing more."""
        self.given_up = True
        self.recording = False
        self.discard()

    def _pass_of(self, rows: ModelRows, layers: tuple[int, ...]) -> _ModelPass | None:
        """Return the recorded pass for rows; None if they have to be read without one."""
        if not rows.packed or not torch.is_grad_enabled() or not self._may_record():
            return None
        self._discard_if_weights_moved()
        shape = (rows.shape, layers)
        if shape in self.passes:
            return self.passes[shape]
        self._calls[shape] += 1
        if self._calls[shape] <= _TIMES or len(self.passes) == _MOST:
            return None
        return self._recorded(rows, shape)

    def _may_record(self) -> bool:
        return self.recording and can_record(self.model.accelerator.device)

    def _discard_if_weights_moved(self) -> None:
        """Discard all recordings if the weights are in other memory, or others are trained.

        For example, adapters may have been added. Graphs read and write memory, whatever is there.
        """
        places = _places_of(self.model.module)
        if places != self._places:
            self.discard()
            self._places = places

    def _recorded(self, rows: ModelRows, shape: _Shape) -> _ModelPass | None:
        """Record the way forward for rows of a new shape; None if it cannot be recorded."""
        try:
            graph = self._make_graph()
            if not self._memory:
                self._memory = [torch.zeros_like(weight) for weight in self.model.parameters]
            model_pass = _ModelPass(self.model, self.reader, rows, shape[1], self._memory)
            if not self.passes:
                model_pass.try_out()
            model_pass.record_forward(graph)
        except RuntimeError:  # the model waits for the GPU, or memory is short
            self.stop()
            return None
        self.passes[shape] = model_pass
        return model_pass

    def _make_graph(self) -> Graph:
        if self._pool is None:
            self._pool = new_pool()
        return CudaGraph(self._pool)

    def _go_back(
        self, model_pass: _ModelPass, gradients_of_states: Mapping[int, Tensor]
    ) -> list[int]:
        """Compute the gradients of the weights; return the indices of those that have one."""
        if not gradients_of_states:
            return []
        if model_pass.starts_back_from(gradients_of_states):
            try:
                return model_pass.back(gradients_of_states, self._make_graph)
            except RuntimeError:  # memory is short, or a kernel cannot be recorded
                self.stop()
        else:
            # The loss changes what it reads from step to step.
            self.stop()
        return model_pass.back_unrecorded(gradients_of_states)

    @torch.no_grad()
    def _add(
        self,
        own_gradients: Sequence[Tensor | None],
        from_states: Sequence[Tensor],
        reached: Sequence[int],
    ) -> None:
        """Add gradients to those of the weights, in autograd's order.

        Args:
            own_gradients: Gradients from the loss itself, by weight.
            from_states: Gradients through the model, by weight. They are copied, because the next
                pass overwrites them.
            reached: Indices of the weights that have a gradient through the model.
        """
        sums: list[Tensor] = []
        summands: list[Tensor] = []
        new: list[Tensor] = []
        values: list[Tensor] = []
        through_model = {*reached}
        for index, weight in enumerate(self.model.parameters):
            gradient = own_gradients[index]
            if index in through_model:
                # Autograd adds up all gradients of a tied weight before it adds the sum to `grad`.
                behind = from_states[index]
                gradient = behind if gradient is None else gradient + behind
            if gradient is None:
                continue
            if weight.grad is None:
                weight.grad = torch.empty_like(weight)
                new.append(weight.grad)
                values.append(gradient)
            else:
                sums.append(weight.grad)
                summands.append(gradient)
        # One kernel for many weights. These functions are documented, but have no public names.
        if new:
            torch._foreach_copy_(new, values)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        if sums:
            torch._foreach_add_(sums, summands)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]


def _places_of(model: nn.Module) -> _Places:
    """Return where each weight and buffer of a model is in memory, and whether it is trained."""
    tensors = [*model.parameters(), *model.buffers()]
    return tuple((tensor.data_ptr(), tensor.requires_grad) for tensor in tensors)


def _is_checkpointed(model: nn.Module) -> bool:
    """Whether layers are computed again in the backward pass, which saves torch's random state."""
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


def new_pool() -> Any:
    """Return a handle of memory that graphs share."""
    return torch.cuda.graph_pool_handle()
