"""The trade-off panels as files: a picture (SVG) that needs no browser to draw, and a page.

The picture is for places that show images and run no scripts, such as a tracker's list of files.
Plotly would need a browser to draw it, for each sweep. Therefore the figures of the page are
converted to SVG here. Only keys that `tradeoff_plot.draw` writes are understood.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from unlearnbench.analysis.results import Results
from unlearnbench.analysis.settings import panel_label

from ..page_data import embedded, plotly, render
from .mark_names import Point
from .marks import Figure
from .palette import GRID, INK, MUTED, Style
from .tradeoff_data import TradeOffPanel, drawn_panels
from .tradeoff_plot import draw

_WIDTH, _HEIGHT = 760, 460
"""Pixels of a panel with its title and its axes."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 20, 40, 52
"""Pixels around the frame of a panel."""
_LEGEND_COLUMN, _LEGEND_LINE = 240, 22
"""Pixels of a method in the legend."""
_TICKS = 6
"""Number of ticks on an axis, approximately."""
_FONT = "font-family='Helvetica, Arial, sans-serif' font-size='12'"
_DASHES = {
    "dash": "7 4",
    "dot": "2 3",
    "dashdot": "7 3 2 3",
    "longdash": "12 5",
    "longdashdot": "12 4 2 4",
}
"""SVG's lengths of dashes and gaps, by Plotly's name."""
# fmt: off
_CORNERS: Mapping[str, Sequence[Point]] = {
    "triangle-up": ((0, -1.1), (1, 0.8), (-1, 0.8)),
    "triangle-down": ((0, 1.1), (1, -0.8), (-1, -0.8)),
    "diamond": ((0, -1.25), (1, 0), (0, 1.25), (-1, 0)),
    "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    "hourglass": ((-1, -1), (1, -1), (-1, 1), (1, 1)),
    "bowtie": ((-1, -1), (1, 1), (1, -1), (-1, 1)),
    "cross": (
        (-0.4, -1), (0.4, -1), (0.4, -0.4), (1, -0.4), (1, 0.4), (0.4, 0.4),
        (0.4, 1), (-0.4, 1), (-0.4, 0.4), (-1, 0.4), (-1, -0.4), (-0.4, -0.4),
    ),
    "x": (
        (-1, -0.55), (-0.55, -1), (0, -0.45), (0.55, -1), (1, -0.55), (0.45, 0),
        (1, 0.55), (0.55, 1), (0, 0.45), (-0.55, 1), (-1, 0.55), (-0.45, 0),
    ),
}
# fmt: on
"""Corners of Plotly's symbols, as multiples of half their size. y grows downwards."""


class _Star(NamedTuple):
    """A star or a regular polygon."""

    points: int
    inner_radius: float | None
    """Radius of the corners between the points, as a fraction of that of the points. None for a
    polygon."""


_STARS = {"star": _Star(5, 0.45), "hexagram": _Star(6, 0.58), "pentagon": _Star(5, None)}
"""Symbols whose corners are computed. All others are drawn as a circle."""


def picture(results: Results) -> str:
    """Draw the trade-off of all models and splits, below each other, as SVG."""
    panels = drawn_panels(results.panels)
    style = Style.of(results.rows, results.records)
    families = sorted({row.family for row in results.rows if row.kind == "run"})
    columns = max(1, (_WIDTH - _LEFT) // _LEGEND_COLUMN)
    legend_height = math.ceil(len(families) / columns) * _LEGEND_LINE + 12
    height = legend_height + _HEIGHT * len(panels)
    elements = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{height}' "
        f"viewBox='0 0 {_WIDTH} {height}' role='img' {_FONT}>",
        f"<title>{escape(results.name)}: utility against forgetting</title>",
        f"<rect width='{_WIDTH}' height='{height}' fill='#ffffff'/>",
    ]
    elements += _legend(families, columns, style)
    for number, panel in enumerate(panels):
        top = legend_height + number * _HEIGHT
        content = "".join(_panel(panel, style, number))
        elements.append(f"<g transform='translate(0 {top})'>{content}</g>")
    elements.append("</svg>\n")
    return "\n".join(elements)


