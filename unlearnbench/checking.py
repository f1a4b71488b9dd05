"""`unlearnbench methods check|new|gradient`: what method authors ask of their method."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unlearnbench import registry
from unlearnbench.arguments import Subparsers, add_json, add_plugin, command
from unlearnbench.console import Console
from unlearnbench.errors import PluginError, UnlearnbenchError
from unlearnbench.fresh_process import fresh_process
from unlearnbench.outputs import Output, write_file
from unlearnbench.scaffold import write_package

if TYPE_CHECKING:
    from unlearnbench.anatomy import Anatomy, Cosines
    from unlearnbench.method import Method, Wrapper
    from unlearnbench.testing import Result

FAULT = 1
_SHORT = {
    "passed": "pass",
    "fault": "FAULT",
    "not declared": "-",
    "not applicable": "n/a",
    "not run": "skip",
}


def check(args: argparse.Namespace) -> int:
    """`unlearnbench methods check NAME`: the conformance suite, told as a doctor would."""
    names = _chosen(args)
    values = _values(args.set)
    if values and len(names) != 1:
        raise UnlearnbenchError("--set is for one method: name it in place of --all")
    if not args.only or "fresh-process" in args.only:
        fresh_process()  # its imports take as long as ours
    from unlearnbench.testing import check_method

    console = Console()
    found: dict[str, Sequence[Result]] = {}
    for name in names:
        if len(names) > 1:
            console.note(f"checking {name}")
        found[name] = check_method(name, values, args.only)
    if args.json:
        console.print_json({name: [_plain(r) for r in results] for name, results in found.items()})
    else:
        report(console, found, _told(args), [n for n in names if _is_silent(n, values)])
    faults = any(r.outcome.verdict == "fault" for results in found.values() for r in results)
    return FAULT if faults else 0


def new(args: argparse.Namespace) -> int:
    """`unlearnbench methods new NAME`: a package that works, to be changed into another."""
    taken = next((o for o in registry.offers("methods") if o.name == args.name), None)
    if taken is not None:
        raise PluginError(f"method {args.name!r} is offered by {taken.source}; choose another name")
    files = write_package(args.name, Path(args.out))
    console = Console()
    for file in files:
        console.print(str(file))
    console.print(
        f"\nnext:  cd {files[0].parent}\n"
        "       pip install -e . && pytest\n"
        f"       unlearnbench methods check {args.name}"
    )
    return 0


def gradient(args: argparse.Namespace) -> int:
    """`unlearnbench methods gradient [NAMES]`: curves, or with --cosine how alike methods are."""
    files = [registry.register_file(file) for file in args.plugin]
    names = [*args.names, *files] if args.names else registry.names("methods")
    from unlearnbench.anatomy import anatomy, cosines

    methods, refused = _examples(names, all_of_them=not args.names)
    console = Console()
    told: Anatomy | Cosines
    if args.cosine:
        told = cosines(methods)
        lines = zip(told.names, told.values, strict=True)
        rows = [(name, *(v if v is None else round(v, 3) for v in line)) for name, line in lines]
        console.table(("cosine", *told.names), rows)
    else:
        told = anatomy(methods, args.reference)
        columns = [f"p = {name}" for name in ("1e-6", "0.001", "0.5", "0.999", "1 - 1e-6")]
        curves = [(n, *(p.norm for p in points[::20])) for n, points in told.curves.items()]
        console.table(("norm of the gradient", *columns), curves)
    for name, reason in {**told.without, **refused}.items():
        console.print(f"{name}: {reason}")
    if args.csv:
        _write(console, args.csv, told.to_csv())
    if args.out:
        draw = registry.load("dashboards", "gradient-cosine" if args.cosine else "gradient")
        _write(console, args.out, draw(told))
    return 0


def _examples(
    names: Sequence[str], *, all_of_them: bool
) -> tuple[dict[str, Method | Wrapper], dict[str, str]]:
    """Methods by name, and why some are none; the first of those that were named is an error."""
    from unlearnbench.testing import example

    methods: dict[str, Method | Wrapper] = {}
    refused: dict[str, str] = {}
    for name in names:
        try:
            methods[name] = example(name)
        except PluginError as error:
            if not all_of_them:
                raise
            refused[name] = str(error)
    return methods, refused


def _write(console: Console, path: str, text: str) -> None:
    target = Path(path)
    if not target.parent.is_dir():
        raise UnlearnbenchError(f"{path}: the folder {target.parent} does not exist")
    write_file(target, text, "the table" if target.suffix == ".csv" else "the page")
    console.print(f"wrote {path}")


def _is_silent(name: str, values: Mapping[str, Any]) -> bool:
    """True if the method reads a reference and does not declare its value where it begins."""
    from unlearnbench.method import Method
    from unlearnbench.testing import example

    one = example(name, values)
    return (
        isinstance(one, Method)
        and bool(one.needed().reference)
        and one.value_at_reference() is None
    )


def report(
    console: Console,
    found: Mapping[str, Sequence[Result]],
    told: str,
    silent: Sequence[str],
) -> None:
    """Table, explanations, and the last line, which names what no check could see."""
    if len(found) == 1:
        (results,) = found.values()
        seen = [(r.check.name, r.outcome.verdict, r.outcome.seen) for r in results]
        console.table(("check", "verdict", "what was seen"), seen)
    else:
        names = [*dict.fromkeys(r.check.name for results in found.values() for r in results)]
        rows = [
            (name, *(_SHORT[verdicts.get(check, "not run")] for check in names))
            for name, verdicts in (
                (name, {r.check.name: r.outcome.verdict for r in results})
                for name, results in found.items()
            )
        ]
        console.table(("method", *names), rows)
        console.print("\n-    the method declares nothing to compare with\nn/a  it does not arise")
        if any(r.outcome.verdict == "not run" for results in found.values() for r in results):
            console.print("skip another check failed, without which it means nothing")
    wrong = [(n, r) for n, rs in found.items() for r in rs if r.outcome.verdict == "fault"]
    for name, result in wrong:
        if result.outcome.as_in:
            continue  # explained where it was seen first
        console.print()
        for line in _explained(name, result, told):
            console.print(line)
    seconds = sum(r.seconds for results in found.values() for r in results)
    methods = f"{len(found)} methods" if len(found) > 1 else next(iter(found))
    faults = f"{len(wrong)} fault{'s' if len(wrong) != 1 else ''}"
    unseen = ""
    if silent:
        which = "it" if len(found) == 1 else ", ".join(silent)
        unseen = (
            f"; a wrong factor would not show: {which} declared no `value_at_reference` beside the "
            "reference"
        )
    console.print(f"\n{methods}: {faults if wrong else 'no fault'}, {seconds:.1f} s{unseen}")


def _explained(name: str, result: Result, told: str) -> list[str]:
    check, seen = result.check, result.outcome.seen
    lines = [f"{name}: {check.name}"]
    again = ("to see it", f"{check.see(name)}{told}")
    blocks = [
        ("what", check.claim),
        ("seen", seen),
        ("why it matters", check.why),
        again,
        ("look for", check.mend),
    ]
    if result.outcome.error:  # what the check is about was not seen: its advice means nothing
        blocks = [("seen", seen), again]
    for what, text in blocks:
        lines += textwrap.wrap(
            text,
            width=100,
            initial_indent=f"  {what:15} ",
            subsequent_indent=" " * 18,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines


def _plain(result: Result) -> dict[str, Any]:
    check = result.check
    told = {"check": check.name, "verdict": result.outcome.verdict, "seen": result.outcome.seen}
    return told | {
        "claim": check.claim,
        "why": check.why,
        "mend": check.mend,
        "seconds": round(result.seconds, 3),
    }


def _chosen(args: argparse.Namespace) -> list[str]:
    """The methods that are meant; those of `--plugin` files where none is named."""
    files = [registry.register_file(file) for file in args.plugin]
    if args.all and args.names:
        raise UnlearnbenchError("name methods, or say --all, not both")
    names = list(registry.names("methods")) if args.all else args.names or files
    if not names:
        raise UnlearnbenchError("which method? Name one, or say --all, or give --plugin FILE")
    for name in names:
        registry.load_method(name)  # what is unknown or broken is said before any work
    return names


def _values(texts: Sequence[str]) -> dict[str, Any]:
    """`key=value` as hyper-parameters; values are YAML."""
    from unlearnbench.document import Entry, with_override
    from unlearnbench.errors import ConfigError, Problem

    problems: list[Problem] = []
    root = Entry({}, "--set")
    for text in texts:
        root = with_override(root, text, problems)
    if problems:
        raise ConfigError(problems)
    plain: dict[str, Any] = root.plain()
    return plain


def _told(args: argparse.Namespace) -> str:
    """The options that a command needs to see the same again."""
    options = [("--plugin", file) for file in args.plugin] + [("--set", text) for text in args.set]
    return "".join(f" {option} {value}" for option, value in options)


def add_commands(verbs: Subparsers) -> None:
    """`check`, `new` and `gradient`."""
    checks = command(
        verbs,
        "check",
        check,
        "check a method for the mistakes that published harnesses have made; seconds, no GPU",
        "examples:\n"
        "  unlearnbench methods check npo\n"
        "  unlearnbench methods check --plugin my_method.py\n"
        "  unlearnbench methods check npo --set beta=0.5 --only reference\n"
        "  unlearnbench methods check --all --json\n\n"
        "On a tiny random model, through the code that trains. Exit code 1 where there is a fault.",
    )
    checks.add_argument("names", metavar="NAME", nargs="*", help="methods to check")
    checks.add_argument("--all", action="store_true", help="every method that is installed")
    checks.add_argument(
        "--only", action="append", default=[], metavar="CHECK", help="this check (repeatable)"
    )
    _add_set(checks)
    add_plugin(checks)
    add_json(checks)
    news = command(
        verbs,
        "new",
        new,
        "write a package with a method of your own: method, test, pyproject, README",
        "example:\n  unlearnbench methods new my-method\n"
        "  cd my-method && pip install -e . && pytest",
        writes=[Output("out", "the package", kind="folder")],
    )
    news.add_argument("name", metavar="NAME", help="such as my-method")
    news.add_argument(
        "--out", default=".", metavar="DIR", help="the package becomes a folder in it (default: .)"
    )
    gradients = command(
        verbs,
        "gradient",
        gradient,
        "what each loss does to a token's logits, from p = 1e-6 to 1 - 1e-6",
        "examples:\n"
        "  unlearnbench methods gradient ce-u gradient-ascent npo --out gradient.html\n"
        "  unlearnbench methods gradient --csv gradient.csv\n"
        "  unlearnbench methods gradient --cosine --out cosine.html\n\n"
        "One forget token in a fixed random context. --cosine: how alike the gradients of all\n"
        "weights are, on one batch of a small model trained here.",
        writes=[
            Output("out", "the page", suffixes=(".html",)),
            Output("csv", "the table"),
        ],
    )
    gradients.add_argument("names", metavar="NAME", nargs="*", help="methods (default: all)")
    gradients.add_argument("--out", metavar="FILE", help="page to write, .html")
    gradients.add_argument("--csv", metavar="FILE", help="table to write")
    gradients.add_argument("--cosine", action="store_true", help="pairwise cosines instead")
    gradients.add_argument(
        "--reference",
        type=_start,
        default=0.99,
        metavar="P",
        help="p of the start model, or `policy` for the policy's own (default: 0.99)",
    )
    add_plugin(gradients)


def _start(text: str) -> float | None:
    if text == "policy":
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text} is neither `policy` nor between 0 and 1")
    return value


def _add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a hyper-parameter in place of its default; the value is YAML (repeatable)",
    )
