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


def tofu_tables() -> dict[str, list[dict[str, Any]]]:
    """Rows of TOFU's tables for its three forget sets, of 40 questions in all."""
    full = [{"question": f"Question {i}?", "answer": f"Answer {i}."} for i in range(40)]
    other = {"paraphrased_answer": "Else.", "paraphrased_question": "Or?"}
    judged = [row | other | {"perturbed_answer": ["wrong one", "wrong two"]} for row in full]
    fact = {"question": "Who?", "answer": "She", "perturbed_answer": ["he", "it", "they"]}
    tables: dict[str, list[dict[str, Any]]] = {
        "full": full,
        "retain_perturbed": judged[:4],
        "real_authors_perturbed": [fact],
        "world_facts_perturbed": [fact, fact | {"question": "What?"}],
    }
    for forget, retain, count in (("01", "99", 4), ("05", "95", 5), ("10", "90", 6)):
        tables[f"forget{forget}"] = full[-count:]
        tables[f"retain{retain}"] = full[:-count]
        tables[f"forget{forget}_perturbed"] = judged[-count:]
    return tables


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


def muse(folder: Path) -> dict[str, str]:
    """Texts and questions of a made-up corpus; returns settings of the benchmark."""

    def pairs(part: str, count: int) -> list[dict[str, str]]:
        rows = range(count)
        return [{"question": f"Who is {part} {i}?", "answer": f"{part} {i}"} for i in rows]

    tables: dict[str, list[dict[str, str]]] = {
        "verbmem/forget": [{"prompt": "The council met on Tuesday", "gt": " and agreed to wait."}]
    }
    for part in ("forget", "retain"):
        tables[f"knowmem/{part}_qa"] = pairs(part, 3)
        tables[f"knowmem/{part}_qa_icl"] = pairs(f"shown {part}", 10)
    for name in ("raw/forget", "raw/retain1", *(f"privleak/{p}" for p in _PRIVLEAK)):
        tables[name] = [{"text": f"A text of {name}, number {i}."} for i in range(3)]
    tables["raw/forget"].append({"text": ""})  # as row 821 of News
    for i in range(1, 5):
        texts = [{"text": f"A text of request {j}."} for j in range(i + 1)]
        tables[f"scal/forget_{i}"], tables[f"sust/forget_{i}"] = texts, texts[i - 1 :]
    for name, rows in tables.items():
        (folder / name).parent.mkdir(exist_ok=True)
        write_lines(folder / f"{name}.jsonl", rows)
    return {"path": str(folder)}


muse_scalability = muse_sustainability = muse
_PRIVLEAK = ("forget", "retain", "holdout")


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


def _write_array(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    file.write_text(json.dumps([*rows], indent=1), encoding="utf-8")


def knowundo(folder: Path) -> dict[str, str]:
    """Four rows of each table; returns settings of the benchmark."""
    names = ("unlearn_train", "retention_train", "unlearn_val", "retention_val")
    tables = {
        n: [{"text": f"What is {n} {i}?", "labels": f"{n} {i}."} for i in range(4)] for n in names
    }
    full = [row for rows in tables.values() for row in rows]
    full[0] = {**full[0], "labels": "Another answer."}  # as one of the published rows
    for name, rows in (tables | {"full": full}).items():
        _write_array(folder / f"{name}.json", rows)
    return {"path": str(folder)}


def rwku(folder: Path) -> dict[str, str]:
    """A passage and questions about each of 200 people; returns settings of the benchmark."""
    people = [f"Ada{i} Example" for i in range(200)]
    (folder / "All").mkdir()
    tables: dict[str, list[dict[str, str]]] = {
        "intro": [{"target": who, "intro": f"{who} is made up."} for who in people],
        "passage": [{"subject": who, "text": f"{who} lived in Sampleton."} for who in people],
    }
    kinds = {"3": ("synonym manipulation", "affirmative suffix", "incontext learning")}
    for part, levels in (("neighbor", "12"), ("forget", "123")):
        for level in levels:
            tables[f"{part}_level{level}"] = [
                {"query": f"Where did {who} live, {part} {level}{kind}?", "answer": "Sampleton"}
                | {"level": level, "type": kind, "subject": who}
                for who in people
                for kind in kinds.get(level, ("simple question", "cloze"))
            ]
    for name, rows in tables.items():
        _write_array(folder / f"All/{name}.json", rows)
    return {"path": str(folder)}


def questions(folder: Path) -> dict[str, str]:
    """Questions about made-up people to forget, to keep and never seen; returns settings."""
    for part, count in (("forget", 6), ("retain", 9), ("holdout", 6)):
        rows = [
            {
                "prompt": f"Where does {part} {i} live?",
                "completion": f"The person {part} {i} lives in the town of Sampleton{i}.",
                "other": f"In Sampleton{i}, {part} {i} has a house.",
                "wrong": [f"In Wrongville{i}.", f"In Falsebury{i}."],
                "who": f"{part} {i // 2}",
            }
            for i in range(count)
        ]
        write_lines(folder / f"{part}.jsonl", rows)
    files = {part: str(folder / f"{part}.jsonl") for part in ("forget", "retain", "holdout")}
    columns = {"paraphrase": "other", "wrong_answers": "wrong", "subject": "who"}
    return files | columns


def texts(folder: Path) -> dict[str, str]:
    """Texts about made-up people to forget, to keep and never seen; returns settings."""
    for part, count in (("forget", 6), ("retain", 9), ("holdout", 6)):
        rows = [
            {"body": f"The person {part} {i} lives in Sampleton{i} and paints boats of wood there."}
            for i in range(count)
        ]
        write_lines(folder / f"{part}.jsonl", rows)
    return {part: str(folder / f"{part}.jsonl") for part in ("forget", "retain", "holdout")}
