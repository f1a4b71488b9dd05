"""Draw the pictures of the gallery again, by the code that stands on its page.

    python docs/generate/draw_gallery.py FOLDER

FOLDER has a finished quickstart in `runs/quickstart`. The blocks of the page are carried out there,
in order, with `.svg` in place of `.html`. The pictures then go to `docs/images/gallery`.
"""

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

from unlearnbench.cli.main import main

DOCS = Path(__file__).parents[1]
PAGE = DOCS / "tutorials" / "gallery.md"
PICTURES = DOCS / "images" / "gallery"
_BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_PICTURE = re.compile(r"images/gallery/([\w-]+\.svg)")


def draw(folder: Path) -> None:
    """Draw the pictures of the page from this folder."""
    text = PAGE.read_text(encoding="utf-8")
    os.chdir(folder)
    names: dict[str, object] = {}
    for language, code in _BLOCK.findall(text.replace(".html", ".svg")):
        if language == "python":
            exec(code, names)
        else:
            for line in code.replace("\\\n", " ").splitlines():
                status = main(shlex.split(line)[1:])
                if status:
                    raise SystemExit(status)
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in _PICTURE.findall(text):
        shutil.copy(name, PICTURES / name)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