def _legend(families: Sequence[str], columns: int, style: Style) -> Iterator[str]:
    """Yield the mark and the name of each method, in lines of `columns` methods."""
    for place, family in enumerate(families):
        x = _LEFT + (place % columns) * _LEGEND_COLUMN
        y = 18 + (place // columns) * _LEGEND_LINE
        yield mark(style.shape(family), x, y - 4, 9, style.colour(family))
        yield _text(family, x + 12, y)


def page(results: Results) -> str:
    """Make a page with the trade-off panels only, which needs no network."""
    style = Style.of(results.rows, results.records)
    figures = [draw(panel, style, _HEIGHT) for panel in drawn_panels(results.panels)]
    for figure in figures:
        layout = figure["layout"]
        layout["title"] = {"text": escape(layout["meta"]["title"]), "font": {"size": 14}}
        layout["margin"] = {**layout["margin"], "t": 44}
        for trace in figure["data"]:
            # A method has many lines, but only one best setting.
            trace["showlegend"] = trace["meta"]["role"] == "best"
    return render(
        "templates/tradeoff.html.j2",
        name=results.name,
        figures=figures,
        data=embedded(figures),
        plotly=plotly(),
    )


def _panel(panel: TradeOffPanel, style: Style, number: int) -> Iterator[str]:
    """Yield the elements of one panel.

    Args:
        panel: Data of the panel.
        style: Colours and shapes.
        number: Number of the panel, which keeps its ids different from those of other panels.
    """
    figure = draw(panel, style, _HEIGHT)
    layout = figure["layout"]
    scale = _Scale(layout["xaxis"]["range"], layout["yaxis"]["range"])
    yield _text(panel_label(panel.model, panel.forget_fraction), _LEFT, 24, size=14, weight="bold")
    yield from _axes(scale, layout)
    frame = f"x='{_LEFT}' y='{_TOP}' width='{scale.width}' height='{scale.height}'"
    clip = f"frame-{number}"
    yield f"<clipPath id='{clip}'><rect {frame}/></clipPath><g clip-path='url(#{clip})'>"
    for shape in layout["shapes"]:
        yield _shape(scale, shape)
    for trace in figure["data"]:
        yield from _lines(scale, trace)
    yield "</g>"
    for trace in figure["data"]:
        yield from _marks(scale, trace)
    for note in layout["annotations"]:
        yield _note(scale, note)


class _Scale:
    """Converts numbers to places on a panel, in pixels."""

    width = _WIDTH - _LEFT - _RIGHT
    """Width of the frame."""
    height = _HEIGHT - _TOP - _BOTTOM
    """Height of the frame."""

    def __init__(self, x_range: Sequence[float], y_range: Sequence[float]) -> None:
        self.x_range = x_range
        self.y_range = y_range

    def x(self, value: float) -> float:
        """Return the distance from the left end of the panel."""
        low, high = self.x_range
        return round(_LEFT + self.width * (value - low) / (high - low), 1)

    def y(self, value: float) -> float:
        """Return the distance from the upper end of the panel."""
        low, high = self.y_range
        return round(_TOP + self.height * (high - value) / (high - low), 1)

    def is_inside(self, x: float, y: float) -> bool:
        """Whether a point is in the frame."""
        left, right = self.x_range
        low, high = self.y_range
        return left <= x <= right and low <= y <= high


def _axes(scale: _Scale, layout: Figure) -> Iterator[str]:
    """Yield grid, ticks and titles of both axes."""
    bottom = _TOP + scale.height
    right = _LEFT + scale.width
    for value in _ticks(*scale.x_range):
        x = scale.x(value)
        yield f"<path d='M{x} {_TOP}V{bottom}' stroke='{GRID}'/>"
        yield _text(f"{value:g}", x, bottom + 16, anchor="middle", colour=MUTED)
    for value in _ticks(*scale.y_range):
        y = scale.y(value)
        yield f"<path d='M{_LEFT} {y}H{right}' stroke='{GRID}'/>"
        yield _text(f"{value:g}".replace("-", "−"), _LEFT - 6, y + 4, anchor="end", colour=MUTED)
    x_title = _plain(layout["xaxis"]["title"]["text"])
    y_title = _plain(layout["yaxis"]["title"]["text"])
    yield _text(x_title, _LEFT + scale.width / 2, bottom + 38, anchor="middle")
    middle = _TOP + scale.height / 2
    yield f"<g transform='translate(16 {middle}) rotate(-90)'>"
    yield _text(y_title, 0, 0, anchor="middle") + "</g>"


def _ticks(low: float, high: float) -> list[float]:
    """Choose round numbers between two ends: multiples of 1, 2 or 5 times a power of ten."""
    rough_step = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough_step))
    steps = [factor * power for factor in (1, 2, 5, 10)]
    step = next(step for step in steps if step >= rough_step)
    first = math.ceil(low / step)
    last = math.floor(high / step)
    # Rounded, because 3 · 0.1 is not 0.3.
    return [round(number * step, 10) for number in range(first, last + 1)]


