"""Figures as files: SVG, PNG and PDF (drawn by a browser) and self-contained HTML."""

from pathlib import Path
from typing import Any, cast

import plotly.graph_objects as go

from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.base.outputs import check_file, writing

FORMATS = (".svg", ".png", ".pdf", ".html")
_SCALE = 2
"""Pixels of a PNG or PDF per pixel of a figure for a screen."""
_SCREEN_DPI = 96
"""Pixels per inch in which figures are laid out."""


def save(figure: go.Figure, path: Path) -> None:
    """Write `figure` to `path` atomically, in the format of the path's suffix.

    Raises:
        UnlearnbenchError: For any other suffix, and if kaleido or a browser is missing.
    """
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise UnlearnbenchError(f"{path}: unknown format; write the figure as {', '.join(FORMATS)}")
    check_file(path, "the figure")
    if suffix == ".html":
        content = figure.to_html(include_plotlyjs=True).encode()
    else:
        content = _image(figure, suffix.removeprefix("."), path)
    with writing(path, "the figure") as temporary:
        temporary.write_bytes(content)


def _image(figure: go.Figure, format_name: str, path: Path) -> bytes:
    """Let a browser draw the figure.

    Args:
        figure: The figure.
        format_name: `svg`, `png` or `pdf`.
        path: Where the image will be written, for the message of an error.
    """
    try:
        image: bytes = figure.to_image(format=format_name, scale=_scale(figure, format_name))
    except Exception as error:  # kaleido and the browser have no common error class
        first_line = str(error).strip().partition("\n")[0]
        raise UnlearnbenchError(
            f"{path}: no {format_name.upper()} without kaleido and Chrome or Chromium "
            f"({first_line}); `pip install 'unlearnbench[figures]'` and install a browser, or "
            "write .html"
        ) from error
    return image


def _scale(figure: go.Figure, format_name: str) -> float:
    """Return the pixels of the image per pixel of the figure.

    A figure for print states in its `meta` how much it is scaled down (`scale`) and the dots per
    inch of a PNG (`dpi`), see `notebook.Canvas`. A figure for a screen states neither.
    """
    meta: Any = cast(Any, figure.layout).meta or {}
    scale = meta.get("scale", 1.0)
    dpi = meta.get("dpi")
    if format_name == "png" and dpi:
        return float(scale * (dpi / _SCREEN_DPI))
    # An SVG and a figure for print keep their size.
    if format_name == "svg" or dpi:
        return float(scale)
    return float(scale * _SCALE)
