"""The `trainer` section: optimizer, schedule, memory and checkpoints kept."""

from typing import Literal

from pydantic import Field

from configs.base import Section

Strategy = Literal["ddp", "fsdp2"]


class Optimizer(Section):
    """AdamW and the learning rate as a function of optimizer steps."""

    learning_rate: float = Field(default=1e-3, ge=0.0)
    """Peak learning rate."""

    lr_schedule: Literal["constant", "linear"] = "linear"
    """After the warmup: constant, or linear down to `final_lr_fraction` at the last step."""

    warmup_steps: int = Field(default=10, ge=0)
    """Optimizer steps over which the learning rate rises linearly; 0: none."""

    final_lr_fraction: float = Field(default=0.05, ge=0.0, le=1.0)
    """Share of `learning_rate` that the linear schedule ends at."""

    adam_beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Decay of the first moment."""

    adam_beta2: float = Field(default=0.95, ge=0.0, lt=1.0)
    """Decay of the second moment."""

    adam_epsilon: float = Field(default=1e-8, gt=0.0)
    """Added to the root of the second moment."""

    weight_decay: float = Field(default=0.0, ge=0.0)
    """Decoupled weight decay."""

    max_grad_norm: float = Field(default=1.0, ge=0.0)
    """Gradients are scaled down to this L2 norm; 0: never."""


class Trainer(Optimizer):
    """How a batch becomes optimizer steps."""

    max_tokens_per_chunk: int = Field(default=16384, ge=1)
    """Padded tokens (rows times width) of one forward and backward pass."""

    share_prompts: bool = True
    """Compute a prompt once for several of its responses, where the model's attention allows it and
    it is cheaper: the same numbers up to rounding, in less time."""

    gradient_checkpointing: bool = False
    """Compute each layer's activations again in the backward pass: less memory, about a third more
    time, the same gradient."""

    num_processes: int = Field(default=1, ge=1)
    """Training processes, one per GPU where there are any; 1 starts none."""

    num_nodes: int = Field(default=1, ge=1)
    """Machines that `num_processes` is split over evenly; above 1, the number they were registered
    with."""

    strategy: Strategy = "ddp"
    """What each of several processes holds: `ddp` the model, `fsdp2` a part of every parameter."""

    rank_timeout_s: float = Field(default=600.0, gt=0.0)
    """Seconds that a training process waits for the others before the step fails."""

    num_threads: int = Field(default=0, ge=0)
    """CPU threads of torch in each process; 0 leaves its default, which several processes share.
    Another number may change the last bit."""

    prove_reduction: bool = True
    """Before the first update, check that the gradient does not depend on how rows are split."""

    keep_last: int = Field(default=2, ge=1)
    """Newest checkpoints kept."""

    keep_every: int = Field(default=0, ge=0)
    """Checkpoints of steps divisible by this are kept for good; 0: none."""
