"""Every primitive, in chunks and with derived gradients, against dense float64 and autograd."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import kl_div
from torch.utils._python_dispatch import TorchDispatchMode

from unlearnbench.losses import chunked
from unlearnbench.losses.kernels import LogOdds
from unlearnbench.losses.lm_head import Projection
from unlearnbench.losses.predictions import Predictions, Reference

N, H, V = 11, 6, 13
ROWS = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 3])

Primitive = Callable[[Predictions, Reference], Tensor]
Dense = Callable[[Tensor, Tensor, Tensor], Tensor]
"""A loss of logits [N, V], labels [N] and the reference's logits [N, V]."""


def chosen(z: Tensor, y: Tensor) -> Tensor:
    return z.log_softmax(1).gather(1, y.unsqueeze(1)).squeeze(1)


def others(z: Tensor, y: Tensor) -> Tensor:
    """The detached softmax without the label."""
    return z.detach().scatter(1, y.unsqueeze(1), float("-inf")).softmax(1)


def against(target: Tensor, z: Tensor) -> Tensor:
    return -(target * z.log_softmax(1)).sum(1)


def kl(t: Tensor, z: Tensor) -> Tensor:
    return kl_div(z.log_softmax(1), t.log_softmax(1), reduction="none", log_target=True).sum(1)


def mixed(z: Tensor, y: Tensor, r: Tensor) -> Tensor:
    onehot = torch.zeros_like(z).scatter(1, y.unsqueeze(1), 1.0)
    return against(r.unsqueeze(1) * onehot + (1 - r.unsqueeze(1)) * others(z, y), z)


def raw_score(z: Tensor, y: Tensor, score: float) -> Tensor:
    """The paper's form: the score takes the place of the label's logit in the target."""
    target = z.detach().scatter(1, y.unsqueeze(1), score).softmax(1)
    return against(target, z)


def jsd(z: Tensor, t: Tensor) -> Tensor:
    m = torch.log((z.softmax(1) + t.softmax(1)) / 2)
    return (kl(z, m) + kl(t, m)) / 2


ELSE = torch.arange(N) % 3
SCORES = torch.linspace(0, 1, N, dtype=torch.float64)

PRIMITIVES: dict[str, tuple[Primitive, Dense]] = {
    "token_logprob": (lambda p, _: p.token_logprob, lambda z, y, _: chosen(z, y)),
    "cross_entropy": (lambda p, _: p.cross_entropy(), lambda z, y, _: -chosen(z, y)),
    "ce_u": (lambda p, _: p.unlearning_cross_entropy, lambda z, y, _: against(others(z, y), z)),
    "score per token": (
        lambda p, _: p.unified_cross_entropy(SCORES),
        lambda z, y, _: mixed(z, y, SCORES),
    ),
    "score per row": (
        lambda p, _: p.unified_cross_entropy(SCORES[:4]),
        lambda z, y, _: mixed(z, y, SCORES[ROWS]),
    ),
    "raw score": (
        lambda p, _: p.unified_cross_entropy(0.7, raw=True),
        lambda z, y, _: raw_score(z, y, 0.7),
    ),
    "log_odds": (
        lambda p, _: p.log_odds,
        lambda z, y, _: chosen(z, y) - torch.log1p(-chosen(z, y).exp()),
    ),
    "unlikelihood": (
        lambda p, _: p.unlikelihood,
        lambda z, y, _: -torch.log1p(-chosen(z, y).exp()),
    ),
    "kl": (lambda p, r: p.kl_from(r), lambda z, _, t: kl(t, z)),
    "reverse kl": (lambda p, r: p.kl_from(r, reverse=True), lambda z, _, t: kl(z, t)),
    "lowered kl": (
        lambda p, r: p.kl_from(r, lowered=3.0),
        lambda z, y, t: kl(
            t.scatter_add(1, y.unsqueeze(1), torch.full((len(y), 1), -3.0).to(t)), z
        ),
    ),
    "jsd": (lambda p, r: p.jsd_from(r), lambda z, _, t: jsd(z, t)),
    "kl from uniform": (
        lambda p, _: p.kl_from_uniform,
        lambda z, _, __: kl(torch.zeros_like(z).masked_fill(z.isneginf(), float("-inf")), z),
    ),
    "lead": (
        lambda p, _: p.lead,
        lambda z, y, _: chosen(z, y).exp()
        - z.softmax(1).scatter(1, y.unsqueeze(1), 0.0).max(1).values,
    ),
    "logprob of": (lambda p, _: p.logprob_of(ELSE), lambda z, _, __: chosen(z, ELSE)),
    "entropy": (lambda p, _: p.entropy, lambda z, _, __: against(z.softmax(1), z)),
    "margin": (lambda p, _: p.margin, lambda z, _, __: z.max(1).values - z.mean(1)),
}  # fmt: skip
OUTPUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias": {"bias": True},
    "scaled": {"scale": 0.3},
    "capped": {"cap": 2.0, "scale": 1.5, "bias": True},
    "masked": {"masked": 2},
    "logits": {"logits": True},
}


