"""Gates of a refactoring: what a sweep records, before and after, compared value by value.

    .venv/bin/python .ci/gates.py record OUT [--quickstart]   # with the code of this checkout
    .venv/bin/python .ci/gates.py compare BEFORE AFTER

`record` runs sweeps that cover what no shipped configuration has (selection, patience, a metric
that ends a run, determinism, other precisions, LoRA, a plug-in file, model folders, several
processes) and keeps ids, specs, metrics, steps and hashes of all observations, without times.
"""

import argparse
import difflib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

TINY = """
data: {source: synthetic, authors: 6, questions_per_author: 4, pretraining_authors: 2}
forget_fractions: [0.5]
learning_rates: [1.0e-3]
epochs: 2
training: {batch_size: 4}
evaluation: {rows: 6, max_length: 96}
tracking: {enabled: false}
ray: {concurrent: 2}
"""
MODEL = """
models:
  - name: tiny
    base: tiny
    architecture:
      {vocabulary: 400, hidden_size: 32, layers: 2, heads: 2, intermediate_size: 64, context: 256}
    preparation: {epochs: 2, base_epochs: 2, batch_size: 16}
"""
NLL = "retain: {term: nll}"
SWEEPS = {
    "methods": (
        MODEL
        + "methods: [ce-u, general-ce-u, gradient-ascent, gradient-difference, idk, dpo, rmu, "
        "kl-minimization, pdu, kto, flat, undial, satimp, eco, {method: task-vector, alpha: 2.0}, "
        f"{{method: npo, {NLL}}}, {{method: simnpo, {NLL}}}, {{method: wga, {NLL}}}, "
        f"{{method: tnpo, {NLL}}}, {{method: altpo, max_new_tokens: 8, retain: {{term: kl}}}}, "
        f"{{method: grpo, samples: 2, max_new_tokens: 8, {NLL}}}]\n"
        "attacks: {relearning: {learning_rate: 1.0e-3, steps: [2]}, quantization: {}}\n"
    ),
    "processes": (
        MODEL + f"methods: [ce-u, {{method: npo, {NLL}}}, kl-minimization]\n"
        "resources: {processes: 2}\n"
    ),
    "rules": (
        MODEL + f"methods: [{{method: npo, beta: [0.1, 0.5], {NLL}}}, gradient-ascent]\n"
        "seeds: [0, 1]\nselect: {seeds: [0]}\nepochs: 4\n"
        "training: {batch_size: 4, micro_batch_size: 2, deterministic: true, precision: bf16}\n"
        "evaluation: {rows: 6, max_length: 96, precision: fp32, stop_below: 0.01,"
        " patience: {metric: rouge_forget, epochs: 2}}\n"
    ),
    "lora": MODEL.rstrip() + "\n    lora: {rank: 4}\nmethods: [npo, ce-u]\n",
    "local": (
        "models:\n  - {name: local, base: BASE, fine_tuned: FULL, retain: {retain50: RETAIN}}\n"
        "methods: [outside, npo]\n"
    ),
}
PLUGIN = '''"""A method in a file, with a module beside it."""
import sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parent))
from beside import FACTOR
from unlearnbench import LossBatch, Method, Needs

class Outside(Method):
    """L = FACTOR * mean_t log p_t"""
    needs = Needs(parts=frozenset({"forget"}))

    def loss(self, batch: LossBatch):
        return FACTOR * batch.forget.mean_tokens(batch.forget.token_logprob)
'''
TIMES = {"training_seconds", "evaluation_seconds", "provenance", "sha256", "seconds"}


def command(*arguments: str, folder: Path) -> str:
    """Run the command line in `folder`, with a cache of its own; return what it printed."""
    environment = os.environ | {
        "XDG_CACHE_HOME": str(folder / "cache"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    whole = [str(Path(sys.executable).with_name("unlearnbench")), *arguments]
    ended = subprocess.run(whole, cwd=folder, env=environment, capture_output=True, text=True)
    if ended.returncode:
        sys.exit(
            f"{' '.join(arguments)}: exit code {ended.returncode}\n{ended.stdout}{ended.stderr}"
        )
    return ended.stdout


def without_times(value: Any) -> Any:
    """The value without entries that differ from one run to the next."""
    if isinstance(value, dict):
        return {key: without_times(inner) for key, inner in value.items() if key not in TIMES}
    return [without_times(inner) for inner in value] if isinstance(value, list) else value


def collect(sweep: Path, target: Path) -> None:
    """Write the records of a sweep's folder, by title, and its tables to `target`."""
    target.mkdir(parents=True)
    for path in sorted(sweep.glob("records/*/record.json")):
        record = without_times(json.loads(path.read_text()))
        text = json.dumps(record, indent=1, sort_keys=True, ensure_ascii=False)
        (target / f"{record['id']}.json").write_text(text + "\n")
    for table in ("results.csv", "attacks.csv"):
        if (sweep / table).exists():
            shutil.copy(sweep / table, target / table)


def record(out: Path, *, quickstart: bool) -> None:
    """Run all sweeps and keep what they recorded in `out`."""
    work = out / "work"
    work.mkdir(parents=True)
    (work / "outside.py").write_text(PLUGIN)
    (work / "beside.py").write_text("FACTOR = -1.0\n")
    for name, text in SWEEPS.items():
        plugin = ["--plugin", "outside.py"] if name == "local" else []
        if name == "local":
            models = work / "runs" / "cache" / "models"
            places = {"BASE": "base-", "FULL": "full-", "RETAIN": "retain50-"}
            for key, start in places.items():
                folder = next(p for p in sorted(models.glob(f"{start}*")) if p.is_dir())
                shutil.copytree(folder, work / key.lower())
                text = text.replace(key, key.lower())
        # A section that the sweep states stands in place of the common one.
        common = [line for line in TINY.splitlines() if line.split(":")[0] not in keys(text)]
        (work / f"{name}.yaml").write_text("\n".join([f"name: {name}", *common, text]))
        # The models are hardly trained, and a sweep of them would stop before its first run.
        command("sweep", f"{name}.yaml", "--force", *plugin, folder=work)
        collect(work / "runs" / name, out / name)
        print(f"{name}: {len(list((out / name).glob('*.json')))} records", flush=True)
    if quickstart:
        command("sweep", "quickstart", folder=work)
        collect(work / "runs" / "quickstart", out / "quickstart")


def keys(text: str) -> set[str]:
    """Keys at the top level of a YAML text."""
    return {line.split(":")[0] for line in text.splitlines() if line[:1].isalpha()}


def compare(before: Path, after: Path) -> int:
    """Print what differs; return the number of files that do."""
    names = {
        path.relative_to(root)
        for root in (before, after)
        for path in root.glob("*/*.*")
        if path.parent.name != "work"
    }
    different = 0
    for name in sorted(names):
        old, new = (
            (root / name).read_text().splitlines() if (root / name).exists() else []
            for root in (before, after)
        )
        if old == new:
            continue
        different += 1
        lines = [
            *difflib.unified_diff(old, new, f"before/{name}", f"after/{name}", lineterm="", n=1)
        ]
        print(*(line[:160] for line in lines[:14]), f"({len(lines)} lines)", sep="\n")
    print(f"{len(names)} files, {different} differ")
    return different


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=("record", "compare"))
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--quickstart", action="store_true", help="also the quickstart (minutes)")
    given = parser.parse_args()
    if given.verb == "compare":
        return 1 if compare(*given.folders) else 0
    record(given.folders[0].resolve(), quickstart=given.quickstart)
    return 0


if __name__ == "__main__":
    sys.exit(main())
