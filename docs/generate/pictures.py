"""Small pictures as SVG in the page, in the colours of its text."""

import math
from collections.abc import Iterable, Sequence
from html import escape

from unlearnbench.report.gradient_profile import Point

WIDTH, HEIGHT = 330, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 24, 26, 34
TICKS = ((1e-6, "10⁻⁶"), (1e-3, ".001"), (0.5, ".5"), (0.999, ".999"), (1 - 1e-6, "1−10⁻⁶"))
_SMALLEST = 1e-8
Line = Sequence[tuple[float, float]]
Scale = tuple[float, float]


def gradient(points: Sequence[Point]) -> str:
    """The gradient of a loss with respect to a forget token's logits, against its probability."""
    norms = [(p.log_odds, math.log10(p.norm)) for p in points if p.norm > _SMALLEST]
    true = [(p.log_odds, p.true) for p in points]
    other = [(p.log_odds, p.other) for p in points]
    across = (points[0].log_odds, points[-1].log_odds)
    ticks = [(math.log(p / (1 - p)), label) for p, label in TICKS]
    low = math.floor(min((y for _, y in norms), default=-1.0))
    high = max(low + 1, math.ceil(max((y for _, y in norms), default=0.0)))
    step = max(1, math.ceil((high - low) / 4))
    decades = [(y, f"1e{y}") for y in range(low, high + 1, step)]
    largest = max((abs(y) for _, y in [*true, *other]), default=0.0) or 1.0
    around = [(y, f"{y:.2g}") for y in (-largest, 0.0, largest)]
    left = _panel("length of the gradient", across, (low, high), ticks, decades)
    right = _panel("its components", across, (-1.1 * largest, 1.1 * largest), ticks, around)
    left += _line(norms, across, (low, high))
    scale = (-1.1 * largest, 1.1 * largest)
    right += _line(other, across, scale, "other") + _line(true, across, scale)
    return _row(left, right, "Gradient of the loss against the probability of the true token")


def standing(points: Iterable[tuple[str, float, float]], shown: str = "") -> str:
    """Where settings stand: (name, Model Utility, log10 Forget Quality), one of them marked."""
    points = list(points)
    lowest = math.floor(min(y for _, _, y in points))
    across, up = (0.7, 0.92), (lowest - 0.3, 0.4)
    ticks = [(x / 100, f"{x / 100:.2f}") for x in range(70, 93, 5)]
    drawn = _panel(
        "log₁₀ Forget Quality, against Model Utility",
        across,
        up,
        ticks,
        [(y, str(y)) for y in range(0, lowest - 1, -3)],
    )
    for name, x, y in points:
        kind = {"start model": "start", "retain model": "goal", shown: "shown"}.get(name, "dot")
        at = f'cx="{_x(x, across):.1f}" cy="{_y(y, up):.1f}"'
        title = f"<title>{escape(name)}: {x:.3f}, {y:.1f}</title>"
        drawn += f'<circle class="{kind}" {at} r="{5 if kind == "shown" else 4}">{title}</circle>'
    return (
        f'<figure class="drawn"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="Model Utility to the right, log10 Forget Quality upwards">{drawn}</svg>'
        "</figure>\n"
    )


def _row(left: str, right: str, label: str) -> str:
    panels = "".join(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{item}</svg>'
        for item in (left, right)
    )
    return f'<figure class="drawn pair">{panels}</figure>\n'


def _panel(
    title: str,
    across: Scale,
    up: Scale,
    ticks: Sequence[tuple[float, str]],
    levels: Sequence[tuple[float, str]],
) -> str:
    """Axes, their labels and the title."""
    bottom, end = HEIGHT - BOTTOM, WIDTH - RIGHT
    made = [f'<text x="{LEFT}" y="14">{title}</text>']
    for value, label in levels:
        y = _y(value, up)
        made.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{end}"/>')
        made.append(f'<text class="level" x="{LEFT - 6}" y="{y + 4:.1f}">{label}</text>')
    for value, label in ticks:
        x = _x(value, across)
        made.append(f'<path class="grid" d="M{x:.1f} {TOP}V{bottom}"/>')
        made.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 16}">{label}</text>')
    return "".join(made)


def _line(points: Line, across: Scale, up: Scale, kind: str = "true") -> str:
    drawn = "L".join(f"{_x(x, across):.1f} {_y(y, up):.1f}" for x, y in points)
    return f'<path class="line {kind}" d="M{drawn}"/>' if points else ""


def _x(value: float, across: Scale) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (value - across[0]) / (across[1] - across[0])


def _y(value: float, up: Scale) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - up[0]) / (up[1] - up[0])