class Case:
    """Leaves in float64, and the same computed densely."""

    def __init__(
        self, kind: str = "plain", dtype: torch.dtype = torch.float64, seed: int = 0
    ) -> None:
        how = OUTPUTS[kind]
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        width = V if how.get("logits") else H
        leaves = [draw(N, width), draw(V, H), draw(V) if "bias" in how else torch.zeros(V)]
        self.hidden, self.weight, self.bias = (leaf.to(dtype).requires_grad_() for leaf in leaves)
        self.kept = V - how.get("masked", 0)
        if self.kept < V:
            self.bias = self.bias.detach().clone()
            self.bias[self.kept :] = float("-inf")
        self.logits = bool(how.get("logits"))
        self.scale, self.cap = how.get("scale", 1.0), how.get("cap")
        self.labels = torch.randint(self.kept, (N,), generator=generator)
        self.other, self.other_weight = draw(N, H).to(dtype), draw(V, H).to(dtype)
        self.upstream = draw(N)

    @property
    def leaves(self) -> list[Tensor]:
        named = [self.hidden] if self.logits else [self.hidden, self.weight, self.bias]
        return [leaf for leaf in named if leaf.requires_grad]

    def predictions(self) -> tuple[Predictions, Reference]:
        map_ = Projection(None if self.logits else self.weight, None if self.logits else self.bias)
        projection = Projection(map_.weight, map_.bias, self.scale, self.cap)
        parts = (self.hidden, projection, self.labels, ROWS, 4, N, 4)
        bias = self.bias.detach()
        start = Projection(self.other_weight, bias, self.scale, self.cap)
        return Predictions(*parts), Reference(torch.zeros(N), ROWS, 4, self.other, start)

    def dense(self, value: Dense) -> Tensor:
        def shaped(z: Tensor) -> Tensor:
            z = z * self.scale
            return self.cap * torch.tanh(z / self.cap) if self.cap else z

        hidden, weight, bias = self.hidden.double(), self.weight.double(), self.bias.double()
        z = hidden if self.logits else hidden @ weight.T + bias
        t = self.other.double() @ self.other_weight.double().T + bias.detach()
        # A masked entry is one that is not there.
        return value(shaped(z)[:, : self.kept], self.labels, shaped(t)[:, : self.kept])

    def gradients(self, values: Tensor, *, uniform: bool = False) -> list[Tensor]:
        weights = torch.full((N,), -0.37, dtype=torch.float64) if uniform else self.upstream
        return list(torch.autograd.grad((values.double() * weights).sum(), self.leaves))


@pytest.fixture(params=[1, 3, N, 0], ids=lambda n: f"{n} rows at a time" if n else "kept")
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        monkeypatch.setattr(chunked, "CHUNK_BYTES", request.param * V * 8)
        monkeypatch.setattr(chunked, "CACHED_BYTES", 0)
    monkeypatch.setattr(chunked, "_BLOCK_BYTES", {"cpu": 2 * V * 8})


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("name", PRIMITIVES)
def test_value_and_gradient_are_the_dense_ones(name: str) -> None:
    primitive, dense = PRIMITIVES[name]
    for kind, uniform in product(OUTPUTS, (True, False)):
        case = Case(kind)
        value, truth = primitive(*case.predictions()), case.dense(dense)
        torch.testing.assert_close(value, truth, rtol=1e-9, atol=1e-10)
        got, expected = (case.gradients(each, uniform=uniform) for each in (value, truth))
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", ["plain", "bias"])
@pytest.mark.parametrize("uniform", [True, False], ids=["one weight", "own weights"])
def test_nothing_diverges_from_itself_under_autocast(kind: str, uniform: bool) -> None:
    """Also where chunks are made again on the way back, which is outside autocast."""
    case = Case(kind, torch.float32)
    case.other, case.other_weight = case.hidden.detach(), case.weight.detach()
    with torch.autocast("cpu", torch.bfloat16):
        predictions, reference = case.predictions()
        value = predictions.kl_from(reference)
    assert not value.any()
    for gradient in case.gradients(value, uniform=uniform):
        assert not gradient.any()


