"""`unlearnbench methods new` and its like: a package with a plug-in that works, to be changed.

The plug-in in it is complete, down to its source and test, and conforms: an author changes one
thing at a time and sees at once what a change breaks.
"""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template

from unlearnbench.api import registry
from unlearnbench.api.registry import Kind
from unlearnbench.cli.dry_run import print_dry_run
from unlearnbench.cli.options import with_article
from unlearnbench.console import Console
from unlearnbench.errors import PluginError
from unlearnbench.files.outputs import check_folder

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def print_package(name: str, folder: Path, kind: Kind, *, dry_run: bool = False) -> None:
    """Write the package of a plug-in whose name is free; print its files and what comes next.

    dry_run  print the files alone, and write none
    """
    for other in registry.offers(kind):
        if other.name == name:
            one = kind.removesuffix("s")
            text = f"{one} {name!r} is offered by {other.source}; choose another name"
            raise PluginError(text)
    console = Console()
    if dry_run:
        place, targets = checked_package(name, folder, kind)
        print_dry_run(console, *(place / path for path in targets.values()))
        return
    written = write_package(name, folder, kind)
    for file in written:
        console.print(str(file))
    console.print(
        f"\nnext:  cd {written[0].parent}\n"
        "       pip install -e . pytest && pytest\n"
        f"       unlearnbench {kind} check {name}"
    )


def write_package(name: str, folder: Path, kind: Kind = "methods") -> tuple[Path, ...]:
    """Write the package of the plug-in `name` into `folder`/`name`; returns its files.

    Raises: PluginError for a name that no plug-in can have, and for a folder that is not empty.
    """
    place, targets = checked_package(name, folder, kind)
    one, module, words = kind.removesuffix("s"), name.replace("-", "_"), name.split("-")
    values = {
        "name": name,
        "module": module,
        "kind": kind,
        "a_one": with_article(one),
        "cls": "".join(word.capitalize() for word in words),
        "title": " ".join(words).capitalize(),
    }
    (place / "tests").mkdir(parents=True, exist_ok=True)
    for template, path in targets.items():
        text = (files("unlearnbench.cli") / "packages" / f"{template}.txt").read_text("utf-8")
        (place / path).write_text(Template(text).substitute(values), encoding="utf-8")
    return tuple(place / path for path in targets.values())


def checked_package(name: str, folder: Path, kind: Kind) -> tuple[Path, dict[str, str]]:
    """Folder of the package of a plug-in, and its files by the names of their templates.

    Raises: PluginError for a name that no plug-in can have, and for a folder that is not empty.
    """
    one = kind.removesuffix("s")
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        near = "-".join(re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()))
        usable = _NAME.fullmatch(near) and not keyword.iskeyword(near)
        hint = f"; try {near!r}" if usable and near != name else ""
        raise PluginError(
            f"{name!r} cannot be the name of {with_article(one)}: use small letters and digits, "
            f"with hyphens between words, a letter first, and not a keyword of Python{hint}"
        )
    module = name.replace("-", "_")
    if find_spec(module) is not None:
        raise PluginError(
            f"{name!r}: Python here has a module {module} already, which would hide the {one}'s "
            "file or be hidden by it; choose another name"
        )
    place = folder / name
    check_folder(place, "the package")
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise PluginError(f"{place} exists already, so nothing was written; choose another --out")
    return place, {
        "pyproject.toml": "pyproject.toml",
        f"README_{one}.md": "README.md",
        f"{one}.py": f"{module}.py",
        f"test_{one}.py": f"tests/test_{module}.py",
    }
