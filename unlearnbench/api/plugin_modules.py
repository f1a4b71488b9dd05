"""The modules that a plug-in file imports from below its own folder: they are part of it."""

import ast
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import resolve_name
from pathlib import Path

Texts = tuple[tuple[str, bytes], ...]
"""Text of a plug-in file, and of its modules, by their paths in its folder."""


def texts_of(path: Path, text: bytes) -> Texts:
    """The file with the modules that it imports, also inside functions, and those that they do."""
    folder, result, waiting = path.parent, {path: text}, [(text, "")]
    while waiting:
        for name in _imports(*waiting.pop()):
            for file, package in _files_of(name, folder):
                if file not in result and file.is_file():
                    result[file] = file.read_bytes()
                    waiting.append((result[file], package))
    first, *others = result
    return tuple(
        (str(other.relative_to(folder)), result[other]) for other in (first, *sorted(others))
    )


def _imports(text: bytes, package: str) -> set[str]:
    names: set[str] = set()
    with suppress(SyntaxError, ValueError, ImportError):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                names |= {name.name for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = resolve_name("." * node.level + (node.module or ""), package)
                names |= {f"{base}.{name.name}" for name in node.names}
    return names


def _files_of(name: str, folder: Path) -> Iterator[tuple[Path, str]]:
    """The files below `folder` of a module and the packages around it, each with its package."""
    parts = name.split(".")
    for count in range(1, len(parts) + 1) if parts[0] != __name__.partition(".")[0] else ():
        path, package = folder.joinpath(*parts[:count]), ".".join(parts[:count])
        yield path / "__init__.py", package
        yield path.with_name(f"{path.name}.py"), package.rpartition(".")[0]


def is_current(path: Path, texts: Texts) -> bool:
    """True if the file at `path`, and its modules, have these texts on disk."""
    files = [(path.parent / name, text) for name, text in texts]
    return all(file.is_file() and file.read_bytes() == text for file, text in files)


def unload(path: Path, texts: Texts) -> None:
    """Forget the imported modules of a file, so that the next import reads them again."""
    files = {path.parent / name for name, _ in texts}
    for name, module in [*sys.modules.items()]:
        if (file := getattr(module, "__file__", None)) and Path(file).resolve() in files:
            del sys.modules[name]
