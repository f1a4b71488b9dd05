"""`unlearnbench methods gradient`: what losses do to a token's logits, as table and page."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from unlearnbench.api import registry
from unlearnbench.base.console import Console
from unlearnbench.base.errors import PluginError
from unlearnbench.base.outputs import check_file, write_file
from unlearnbench.cli.command import argument, command, flag, new_group, option
from unlearnbench.cli.options import Plugins, register_plugins

if TYPE_CHECKING:
    from unlearnbench.api.inference_method import Wrapper
    from unlearnbench.api.method import Method
    from unlearnbench.testing.gradient_profile import Cosines, GradientProfiles

app = new_group()


@command(app, "gradient")
def gradient(
    names: Annotated[list[str] | None, argument("NAME", "Methods.", show_default="all")] = None,
    out: Annotated[str | None, option("FILE", "Page to write, .html.")] = None,
    csv: Annotated[str | None, option("FILE", "Table to write.")] = None,
    cosine: Annotated[bool, flag("--cosine", "Print pairwise cosines instead.")] = False,
    reference: Annotated[
        float, option("P", "p of the start model; 0: the policy's own.", min=0, max=1 - 1e-9)
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
    if out:
        check_file(out, "the page", (".html",))
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
    profiles: GradientProfiles | Cosines
    if cosine:
        profiles = cosines(methods)
        lines = zip(profiles.names, profiles.values, strict=True)
        rows = [(name, *(v if v is None else round(v, 3) for v in line)) for name, line in lines]
        console.table(("cosine", *profiles.names), rows)
    else:
        profiles = gradient_profiles(methods, reference or None)
        columns = [f"p = {name}" for name in ("1e-6", "0.001", "0.5", "0.999", "1 - 1e-6")]
        curves = [(n, *(p.norm for p in points[::20])) for n, points in profiles.curves.items()]
        console.table(("norm of the gradient", *columns), curves)
    for name, reason in {**profiles.without, **refused}.items():
        console.print(f"{name}: {reason}")
    if csv:
        _write(console, csv, profiles.to_csv())
    if out:
        draw = registry.load("dashboards", "gradient-cosine" if cosine else "gradient")
        _write(console, out, draw(profiles))


def _write(console: Console, path: str, text: str) -> None:
    write_file(Path(path), text, "the page" if path.endswith(".html") else "the table")
    console.print(f"wrote {path}")
