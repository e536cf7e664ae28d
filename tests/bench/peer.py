"""The other side: TRL's `GRPOTrainer` on the same work, in an environment of its own.

python -m tests.bench.peer FOLDER

End tokens are forbidden by `min_new_tokens`, so that every response has exactly as many tokens as
ours. Its phases are cut by its own callbacks: a step runs from one `on_step_begin` to that of the
next, and sampling is what `_generate_single_turn` takes.
"""

import sys
import time
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from tests.bench.work import (
    ADAM_BETAS,
    LEARNING_RATE,
    MAX_GRAD_NORM,
    NUM_THREADS,
    TEMPERATURE,
    Folder,
    Report,
    Step,
    Work,
    distinct,
)


class Mark(NamedTuple):
    """What had been spent and sampled when a step began."""

    at: float
    generating_s: float
    prompt_tokens: int
    completion_tokens: int


class TimedTrainer(GRPOTrainer):
    """Counts what sampling takes and gives.

    Attributes:
        spent: a mark whose time is that of no step.
    """

    spent = Mark(0.0, 0.0, 0, 0)

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: object, **others: object):
        started = time.perf_counter()
        sampled = super()._generate_single_turn(prompt_ids, *args, **others)
        self.spent = Mark(
            0.0,
            self.spent.generating_s + time.perf_counter() - started,
            self.spent.prompt_tokens + sum(map(len, prompt_ids)),
            self.spent.completion_tokens + sum(map(len, sampled[0])),
        )
        return sampled


class Clock(TrainerCallback):
    """Leaves a mark where a step begins, and one at the end."""

    def __init__(self, mini_batches: int) -> None:
        self.mini_batches = mini_batches
        self.trainer: TimedTrainer | None = None
        self.marks: list[Mark] = []

    def on_step_begin(self, args: object, state: object, control: object, **others: object) -> None:
        if state.global_step % self.mini_batches == 0:
            self._mark()

    def on_train_end(self, args: object, state: object, control: object, **others: object) -> None:
        self._mark()

    def _mark(self) -> None:
        self.marks.append(self.trainer.spent._replace(at=time.perf_counter()))

    def steps(self) -> list[Step]:
        """Return what lies between one mark and the next."""
        return [
            Step(
                generate_s=after.generating_s - before.generating_s,
                step_s=after.at - before.at,
                prompt_tokens=after.prompt_tokens - before.prompt_tokens,
                completion_tokens=after.completion_tokens - before.completion_tokens,
            )
            for before, after in pairwise(self.marks)
        ]


def variety(completions: list[str], **others: object) -> list[float]:
    """Return the reward of every response."""
    return [distinct(text) for text in completions]


def settings(work: Work, output: str) -> GRPOConfig:
    """Return the settings of the work; everything else is a default."""
    mini_batch = work.num_rows // work.mini_batches
    rows = min(work.peer_rows, mini_batch)
    return GRPOConfig(
        output_dir=output,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        seed=0,
        shuffle_dataset=False,
        max_steps=work.num_steps * work.mini_batches,
        generation_batch_size=work.num_rows,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=mini_batch // rows,
        num_generations=work.group_size,
        max_completion_length=work.max_tokens,
        generation_kwargs={"min_new_tokens": work.max_tokens},
        temperature=TEMPERATURE,
        beta=0.0,
        loss_type="dapo",
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        adam_beta1=ADAM_BETAS[0],
        adam_beta2=ADAM_BETAS[1],
        weight_decay=0.0,
        max_grad_norm=MAX_GRAD_NORM,
    )


def train(folder: Folder, output: str) -> list[Step]:
    """Train for the steps of the work and return what each took."""
    work = folder.read_work()
    tokenizer = AutoTokenizer.from_pretrained(folder.policy, padding_side="left")
    clock = Clock(work.mini_batches)
    clock.trainer = TimedTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder.policy, dtype=torch.float32),
        processing_class=tokenizer,
        args=settings(work, output),
        train_dataset=Dataset.from_list([{"prompt": line["prompt"]} for line in folder.prompts()]),
        reward_funcs=variety,
        callbacks=[clock],
    )
    clock.trainer.train()
    return clock.steps()


def main(root: str) -> None:
    """Take the steps of the work and tell what they took."""
    torch.set_num_threads(NUM_THREADS)
    folder = Folder(root=Path(root))
    report = Report(side="peer", num_rows=folder.read_work().num_rows)
    report.versions = {name: version(name) for name in ("trl", "torch", "transformers")}
    with TemporaryDirectory() as output:
        report.steps += train(folder, output)
    report.tell()


if __name__ == "__main__":
    main(*sys.argv[1:])