def _shape(scale: _Scale, shape: Figure) -> str:
    """Draw a filled area, or a level through the whole panel."""
    if shape["type"] == "rect":
        left = scale.x(shape["x0"])
        width = max(0.0, scale.x(shape["x1"]) - left)
        return (
            f"<rect x='{left}' y='{_TOP}' width='{width}' height='{scale.height}' "
            f"fill='{shape['fillcolor']}'/>"
        )
    line = shape["line"]
    path = f"M{_LEFT} {scale.y(shape['y0'])}H{_LEFT + scale.width}"
    return (
        f"<path d='{path}' stroke='{line['color']}' "
        f"stroke-width='{line.get('width', 1)}'{_dash(line)}/>"
    )


def _dash(line: Figure) -> str:
    """Return the attribute of a line's dash; empty for a solid line."""
    pattern = _DASHES.get(line.get("dash", "solid"))
    return "" if pattern is None else f" stroke-dasharray='{pattern}'"


def _lines(scale: _Scale, trace: Figure) -> Iterator[str]:
    """Yield a trace's line and its error bars."""
    points = [(scale.x(x), scale.y(y)) for x, y in zip(trace["x"], trace["y"], strict=True)]
    if "lines" in trace["mode"] and len(points) > 1:
        line = trace["line"]
        path = _path(points, is_staircase=line.get("shape") == "vh")
        yield (
            f"<path d='{path}' fill='none' stroke='{line['color']}' "
            f"stroke-width='{line['width']}'{_dash(line)}/>"
        )
    if trace.get("error_x"):
        bars = trace["error_x"]
        for (_, y), (low, high) in zip(points, _bar_ends(trace["x"], bars), strict=True):
            yield _bar(f"M{scale.x(low)} {y}H{scale.x(high)}", bars)
    if trace.get("error_y"):
        bars = trace["error_y"]
        for (x, _), (low, high) in zip(points, _bar_ends(trace["y"], bars), strict=True):
            yield _bar(f"M{x} {scale.y(low)}V{scale.y(high)}", bars)


def _path(points: Sequence[Point], *, is_staircase: bool) -> str:
    """Return the path of a line through points in pixels.

    Args:
        points: At least one point.
        is_staircase: Whether the line goes to each point vertically first and then horizontally.
    """
    (first_x, first_y), *others = points
    path = f"M{first_x} {first_y}"
    for x, y in others:
        path += f"V{y}H{x}" if is_staircase else f"L{x} {y}"
    return path


def _bar_ends(values: Sequence[float], bars: Figure) -> list[tuple[float, float]]:
    """Return the ends of error bars. A value without a bar gets one without a length."""
    ends: list[tuple[float, float]] = []
    for value, above, below in zip(values, bars["array"], bars["arrayminus"], strict=True):
        ends.append((value - (below or 0), value + (above or 0)))
    return ends


def _bar(path: str, bars: Figure) -> str:
    return f"<path d='{path}' stroke='{bars['color']}' stroke-width='1.2'/>"


def _marks(scale: _Scale, trace: Figure) -> Iterator[str]:
    """Yield a trace's points inside the frame, and the text beside them."""
    marker = trace.get("marker")
    if "markers" not in trace["mode"] or marker is None:
        return
    count = len(trace["x"])
    sizes = _value_of_each(marker["size"], count)
    opacities = _value_of_each(marker.get("opacity", 1.0), count)
    texts = _value_of_each(trace.get("text", ""), count)
    points = zip(trace["x"], trace["y"], sizes, opacities, texts, strict=True)
    for x, y, size, opacity, text in points:
        if not opacity or not scale.is_inside(x, y):
            continue
        left, top = scale.x(x), scale.y(y)
        yield mark(marker["symbol"], left, top, size, marker["color"], opacity)
        if text:
            yield _text_of_point(text, left, top, trace)


