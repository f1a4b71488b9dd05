"""`unlearnbench methods gradient`: what losses do to a token's logits, as table and page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from unlearnbench.api import registry
from unlearnbench.cli.command import argument, command, flag, new_group, option
from unlearnbench.cli.options import Plugins, completion, number_between, register_plugins
from unlearnbench.console import Console
from unlearnbench.errors import PluginError, UnlearnbenchError
from unlearnbench.files.outputs import Output, write_file

if TYPE_CHECKING:
    from unlearnbench.api.inference_method import Wrapper
    from unlearnbench.api.method import Method
    from unlearnbench.testing.gradient_profile import Cosines, GradientProfiles

app = new_group()


def _start_probability(text: str | float) -> float | None:
    return None if text == "policy" else number_between(0, 1)(str(text))


@command(
    app,
    "gradient",
    writes=[Output("out", "the page", suffixes=(".html",)), Output("csv", "the table")],
)
def gradient(
    names: Annotated[
        list[str] | None,
        argument("NAME", "Methods.", autocompletion=completion("methods"), show_default="all"),
    ] = None,
    out: Annotated[str | None, option("FILE", "Page to write, .html.")] = None,
    csv: Annotated[str | None, option("FILE", "Table to write.")] = None,
    cosine: Annotated[bool, flag("--cosine", "Print pairwise cosines instead.")] = False,
    reference: Annotated[
        float | None,
        option(
            "P",
            "p of the start model, or `policy` for the policy's own.",
            parser=_start_probability,
        ),
    ] = 0.99,
    plugins: Plugins = None,
) -> None:
    """Show what each loss does to a token's logits, from p = 1e-6 to 1 - 1e-6.

    One forget token in a fixed random context. --cosine: how alike the gradients of all weights
    are, on one batch of a small model trained here.

    Examples:
      unlearnbench methods gradient ce-u gradient-ascent npo --out gradient.html
      unlearnbench methods gradient --csv gradient.csv
      unlearnbench methods gradient --cosine --out cosine.html
    """
    files = register_plugins(plugins)
    chosen = [*names, *files] if names else registry.names("methods")
    from unlearnbench.testing import example
    from unlearnbench.testing.gradient_profile import cosines, gradient_profiles

    methods: dict[str, Method | Wrapper] = {}
    refused: dict[str, str] = {}
    for name in chosen:
        try:
            methods[name] = example(name)
        except PluginError as error:
            if names:  # those that were asked for must have one
                raise
            refused[name] = str(error)
    console = Console()
    found: GradientProfiles | Cosines
    if cosine:
        found = cosines(methods)
        lines = zip(found.names, found.values, strict=True)
        rows = [(name, *(v if v is None else round(v, 3) for v in line)) for name, line in lines]
        console.table(("cosine", *found.names), rows)
    else:
        found = gradient_profiles(methods, reference)
        columns = [f"p = {name}" for name in ("1e-6", "0.001", "0.5", "0.999", "1 - 1e-6")]
        curves = [(n, *(p.norm for p in points[::20])) for n, points in found.curves.items()]
        console.table(("norm of the gradient", *columns), curves)
    for name, reason in {**found.without, **refused}.items():
        console.print(f"{name}: {reason}")
    if csv:
        _write(console, csv, found.to_csv())
    if out:
        draw = registry.load("dashboards", "gradient-cosine" if cosine else "gradient")
        _write(console, out, draw(found))


def _write(console: Console, path: str, text: str) -> None:
    target = Path(path)
    if not target.parent.is_dir():
        raise UnlearnbenchError(f"{path}: the folder {target.parent} does not exist")
    write_file(target, text, "the table" if target.suffix == ".csv" else "the page")
    console.print(f"wrote {path}")
