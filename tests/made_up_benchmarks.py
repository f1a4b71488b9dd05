"""Folders with made-up rows in the layouts of benchmarks whose own are not in the project."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

CHOICE = {
    "question": "Which pigment makes leaves green? ",
    "choices": ["Keratin", "Chlorophyll", "Melanin", "Heme"],
    "answer": 1,
}
SUBJECTS = (
    *("sociology", "philosophy", "college_biology", "virology", "college_chemistry"),
    *("college_computer_science", "computer_security", "high_school_chemistry"),
)


def write_lines(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def wmdp(folder: Path) -> dict[str, str]:
    """A question of each set, and a text of each corpus; returns settings of the benchmark."""
    for name in ("wmdp-bio", "wmdp-cyber", "wmdp-chem", *SUBJECTS):
        write_lines(folder / f"{name}.jsonl", [CHOICE])
    for split in ("bio", "cyber", "chem"):
        for part in ("forget", "retain"):
            row = {"text": f"A text about {split} to {part}."}
            write_lines(folder / f"{split}-{part}.jsonl", [row])
    return dict.fromkeys(("path", "mmlu", "corpora"), str(folder))


def lume(folder: Path) -> dict[str, str]:
    """Two completions and four questions of each task; returns settings of the benchmark."""
    for part in ("forget", "retain"):
        rows = [
            {"id": f'"{part}-{i}"{kind}', "input": f"{part} {task} {kind} {i}.", "output": "Ada."}
            | {"task": task}
            for task in ("Task1", "Task2", "Task3")
            for kind in ("sc1", "qa0", "qa1")
            for i in range(2)
        ]
        write_lines(folder / f"{part}.jsonl", rows)
    return {"path": str(folder)}


def edu_relat(folder: Path) -> dict[str, str]:
    """A ring of 60 people, 55 of them targets; returns settings of the benchmark."""
    ring = range(60)
    facts = [{"question4": f"Who is P{i} to P{i + 1}?", "answer4": "a friend"} for i in ring]
    jobs = [{"question4": f"What is the job of P{i}?", "answer4": f"job {i}"} for i in ring]
    write_lines(folder / "relationships.jsonl", facts)
    write_lines(folder / "biographies.jsonl", jobs)
    minimal = {i: [[i, (i + 1) % 60], [i, (i + 2) % 60, (i + 3) % 60]] for i in range(55)}
    for name, table in (("subsample", [*range(55)]), ("minimal_sets", minimal)):
        (folder / f"{name}.json").write_text(json.dumps(table), encoding="utf-8")
    return {"path": str(folder)}