def _text_of_point(text: str, left: float, top: float, trace: Figure) -> str:
    """Write the text beside a point. A trace places it as `top left` or `bottom right`."""
    height, _, side = trace["textposition"].partition(" ")
    return _text(
        _plain(text),
        left,
        top + (-8 if height == "top" else 18),
        anchor="end" if side == "left" else "start",
        colour=trace["textfont"]["color"],
        weight="bold" if "<b>" in text else "normal",
    )


def _value_of_each(value: Any, count: int) -> list[Any]:
    """Return a value for each point. Plotly accepts a single value for all points."""
    return list(value) if isinstance(value, list) else [value] * count


def mark(symbol: str, x: float, y: float, size: float, colour: str, opacity: float = 1.0) -> str:
    """Draw a symbol of Plotly.

    Args:
        symbol: Plotly's name, such as `diamond` or `circle-open`.
        x: Place of its centre in pixels.
        y: Place of its centre in pixels.
        size: Pixels.
        colour: Colour of the filling, or of the border of an open symbol.
        opacity: Opacity of the filling from 0 to 1.
    """
    if symbol.endswith("-open"):
        paint = f"fill='none' stroke='{colour}' stroke-width='1.5'"
    elif opacity < 1:
        paint = f"fill='{colour}' fill-opacity='{opacity:g}'"
    else:
        paint = f"fill='{colour}'"
    name = symbol.removesuffix("-open")
    radius = size / 2
    corners: Sequence[Point]
    if name in _STARS:
        corners = _corners_of_star(_STARS[name])
    elif name in _CORNERS:
        corners = _CORNERS[name]
    else:
        return f"<circle cx='{x}' cy='{y}' r='{radius:g}' {paint}/>"
    points = " ".join(f"{x + radius * dx:.1f},{y + radius * dy:.1f}" for dx, dy in corners)
    return f"<polygon points='{points}' {paint}/>"


def _corners_of_star(star: _Star) -> list[Point]:
    """Compute the corners of a star, clockwise from the top, as multiples of half its size."""
    # A star alternates between two radii.
    radii = [1.1] if star.inner_radius is None else [1.2, 1.2 * star.inner_radius]
    count = star.points * len(radii)
    corners: list[Point] = []
    for number in range(count):
        angle = 2 * math.pi * number / count
        radius = radii[number % len(radii)]
        corners.append((radius * math.sin(angle), -radius * math.cos(angle)))
    return corners


def _note(scale: _Scale, note: Figure) -> str:
    """Write a note of the layout."""
    is_at_level = note.get("yref") == "y"
    x = _LEFT + scale.width * note["x"]
    y = scale.y(note["y"]) if is_at_level else _TOP + scale.height * (1 - note["y"])
    # A note in the upper half of the frame stands below its place, so that it stays inside.
    is_below = note.get("yanchor") == "top" or (not is_at_level and note["y"] > 0.5)
    y += 13 if is_below else -4
    if note.get("xanchor") == "right":
        return _text(_plain(note["text"]), x - 4, y, anchor="end", colour=MUTED)
    return _text(_plain(note["text"]), x + 4, y, anchor="start", colour=MUTED)


def _plain(text: str) -> str:
    """Remove Plotly's markup. Subscripts become ordinary letters."""
    for tag in ("b", "i", "sub", "sup"):
        text = text.replace(f"<{tag}>", "").replace(f"</{tag}>", "")
    return text.replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")


def _text(
    text: str,
    x: float,
    y: float,
    *,
    anchor: str = "start",
    colour: str = INK,
    size: int = 12,
    weight: str = "normal",
) -> str:
    """Write a text.

    Args:
        text: The text, which is escaped here.
        x: Place in pixels.
        y: Place of the line that letters stand on, in pixels.
        anchor: `start`, `middle` or `end`: which part of the text stands at `x`.
        colour: Colour.
        size: Font size in pixels.
        weight: `normal` or `bold`.
    """
    style = f"fill='{colour}' font-size='{size}' font-weight='{weight}' text-anchor='{anchor}'"
    return f"<text x='{x:.1f}' y='{y:.1f}' {style}>{escape(text)}</text>"