def test_bf16_is_near_float64_and_sums_over_chunks_in_fp32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunked, "CHUNK_BYTES", 64 * 4)  # parts of the vocabulary too
    case = Case("bias", torch.bfloat16)
    for name, (primitive, dense) in PRIMITIVES.items():
        value, truth = primitive(*case.predictions()), case.dense(dense)
        assert value.dtype == torch.float32, name
        torch.testing.assert_close(value.double(), truth, rtol=0.03, atol=0.05, msg=name)
        gradients = zip(case.gradients(value), case.gradients(truth), strict=True)
        for got, expected in gradients:
            assert got.dtype == torch.bfloat16, name
            error = (got.double() - expected.double()).norm() / expected.double().norm()
            assert error < 0.02, name


def test_autocast_multiplies_in_bf16_and_gives_fp32_gradients() -> None:
    case = Case("bias", torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = case.predictions()[0].cross_entropy()
    plain = case.predictions()[0].cross_entropy()
    assert value.dtype == torch.float32
    assert not torch.equal(value, plain), "it did not go through bf16"
    torch.testing.assert_close(value, plain, rtol=0.02, atol=0.02)
    for got, expected in zip(case.gradients(value), case.gradients(plain), strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("name", PRIMITIVES)
def test_autocast_rounds_matrix_products_and_nothing_else(name: str) -> None:
    case, (primitive, _) = Case("logits", torch.float32), PRIMITIVES[name]
    # The reference's logits are a matrix product; here they are given.
    given = Reference(torch.zeros(N), ROWS, 4, case.hidden.detach().flip(0), Projection(None))
    plain = primitive(case.predictions()[0], given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = primitive(case.predictions()[0], given)
    assert value.isfinite().all()
    torch.testing.assert_close(value, plain)
    for got, expected in zip(case.gradients(value), case.gradients(plain), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("gap", [40.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", PRIMITIVES)
def test_extreme_logits_stay_finite(name: str, dtype: torch.dtype, gap: float) -> None:
    case = Case("logits", dtype)
    with torch.no_grad():
        case.hidden[range(0, N, 2), case.labels[::2]] += gap
        case.hidden[range(1, N, 2), case.labels[1::2]] -= gap
    value = PRIMITIVES[name][0](*case.predictions())
    (gradient,) = case.gradients(value)
    assert value.isfinite().all()
    assert gradient.isfinite().all()
    if name == "ce_u":
        torch.testing.assert_close(value[::2].double(), case.dense(PRIMITIVES[name][1])[::2])


def test_a_sure_label_keeps_its_digits() -> None:
    """1 − p_y and log p_y where p_y rounds to 1 in fp32."""
    logits = torch.tensor([[30.0, 0.0, -1.0]], requires_grad=True)
    parts = (logits, Projection(None), torch.tensor([0]), torch.tensor([0]), 1, 1, 1)
    predictions = Predictions(*parts)
    rest = torch.tensor([0.0, -1.0], dtype=torch.float64).logsumexp(0) - 30
    expected = -torch.log1p(rest.exp())
    torch.testing.assert_close(predictions.token_logprob[0].double(), expected, rtol=1e-5, atol=0)
    (gradient,) = torch.autograd.grad(predictions.token_logprob.sum(), logits)
    torch.testing.assert_close(gradient[0, 0].double(), rest.exp(), rtol=1e-5, atol=0)


def test_infinite_raw_scores_learn_and_unlearn() -> None:
    predictions, _ = Case().predictions()
    for score, same in ((float("inf"), 1.0), (float("-inf"), 0.0)):
        torch.testing.assert_close(
            predictions.unified_cross_entropy(score, raw=True),
            predictions.unified_cross_entropy(same),
        )


def test_nothing_scored_gives_zero_and_a_zero_gradient() -> None:
    hidden, weight = (torch.randn(n, H, requires_grad=True) for n in (0, V))
    none = torch.zeros(0, dtype=torch.long)
    predictions = Predictions(hidden, Projection(weight), none, none, 2, 0, 2)
    losses = [
        predictions.mean_tokens(predictions.cross_entropy()),
        predictions.mean_sequences(predictions.sequence_logprob),
        predictions.mean_tokens(predictions.entropy),
    ]
    for loss in losses:
        assert loss == 0
        assert torch.autograd.grad(loss, weight)[0].abs().max() == 0


def test_the_same_hidden_states_serve_twice() -> None:
    """One pass serves both where the log-odds are computed already."""
    case = Case()
    predictions, reference = case.predictions()
    got = predictions.sequence_logprob[predictions.rows] + predictions.cross_entropy() * 2
    got = got + predictions.unlearning_cross_entropy + predictions.kl_from(reference)

    def dense(z: Tensor, y: Tensor, t: Tensor) -> Tensor:
        own = chosen(z, y)
        whole = torch.zeros(4, dtype=own.dtype).index_add(0, ROWS, own)[ROWS]
        return whole - 2 * own + against(others(z, y), z) + kl(t, z)

    torch.testing.assert_close(got, case.dense(dense))
    for a, b in zip(case.gradients(got), case.gradients(case.dense(dense)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", ["cross_entropy", "token_logprob"])
def test_a_second_pass_back_gives_the_same_gradient(name: str) -> None:
    case = Case()
    loss = PRIMITIVES[name][0](*case.predictions()).sum() * 3
    first = torch.autograd.grad(loss, case.leaves, retain_graph=True)
    for again, before in zip(torch.autograd.grad(loss, case.leaves), first, strict=True):
        torch.testing.assert_close(again, before)


@pytest.mark.parametrize("name", ["cross_entropy", "token_logprob", "kl"])
def test_a_tied_output_layer_gets_both_gradients(name: str) -> None:
    case, (primitive, dense) = Case(), PRIMITIVES[name]
    ids = torch.randint(V, (N,), generator=torch.Generator().manual_seed(1))

    def gradient(value: Callable[[], Tensor]) -> Tensor:
        case.hidden = case.weight[ids].tanh()  # the embedding is the output layer
        return torch.autograd.grad((value() * case.upstream).sum(), case.weight)[0]

    got = gradient(lambda: primitive(*case.predictions()))
    torch.testing.assert_close(got, gradient(lambda: case.dense(dense)))


def test_frozen_weights_need_no_second_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    kernel: Any = LogOdds.__call__

    def counted(self: Any, *parts: Any, **how: Any) -> Any:
        passes.append(1)
        return kernel(self, *parts, **how)

    monkeypatch.setattr(LogOdds, "__call__", counted)
    monkeypatch.setattr(chunked, "CACHED_BYTES", 0)
    case, (_, dense) = Case(), PRIMITIVES["token_logprob"]
    for leaf, expected in ((True, 2), (False, 1)):
        case.weight.requires_grad_(leaf)
        case.bias.requires_grad_(leaf)
        passes.clear()
        value = case.predictions()[0].token_logprob
        got = case.gradients(value)[0]
        assert len(passes) == expected
        torch.testing.assert_close(got, case.gradients(case.dense(dense))[0])


@pytest.mark.parametrize("name", PRIMITIVES)
def test_no_primitive_holds_more_than_a_chunk(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor that is made while it runs, forward and back, is watched."""
    largest = 0

    def views(func: Any) -> bool:
        return any(a.alias_info is not None for a in func._schema.returns)

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal largest
            made = func(*args, **(kwargs or {}))
            for tensor in made if isinstance(made, tuple | list) else [made]:
                if isinstance(tensor, Tensor) and tensor.shape[1:] == (V,) and not views(func):
                    largest = max(largest, len(tensor))
            return made

    monkeypatch.setattr(chunked, "CHUNK_BYTES", 3 * V * 8)
    case = Case()
    with Watch():  # type: ignore[no-untyped-call]
        case.gradients(PRIMITIVES[name][0](*case.predictions()))
    assert 0 < largest <= 3


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # by torch's own tracer
@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning")
@pytest.mark.parametrize("name", ["ce_u", "token_logprob", "kl"])
def test_compiled_equals_eager(name: str) -> None:
    case, primitive = Case(), PRIMITIVES[name][0]

    def loss() -> Tensor:
        return (primitive(*case.predictions()) * case.upstream).sum()

    compiled: Any = torch.compile(loss, backend="aot_eager")
    for got, expected in zip(
        torch.autograd.grad(compiled(), case.leaves),
        torch.autograd.grad(loss(), case.leaves),
        strict=True,
    ):
        torch.testing.assert_close(got, expected)


def test_undeclared_distributions_and_layers_are_named() -> None:
    predictions, reference = Case().predictions()
    bare = Reference(reference.token_logprob, ROWS, 4)
    with pytest.raises(LookupError, match="distributions, which its `needs` does not declare"):
        predictions.kl_from(bare)
    with pytest.raises(LookupError, match="layer 3, which its needs do not declare; declared: non"):
        predictions.hidden_states(3)
