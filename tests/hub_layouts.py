"""Repositories as the hub has them, made of the folders of `made_up_benchmarks`.

The layouts are those of the real data sets, as their pages and programs that read them show: which
files there are, and which configurations and splits the card (README.md) names.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests import made_up_benchmarks
from tests.made_up_benchmarks import CHOICE, write_lines

Rows = Sequence[Mapping[str, Any]]

ROBUST = (
    *("bioweapons_and_bioterrorism", "dual_use_virology"),
    *("enhanced_potential_pandemic_pathogens", "expanding_access_to_threat_vectors"),
    *("reverse_genetics_and_easy_editing", "viral_vector_research"),
)
"""Configurations of WMDP's robust variant."""


def read_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]


def write_parquet(folder: Path, config: str, split: str, rows: Rows, parts: int = 1) -> None:
    """Write a split as `push_to_hub` does."""
    from pyarrow import Table, parquet

    (folder / config).mkdir(parents=True, exist_ok=True)
    size = -(-len(rows) // parts)
    for part in range(parts):
        table: Any = Table.from_pylist([*rows[part * size : (part + 1) * size]])
        name = f"{config}/{split}-{part:05d}-of-{parts:05d}.parquet"
        parquet.write_table(table, folder / name)


def write_card(folder: Path, configs: Mapping[str, Mapping[str, str]]) -> None:
    """Write a card that names the files of each split of each configuration."""
    lines = ["---", "license: mit", "configs:"]
    for config, files in configs.items():
        lines += [f"- config_name: {config}", "  data_files:"]
        for split, pattern in files.items():
            lines += [f"  - split: {split}", f"    path: {pattern}"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text("\n".join([*lines, "---", "# Data"]), encoding="utf-8")


def muse(folder: Path, repositories: Path) -> dict[str, Path]:
    """News: a configuration for each folder, Parquet, some of it in two files."""
    place = repositories / "MUSE-News"
    made_up_benchmarks.muse(folder)
    configs: dict[str, dict[str, str]] = {}
    for file in sorted(folder.rglob("*.jsonl")):
        config, split = file.parent.name, file.stem
        rows = read_lines(file)
        write_parquet(place, config, split, rows, parts=2 if len(rows) > 2 else 1)
        configs.setdefault(config, {})[split] = f"{config}/{split}-*"
    write_card(place, configs)
    return {"muse-bench/MUSE-News": place}


muse_scalability = muse_sustainability = muse


def wmdp(folder: Path, repositories: Path) -> dict[str, Path]:
    """Questions, MMLU, both variants, and two repositories of corpora."""
    made_up_benchmarks.wmdp(folder)
    places = {
        name: repositories / name.replace("/", "-")
        for name in (
            *("cais/wmdp", "cais/mmlu", "cais/wmdp-corpora", "cais/wmdp-bio-forget-corpus"),
            *("EleutherAI/wmdp_bio_robust_mcqa", "EleutherAI/wmdp_bio_cloze"),
        )
    }
    for split in ("bio", "cyber", "chem"):
        rows = read_lines(folder / f"wmdp-{split}.jsonl")
        write_parquet(places["cais/wmdp"], f"wmdp-{split}", "test", rows)
    for subject in made_up_benchmarks.SUBJECTS:
        rows = read_lines(folder / f"{subject}.jsonl")
        numbered = [row | {"subject": subject} for row in rows]
        write_parquet(places["cais/mmlu"], subject, "test", numbered)
        write_parquet(places["cais/mmlu"], subject, "dev", numbered)
    corpora = places["cais/wmdp-corpora"]
    for config in ("bio-retain", "cyber-forget", "cyber-retain"):
        texts = [*read_lines(folder / f"{config}.jsonl"), {"text": f"Another text of {config}."}]
        write_lines(folder / f"{config}.jsonl", texts)
        (corpora / "files").mkdir(parents=True, exist_ok=True)
        write_lines(corpora / f"files/{config}.jsonl", texts)
    names = ("bio-retain", "cyber-forget", "cyber-retain")
    write_card(corpora, {f"{n}-corpus": {"train": f"files/{n}.jsonl"} for n in names})
    texts = [
        row | {"title": "A title", "abstract": "007"}
        for row in read_lines(folder / "bio-forget.jsonl")
    ]
    write_parquet(places["cais/wmdp-bio-forget-corpus"], "data", "train", texts)
    (folder / "robust").mkdir()
    (folder / "cloze_compatible").mkdir()
    for number, config in enumerate(ROBUST):
        rows = [CHOICE | {"question": f"Question {number}?"}]
        write_lines(folder / f"robust/{config}.jsonl", rows)
        write_parquet(places["EleutherAI/wmdp_bio_robust_mcqa"], config, "robust", rows)
        write_parquet(places["EleutherAI/wmdp_bio_robust_mcqa"], config, "shortcut", rows)
    rows = [CHOICE | {"question": "What makes leaves green?", "prompt": "P", "reasoning": "R"}]
    write_lines(folder / "cloze_compatible/data.jsonl", rows)
    write_parquet(places["EleutherAI/wmdp_bio_cloze"], "data", "cloze_compatible", rows)
    return places


def rwku(folder: Path, repositories: Path) -> dict[str, Path]:
    """The same files in the folder `All`, and a card that names more of them."""
    place = repositories / "RWKU"
    place.mkdir(parents=True)
    made_up_benchmarks.rwku(place)
    folder.mkdir(exist_ok=True)
    (folder / "All").mkdir()
    configs = {"forget_target": {"train": "All/intro.json"}}
    for file in sorted((place / "All").iterdir()):
        (folder / "All" / file.name).write_bytes(file.read_bytes())
        if "level" in file.stem:
            configs[file.stem] = {"test": f"All/{file.name}"}
    (place / "All/reject.json").write_text("[]", encoding="utf-8")
    configs["train_original_passage"] = {"train": "All/passage.json"}
    write_card(place, configs)
    return {"jinzhuoran/RWKU": place}


def knowundo(folder: Path, repositories: Path) -> dict[str, Path]:
    """Two configurations of two files, each of which is one object of two lists."""
    place = repositories / "KnowUnDo"
    made_up_benchmarks.knowundo(folder)
    # `full` has the rows of the others in this order.
    names = ("unlearn_train", "retention_train", "unlearn_val", "retention_val")
    tables = {n: json.loads((folder / f"{n}.json").read_text(encoding="utf-8")) for n in names}
    rows = [row for table in tables.values() for row in table]
    (folder / "full.json").write_text(json.dumps(rows), encoding="utf-8")
    configs: dict[str, dict[str, str]] = {}
    for config in ("copyright", "privacy"):
        (place / config).mkdir(parents=True)
        for split in ("unlearn", "retention"):
            lists = {part: tables[f"{split}_{part}"] for part in ("train", "val")}
            if config == "copyright":
                lists = {"train": [{"text": "Another?", "labels": "Another."}], "val": []}
            (place / config / f"{split}_set.json").write_text(json.dumps(lists, indent=1))
            configs.setdefault(config, {})[split] = f"{config}/{split}_set.json"
    write_card(place, configs)
    return {"zjunlp/KnowUnDo": place}


def lume(folder: Path, repositories: Path) -> dict[str, Path]:
    """SemEval's part: four splits, and a file of another kind."""
    place = repositories / "semeval"
    made_up_benchmarks.lume(folder)
    for part in ("forget", "retain"):
        rows = read_lines(folder / f"{part}.jsonl")
        write_parquet(place, "data", f"{part}_train", rows)
        write_parquet(place, "data", f"{part}_validation", rows[:6])
    (place / "mia_data").mkdir()
    write_lines(place / "mia_data/member.jsonl", [{"id": "1", "document": "A document."}])
    return {"llmunlearningsemeval2025organization/semeval25-unlearning-dataset-public": place}


def tofu(folder: Path, repositories: Path) -> dict[str, Path]:
    """A file of JSON lines for each configuration, with the suffix `.json`."""
    place = repositories / "TOFU"
    place.mkdir(parents=True)
    folder.mkdir(exist_ok=True)
    tables = made_up_benchmarks.tofu_tables()
    for name, rows in tables.items():
        for target in (place, folder):
            write_lines(target / f"{name}.json", rows)
    write_card(place, {name: {"train": f"{name}.json"} for name in tables})
    return {"locuslab/TOFU": place}
