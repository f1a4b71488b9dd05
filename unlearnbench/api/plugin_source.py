"""The source code of a plug-in file, which travels with pickles of the plug-in's instances.

A class from a plug-in file cannot be imported by name in another process, which may even run on a
machine without the file. So a pickle of an instance contains three things: the path of the file,
its text with the texts of the modules that it imports from its own folder, and the instance's
state. The other process registers the file, from a copy if it has not the same text at that path,
and makes an instance of the class that it has registered.
"""

import ast
import hashlib
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

from unlearnbench.base.errors import PluginError

Texts = tuple[tuple[str, bytes], ...]
"""Text of a plug-in file, and then of its modules, by their paths in its folder.

For example `(("my_method.py", b"…"), ("parts/losses.py", b"…"))`.
"""


class PluginSource(NamedTuple):
    """A plug-in file and the modules that it imports from its folder, as they were once read."""

    path: Path
    texts: Texts

    @property
    def digest(self) -> str:
        """Hash of the texts, 16 characters. The name of the file does not count."""
        (_, text), *modules = self.texts
        digest = hashlib.sha256(text)
        for module, module_text in modules:
            digest.update(f"{module} {len(module_text)}\n".encode() + module_text)
        return digest.hexdigest()[:16]

    def is_current(self) -> bool:
        """Whether the files on disk have these texts."""
        files = [(self.path.parent / name, text) for name, text in self.texts]
        return all(file.is_file() and file.read_bytes() == text for file, text in files)

    def unload(self) -> None:
        """Forget the imported modules, so that the next import reads their files again."""
        files = {self.path.parent / name for name, _ in self.texts}
        for name, module in [*sys.modules.items()]:
            file = getattr(module, "__file__", None)
            if file and Path(file).resolve() in files:
                del sys.modules[name]


def read_text(path: str | Path) -> tuple[Path, bytes]:
    """Read a plug-in file.

    Returns:
        Its absolute path and its text.

    Raises:
        PluginError: It is not a Python file, or cannot be read.
    """
    target = Path(path).resolve()
    if target.suffix != ".py":
        raise PluginError(f"--plugin {path} is not a Python file: its name must end in .py")
    try:
        return target, target.read_bytes()
    except OSError as error:
        raise PluginError(f"--plugin {path} cannot be read: {error.strerror}") from None


def source_of(path: Path, text: bytes) -> PluginSource:
    """Collect the modules that a plug-in file imports from its folder, directly or indirectly.

    Args:
        path: Absolute path of the file.
        text: Text of the file.
    """
    folder = path.parent
    text_of_file = {path: text}
    # Texts whose imports are still to be followed, each with its package ("" for the file).
    waiting = [(text, "")]
    while waiting:
        importing, package = waiting.pop()
        for module in _imports(importing, package):
            for file, package_of_file in _files_of(module, folder):
                if file not in text_of_file and file.is_file():
                    text_of_file[file] = file.read_bytes()
                    waiting.append((text_of_file[file], package_of_file))
    modules = sorted(file for file in text_of_file if file != path)
    texts = [(str(file.relative_to(folder)), text_of_file[file]) for file in (path, *modules)]
    return PluginSource(path, tuple(texts))


@cache
def available_path(source: PluginSource) -> Path:
    """Return a path at which a plug-in of another process can be imported.

    Returns:
        The plug-in's own path if the same texts are there, or else that of a copy in a new folder.
    """
    if source.is_current():
        return source.path
    folder = Path(mkdtemp(prefix="unlearnbench-plugin-"))
    for name, text in source.texts:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text)
    return folder / source.path.name


def _imports(text: bytes, package: str) -> set[str]:
    """Find the names that a text imports, also inside functions.

    Args:
        text: Python source.
        package: Package of the text, to which relative imports refer.

    Returns:
        Names such as `parts.losses`. A name may be a module, or something in a module.
    """
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
    """Yield the files that a module and the packages around it would have below a folder.

    Yields:
        Each possible file, with the package of its text.
    """
    parts = name.split(".")
    if parts[0] == __name__.partition(".")[0]:
        return
    for count in range(1, len(parts) + 1):
        path = folder.joinpath(*parts[:count])
        package = ".".join(parts[:count])
        yield path / "__init__.py", package
        yield path.with_name(f"{path.name}.py"), package.rpartition(".")[0]
