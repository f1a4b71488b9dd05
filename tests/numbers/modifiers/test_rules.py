"""Each modifier's rule against its equation, written plainly over one vector in float64."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from unlearnbench.api import registry
from unlearnbench.api.modifier import Gradients, Role, RunStep
from unlearnbench.base.deferred_warnings import drain

SHAPES = {"table": (5, 3), "matrix": (4, 6), "vector": (7,)}
FIRST = RunStep(1, 10)


def modifier(name: str, **settings: Any) -> Any:
    return registry.load("modifiers", name)(**settings)


def drawn(seed: int) -> Gradients:
    generator = torch.Generator().manual_seed(seed)
    return Gradients(
        {n: torch.randn(s, generator=generator, dtype=torch.float64) for n, s in SHAPES.items()}
    )


def flat(gradients: Gradients) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in gradients.tensors.values()])


def like(vector: Tensor) -> Gradients:
    sizes = [torch.Size(shape).numel() for shape in SHAPES.values()]
    parts = zip(SHAPES.items(), vector.split(sizes), strict=True)
    return Gradients({name: part.clone().view(shape) for (name, shape), part in parts})


class Quadratic:
    """Evaluations of two losses ½ c θ² of the weights θ, with noise by draw."""

    def __init__(self) -> None:
        self.weights, self.curvatures = (
            drawn(0),
            {"forget": flat(drawn(1)), "retain": flat(drawn(2))},
        )

    def __call__(
        self, roles: Iterable[Role], offset: Gradients | None = None
    ) -> dict[Role, Gradients]:
        place = flat(self.weights) + (0 if offset is None else flat(offset))
        return {role: like(self.curvatures[role] * place) for role in roles}

    def losses(self, roles: Iterable[Role], offset: Gradients | None = None) -> dict[Role, float]:
        place = flat(self.weights) + (0 if offset is None else flat(offset))
        return {role: float((self.curvatures[role] * place**2).sum() / 2) for role in roles}

    def noise(self, draw: int) -> Gradients:
        return drawn(10 + draw)


def combined(name: str, forget: Tensor, retain: Tensor, **settings: Any) -> Tensor:
    made = modifier(name, **settings)
    memory = made.memory(like(forget))
    return flat(made.combine({"forget": like(forget), "retain": like(retain)}, memory, FIRST))


@pytest.fixture(params=[-0.5, 0.5], ids=["conflict", "none"])
def pair(request: pytest.FixtureRequest) -> tuple[Tensor, Tensor]:
    """Two gradients of unlike lengths that conflict, or do not."""
    forget, other = flat(drawn(1)), flat(drawn(2))
    retain = 3 * (other + (request.param - other @ forget / (forget @ forget)) * forget)
    assert (forget @ retain < 0) == (request.param < 0)
    return forget, retain


def test_pieces_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unlearnbench.api.modifier._PIECE", 6)
    calls, a, b = list[int](), drawn(1), drawn(2)

    def product(x: Tensor, y: Tensor) -> Tensor:
        calls.append(x.numel())
        return x * y

    totals = a.totals(product, b)
    assert calls == [6, 6, 3, 6, 6, 6, 6, 6, 1], "whole rows, six elements at most"
    for name, total in totals.items():
        expected = (a.tensors[name] * b.tensors[name]).sum()
        assert total == pytest.approx(float(expected))
        assert a.dots(b)[name] == pytest.approx(float(expected))
    torch.testing.assert_close(flat(drawn(1).map_(product, b)), flat(a) * flat(b))


def test_pcgrad(pair: tuple[Tensor, Tensor]) -> None:
    f, r = pair
    projected = f - (f @ r) / (r @ r) * r if f @ r < 0 else f
    torch.testing.assert_close(combined("pcgrad", f, r), projected + r)
    of_each = [
        a + b - (a * b).sum().clamp(max=0) / (b * b).sum() * b
        for a, b in zip(like(f).tensors.values(), like(r).tensors.values(), strict=True)
    ]
    expected = torch.cat([each.flatten() for each in of_each])
    torch.testing.assert_close(combined("pcgrad", f, r, per="weight"), expected)


@pytest.mark.parametrize("update", ["forget", "sum"])
def test_gru(pair: tuple[Tensor, Tensor], update: str) -> None:
    made, mean = modifier("gru", update=update, new=0.8), torch.zeros_like(pair[0])
    memory = made.memory(like(mean))
    for scale in (1.0, -0.1):
        f, r = pair[0] * scale, pair[1]
        mean = 0.8 * r + 0.2 * mean
        u = f + r if update == "sum" else f
        expected = u - (u @ mean).clamp(max=0) / (mean @ mean) * mean
        given: dict[Role, Gradients] = {"forget": like(f), "retain": like(r)}
        torch.testing.assert_close(flat(made.combine(given, memory, FIRST)), expected)
    torch.testing.assert_close(flat(memory["mean"]), mean)


def test_bilevel(pair: tuple[Tensor, Tensor]) -> None:
    f, r = pair
    found = combined("bilevel", f, r)
    torch.testing.assert_close(found, f + r - (r @ f) / (f @ f) * f)
    torch.testing.assert_close(found @ f, f @ f)


@pytest.mark.parametrize("agree", ["forget", "sum"])
def test_sago(pair: tuple[Tensor, Tensor], agree: str) -> None:
    f, r = pair
    f[:3], r[3:5] = 0, 0  # no conflict
    expected = torch.stack(
        [b if a * b < 0 else a + b * (agree == "sum") for a, b in zip(f, r, strict=True)]
    )
    torch.testing.assert_close(combined("sago", f, r, agree=agree), expected)


def test_ngdiff(pair: tuple[Tensor, Tensor]) -> None:
    f, r = pair
    torch.testing.assert_close(combined("ngdiff", f, r), f / f.norm() + r / r.norm())
    torch.testing.assert_close(combined("ngdiff", 7 * f, r), combined("ngdiff", f, r))


@pytest.mark.parametrize("name", ["pcgrad", "gru", "bilevel", "sago", "ngdiff"])
def test_a_gradient_of_zero_gives_no_nan(name: str) -> None:
    some, zero = flat(drawn(1)), torch.zeros_like(flat(drawn(1)))
    for pair in ((some, zero), (zero, some), (zero, zero)):
        assert combined(name, *pair).isfinite().all()


def test_sam() -> None:
    at, made = Quadratic(), modifier("sam", rho=0.3)
    found = made.gradients(at, {}, FIRST)
    c, w = at.curvatures["forget"], flat(at.weights)
    torch.testing.assert_close(flat(found["forget"]), c * (w + 0.3 * c * w / (c * w).norm()))
    torch.testing.assert_close(flat(found["retain"]), at.curvatures["retain"] * w)


def test_smoothing() -> None:
    at, made = Quadratic(), modifier("smoothing", sigma=0.3, draws=3)
    found = made.gradients(at, {}, FIRST)
    c, w = at.curvatures["forget"], flat(at.weights)
    noise = sum(flat(at.noise(draw)) for draw in range(3)) / 3
    torch.testing.assert_close(flat(found["forget"]), c * (w + 0.3 * noise))
    torch.testing.assert_close(flat(found["retain"]), at.curvatures["retain"] * w)


def test_zeroth_order() -> None:
    """On a square the difference is the slope itself, whatever μ."""
    at, made = Quadratic(), modifier("zeroth-order", mu=0.3, draws=3, gradient_steps=1)
    found, w = made.gradients(at, {}, RunStep(2, 10)), flat(at.weights)
    draws = [flat(at.noise(draw)) for draw in range(3)]
    for role, c in at.curvatures.items():
        expected = sum((z @ (c * w)) * z for z in draws) / 3
        torch.testing.assert_close(flat(found[role]), expected)
        between = made.gradients(at, {}, FIRST)[role]
        torch.testing.assert_close(flat(between), c * w)


@pytest.mark.parametrize("keep", [0.1, 0.5, 1.0])
def test_masks_keep_the_largest_scores(keep: float) -> None:
    at = Quadratic()
    w, f, r = flat(at.weights), *(flat(at({role})[role]) for role in ("forget", "retain"))
    scores = {"salun": f.abs(), "wagle": ((w - r / 1e-6) * f).abs()}
    for name, score in scores.items():
        count = -(-round(keep * 10 * len(score)) // 10)
        expected = torch.zeros_like(score).index_fill(0, score.topk(count).indices, 1)
        kept = modifier(name, keep=keep).select(at)
        assert torch.equal(flat(kept).double(), expected)
    kept = modifier("sure", keep=keep).select(at).tensors
    norms = {
        name: [float(row.norm()) for row in gradient] for name, gradient in like(f).tensors.items()
    }
    ends = [
        (norm, row.numel())
        for name in kept
        for norm, row in zip(norms[name], kept[name], strict=True)
    ]
    ends.sort(reverse=True)
    within = torch.tensor([size for _, size in ends]).cumsum(0)
    limit = ends[int((within >= keep * len(f)).nonzero()[0])][0]
    for name, rows in kept.items():
        for row, norm in zip(rows, norms[name], strict=True):
            assert torch.equal(row, torch.full_like(row, norm >= limit)), (
                "a row moves, or none of it"
            )


def test_a_mask_that_leaves_nothing_out_is_named() -> None:
    scores = Gradients({"a": torch.zeros(4), "b": torch.arange(4.0)})
    drain()
    assert float(flat(scores.largest(0.25)).sum()) == 2
    assert drain() == []
    assert float(flat(scores.largest(0.5)).sum()) == 8
    (line,) = drain()
    assert "mask freezes no weight: less than 50 % of its scores are above 0" in line


@pytest.mark.parametrize("directions", [1, 2, 512])
def test_spectral(directions: int) -> None:
    gradient = drawn(1)
    left = gradient.tensors["table"][:, :1]
    gradient.tensors["table"] = left @ left[:3].T.clone()  # of rank one: no direction to turn to
    expected = gradient.copy().tensors
    u, s, v = torch.linalg.svd(expected["matrix"], full_matrices=False)
    k = min(directions, len(s))
    s[:k] = s[k - 1] ** 2 / s[:k]
    expected["matrix"] = u @ s.diag() @ v
    found = modifier("spectral", directions=directions).apply(gradient, {}, FIRST)
    torch.testing.assert_close(flat(found), flat(Gradients(expected)))


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_shrink(noise: float) -> None:
    at, start = Quadratic(), drawn(0).tensors
    modifier("shrink", share=0.25, noise=noise).before(at)
    for name, shape in SHAPES.items():
        drift = drawn(10).tensors[name] * (2 / sum(shape)) ** 0.5 if len(shape) == 2 else 0.0
        expected = 0.75 * start[name] + 0.25 * noise * drift
        torch.testing.assert_close(at.weights.tensors[name], expected)


def test_average() -> None:
    made = modifier("average", begin=0.3, every=2)
    weights, memory = drawn(0), made.memory(drawn(0))
    seen = [flat(drawn(number)) for number in range(1, 11)]
    for number, values in enumerate(seen, 1):
        made.after(weights.set_(like(values)), memory, RunStep(number, 10))
        taken = seen[3:number:2] if number > 3 else [values]
        torch.testing.assert_close(flat(made.evaluated(weights, memory)), sum(taken) / len(taken))


def test_sign() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
    optimizer = modifier("sign", momentum=0.5).make({"w": weight}, 0.1, 0.01)
    mean, expected = torch.zeros(3, dtype=torch.float64), weight.detach().clone()
    for gradient in ([1.0, -3.0, 0.0], [-4.0, -1.0, 2.0]):
        weight.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
        mean = 0.5 * mean + 0.5 * weight.grad
        expected = expected - 0.1 * (mean.sign() + 0.01 * expected)
        torch.testing.assert_close(weight.detach(), expected)


def test_sophia() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
    settings = {"rho": 0.5, "scale": 4.0, "beta1": 0.5, "beta2": 0.25}
    optimizer = modifier("sophia", **settings).make({"w": weight}, 0.1, 0.01)
    mean = square = torch.zeros(3, dtype=torch.float64)
    expected, clipped = weight.detach().clone(), 0
    for gradient in ([0.1, -3.0, 0.0], [-4.0, -1.0, 2.0], [0.3, 2.0, 1.0]):
        weight.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
        mean, square = 0.5 * mean + 0.5 * weight.grad, 0.25 * square + 0.75 * weight.grad**2
        ratio = [m / max(0.5 * 4 * h, 1e-15) for m, h in zip(mean, square, strict=True)]
        clipped += sum(abs(r) > 1 for r in ratio)
        step = torch.stack([torch.as_tensor(max(-1.0, min(1.0, float(r)))) for r in ratio])
        expected = expected - 0.1 * (step + 0.01 * expected)
        torch.testing.assert_close(weight.detach(), expected)
    assert 0 < clipped < 9, "both kinds of step were taken"
