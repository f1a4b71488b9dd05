"""`unlearnbench doctor`: what works here, what does not, and what to do about it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from unlearnbench.cli import diagnosis
from unlearnbench.cli.command import command, new_group, option
from unlearnbench.cli.diagnosis import Finding
from unlearnbench.cli.options import Json
from unlearnbench.cli.torch_probe import TorchProbe, accelerators
from unlearnbench.console import Console

app = new_group()
_MARKS = {"ok": "ok   ", "note": "note ", "wrong": "WRONG"}
_WIDTH = 16


@command(app, "doctor", panel="This machine")
def doctor(
    output: Annotated[str, option("DIR", "Folder of all sweeps.")] = "runs",
    as_json: Json = False,
) -> int:
    """Check versions, GPUs, disks, caches and the hub; name what will not work, and why.

    Exit code 1 if something that is needed does not work. Being offline, without a GPU or without
    an extra is none of that.

    Examples:
      unlearnbench doctor
      unlearnbench doctor --json > doctor.json      for a report of a fault
    """
    console, found = Console(), list[Finding]()
    for one in _examined(Path(output)):
        found.append(one)
        if not as_json:
            console.print(f"{_MARKS[one.state]}  {one.topic:<{_WIDTH}}  {one.text}")
            if one.fix:
                console.print(f"{'':<{_WIDTH + 9}}→ {one.fix}")
    code = diagnosis.exit_code(found)
    if as_json:
        console.print_json({"works": code == 0, "findings": [asdict(one) for one in found]})
        return code
    wrong = ", ".join(dict.fromkeys(one.topic for one in found if one.state == "wrong"))
    console.print(f"\nwill not work: {wrong}" if wrong else "\neverything needed works")
    return code


def _examined(output: Path) -> Iterator[Finding]:
    """Yield all findings; what takes long is started first, and asked last."""
    torch = TorchProbe()
    home = os.environ.get("HF_HOME") or Path("~/.cache/huggingface").expanduser()
    hub_cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    with ThreadPoolExecutor(1) as pool:
        hub = pool.submit(diagnosis.hub_access, endpoint)
        yield from diagnosis.software()
        yield from diagnosis.machine()
        yield from diagnosis.places(output, hub_cache)
        yield from diagnosis.extras()
        yield diagnosis.browser()
        yield hub.result()
        yield from accelerators(torch.result())
