"""Two processes share the questions and come to what one alone has, to the last byte."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

from unlearnbench.data.benchmark import Question
from unlearnbench.data.encoding import TEMPLATES
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.log import write_log
from unlearnbench.evaluation.processes import spread
from unlearnbench.evaluation.profiles import get_profile

PROGRAM = """
import pickle, sys
from pathlib import Path
from torch import distributed
from transformers import AutoModelForCausalLM
from unlearnbench.evaluation.log import write_log

folder, rank = Path(sys.argv[1]), int(sys.argv[2])
model = AutoModelForCausalLM.from_pretrained(folder / "model").eval()
evaluator = pickle.loads((folder / "evaluator").read_bytes())
distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=2)
told = []
found = evaluator(model, told=lambda done, whole: told.append(done))
write_log(found, folder / f"{rank}.json")
s = found.statistics
(folder / f"{rank}.txt").write_text(f"{s.generated} {s.ties}")
distributed.destroy_process_group()
sys.exit(told[-1] >= 20)  # the work is split
"""


def test_two_processes_write_the_log_of_one(
    tmp_path: Path, sharp: Any, tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    sharp.save_pretrained(tmp_path / "model")
    sets: Any = {"retain": questions[4:7], "forget": questions[:4]}
    sets |= {"real_authors": questions[7:9], "world_facts": questions[9:]}
    profile = get_profile("tofu", max_length=80)
    evaluator = Evaluator(sets, tokenizer, TEMPLATES["plain"], profile, 0, 500)
    (tmp_path / "evaluator").write_bytes(pickle.dumps(evaluator))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    running = [subprocess.Popen([*command, str(rank)]) for rank in (0, 1)]
    alone = evaluator(sharp)
    write_log(alone, tmp_path / "alone.json")
    assert [process.wait(timeout=120) for process in running] == [0, 0]
    s = alone.statistics
    assert s is not None
    for rank in (0, 1):
        log = (tmp_path / f"{rank}.json").read_bytes()
        assert log == (tmp_path / "alone.json").read_bytes()
        said = (tmp_path / f"{rank}.txt").read_text()
        assert said == f"{s.generated} {s.ties}"


def test_without_a_group_all_work_is_done_here() -> None:
    assert spread([3, 1, 2], lambda n: n * n) == [9, 1, 4]
    assert spread([], lambda n: n) == []
