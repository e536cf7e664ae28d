"""How long a run trains and when it saves: the same for every algorithm."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from configs.base import Section


def _spelt_out(value: object) -> object:
    # YAML reads a bare `off` as false.
    return "off" if value is False else value


Resume = Annotated[Literal["auto", "off"], BeforeValidator(_spelt_out)]


class Schedule(Section):
    """The steps of a run, its updates per step, and its checkpoints."""

    mini_batches: int = Field(default=1, ge=1)
    """Optimizer steps per step, among which its rows are divided."""

    max_steps: int = Field(default=200, ge=1)
    """Training steps of the run; each trains on one batch."""

    save_every: int = Field(default=10, ge=0)
    """A checkpoint is published after every so many steps; 0: only after the last."""

    resume: Resume = "auto"
    """`auto` continues from the newest checkpoint that verifies; `off` starts over."""
