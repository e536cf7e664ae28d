"""The work that both sides do, and what each reports of it. Every environment can import this."""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean

LEARNING_RATE = 1e-6
ADAM_BETAS = 0.9, 0.999
NUM_THREADS = 2
TEMPERATURE = 1.0
MAX_GRAD_NORM = 1.0

STATUS = Path("/proc/self/status")


@dataclass(frozen=True, kw_only=True)
class Work:
    """A number of steps on one model: every response has exactly `max_tokens` tokens.

    Attributes:
        name: what tables call it.
        recipe: from which our side takes model and prompts; the other side is given both.
        prompts_per_step: groups of a step.
        group_size: responses of a group.
        max_prompt_tokens: longer prompts are left out.
        max_tokens: tokens of a response.
        mini_batches: optimizer steps of a step.
        chunk_tokens: padded tokens that go through the model at once on our side.
        peer_rows: rows that do on the other.
        num_steps: steps of a turn; the first is left out of every figure.
        num_turns: turns of each side.
    """

    name: str
    recipe: str
    prompts_per_step: int
    group_size: int
    max_prompt_tokens: int
    max_tokens: int
    mini_batches: int
    chunk_tokens: int
    peer_rows: int
    num_steps: int
    num_turns: int

    @property
    def num_rows(self) -> int:
        """Responses of a step."""
        return self.prompts_per_step * self.group_size

    def quick(self) -> "Work":
        """Return the same with so little to do that it only shows that everything runs."""
        few = {"prompts_per_step": 4, "group_size": 2, "max_tokens": 4, "peer_rows": 2}
        return replace(self, **few, num_steps=2, num_turns=2)


SMOLLM2 = Work(
    name="SmolLM2-135M",
    recipe="models/smollm2_gsm8k",
    prompts_per_step=8,
    group_size=8,
    max_prompt_tokens=128,
    max_tokens=64,
    mini_batches=1,
    chunk_tokens=640,
    peer_rows=8,
    num_steps=2,
    num_turns=1,
)
EMBEDDED = Work(
    name="embedded",
    recipe="arithmetic",
    prompts_per_step=128,
    group_size=8,
    max_prompt_tokens=16,
    max_tokens=4,
    mini_batches=4,
    chunk_tokens=5120,
    peer_rows=256,
    num_steps=11,
    num_turns=2,
)
WORKS = (SMOLLM2, EMBEDDED)


@dataclass(frozen=True, kw_only=True)
class Folder:
    """What `tests.bench.prepare` leaves for the sides.

    Attributes:
        root: an existing directory.
    """

    root: Path

    @property
    def policy(self) -> Path:
        """The policy as its source gives it."""
        return self.root / "policy"

    @property
    def endless(self) -> Path:
        """The same policy, which declares no token an end, so that no response ends early."""
        return self.root / "endless"

    @property
    def table(self) -> Path:
        """PROMPTS of all steps, in order."""
        return self.root / "prompts.arrow"

    @property
    def lines(self) -> Path:
        """The same as JSON lines: `prompt` is the text, `tokens` its ids."""
        return self.root / "prompts.jsonl"

    @property
    def work(self) -> Path:
        """The work, as JSON."""
        return self.root / "work.json"

    def read_work(self) -> Work:
        """Return the work that the folder was prepared for."""
        return Work(**json.loads(self.work.read_text()))

    def write_work(self, work: Work) -> None:
        """Keep the work for every process that opens the folder."""
        self.work.write_text(json.dumps(asdict(work)))

    def prompts(self) -> list[dict]:
        """Return the lines of `lines`."""
        return [json.loads(line) for line in self.lines.read_text().splitlines()]


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one step took and gave.

    Attributes:
        generate_s: seconds of sampling.
        step_s: seconds of all of it.
        prompt_tokens: tokens of its prompts, each counted once per response.
        completion_tokens: tokens of its responses.
    """

    generate_s: float
    step_s: float
    prompt_tokens: int
    completion_tokens: int


@dataclass(kw_only=True)
class Report:
    """The steps that a side took, as it tells them to the process that compares.

    Attributes:
        side: who.
        num_rows: responses of a step.
        steps: all of them, the first included.
        versions: of the libraries that matter.
    """

    side: str
    num_rows: int
    steps: list[Step] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    def figures(self) -> dict[str, float]:
        """Return the means over all steps but the first, and this process's peak memory so far."""
        counted = self.steps[1:]
        generate_s = fmean(step.generate_s for step in counted)
        step_s = fmean(step.step_s for step in counted)
        return {
            "generate_s": generate_s,
            "rest_s": step_s - generate_s,
            "step_s": step_s,
            "samples_per_s": self.num_rows / step_s,
            "peak_rss_mib": peak_rss_mib(),
            "prompt_tokens": sum(step.prompt_tokens for step in counted),
            "completion_tokens": sum(step.completion_tokens for step in counted),
        }

    def tell(self) -> None:
        """Print the figures as the last line of this process."""
        told = {"side": self.side, "versions": self.versions, "figures": self.figures()}
        print(json.dumps(told), flush=True)


def peak_rss_mib() -> float:
    """Return the largest resident memory (MiB) that this process ever had.

    From `/proc`: what `getrusage` says is inherited from the process that started this one.
    """
    (line,) = (row for row in STATUS.read_text().splitlines() if row.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def distinct(text: str) -> float:
    """Return the reward of a response: its number of different characters over 40.

    >>> distinct("abcabc")
    0.075
    """
    return len(set(text)) / 40
