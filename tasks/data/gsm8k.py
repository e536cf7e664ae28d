"""Grade-school word problems that ship with the project, so that nothing need be downloaded.

From GSM8K (Cobbe et al. 2021, arXiv:2110.14168, MIT licence): the first 1,500 training problems and
the whole test set. A solution ends in `#### ` and a number.
"""

import re
from pathlib import Path

from configs.data import Data
from tasks.data.files import read_problems
from tasks.data.problems import Problem, Problems

SOURCE = "gsm8k"
FILES = Path(__file__).parent / "gsm8k_files"

_CALCULATION = re.compile(r"<<.*?>>")


def gsm8k_problems(*, num_held_out: int) -> Problems:
    """Return the training problems and the first `num_held_out` of the test set.

    >>> train, held_out = gsm8k_problems(num_held_out=500)
    >>> len(train), len(held_out), held_out[0].problem_id, held_out[0].answer[-7:]
    (1500, 500, 'gsm8k/test.jsonl/0', '#### 18')
    """
    return Problems(_read("train.jsonl"), _read("test.jsonl")[:num_held_out])


def solution_text(answer: str) -> str:
    r"""Return a solution as a person would write it, without the notes for a calculator.

    >>> solution_text("5 + 2 = <<5+2=7>>7 eggs\n#### 7")
    '5 + 2 = 7 eggs\n#### 7'
    """
    return _CALCULATION.sub("", answer)


def _read(name: str) -> list[Problem]:
    problems = read_problems(str(FILES / name), Data())
    return [p._replace(problem_id=f"{SOURCE}/{p.problem_id}", source=SOURCE) for p in problems]
