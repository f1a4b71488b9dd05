"""The tutorial on modifiers prints the file that the tests of modifiers use."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TESTED = ROOT / "tests" / "contracts"


def test_the_tutorial_has_the_file_that_is_tested() -> None:
    page = ROOT / "docs/tutorials/add-a-modifier.md"
    assert (TESTED / "projection.py").read_text() in page.read_text()
    for file in ("sharpness", "projection", "mask"):
        assert len((TESTED / f"{file}.py").read_text().splitlines()) <= 40
