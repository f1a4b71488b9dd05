"""`unlearnbench methods gradient`: what losses do to a token's logits, as table and page."""

from pathlib import Path
from typing import Annotated

from unlearnbench.api import registry
from unlearnbench.base.console import Console
from unlearnbench.base.outputs import check_file, write_file
from unlearnbench.cli.command import argument, command, new_group, option
from unlearnbench.cli.options import Plugins, register_plugins

app = new_group()


@command(app, "gradient")
def gradient(
    names: Annotated[list[str] | None, argument("NAME", "Methods.", show_default="all")] = None,
    out: Annotated[str | None, option("FILE", "Page to write, .html.")] = None,
    csv: Annotated[str | None, option("FILE", "Table to write.")] = None,
    reference: Annotated[
        float, option("P", "p of the start model; 0: the policy's own.", min=0, max=1 - 1e-9)
    ] = 0.99,
    plugins: Plugins = None,
) -> None:
    """Show what each loss does to a token's logits, from p = 1e-6 to 1 - 1e-6.

    The loss is computed for one forget token in a fixed random context.

    Examples:
      unlearnbench methods gradient ce-u gradient-ascent npo --out gradient.html
      unlearnbench methods gradient --csv gradient.csv
    """
    if out:
        check_file(out, "the page", (".html",))
    files = register_plugins(plugins)
    from unlearnbench.report.gradient_profile import gradient_profiles
    from unlearnbench.testing import example

    chosen = [*names, *files] if names else registry.names("methods")
    methods = {name: example(name) for name in chosen}
    profiles = gradient_profiles(methods, reference or None)
    console = Console()
    columns = [f"p = {p}" for p in ("1e-6", "0.001", "0.5", "0.999", "1 - 1e-6")]
    # A curve has 81 points. Every 20th is at one of these probabilities.
    lines = [(name, *(p.norm for p in points[::20])) for name, points in profiles.curves.items()]
    console.table(("norm of the gradient", *columns), lines)
    for name, reason in profiles.without.items():
        console.print(f"{name}: {reason}")
    if csv:
        write_file(Path(csv), profiles.to_csv(), "the table")
        console.print(f"wrote {csv}")
    if out:
        page = registry.load("dashboards", "gradient")(profiles)
        write_file(Path(out), page, "the page")
        console.print(f"wrote {out}")
