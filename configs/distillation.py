"""On-policy distillation: its knobs in the `rl` section, and the `teacher` section."""

from typing import Literal

from pydantic import Field

from configs.base import Section
from configs.model import EmbeddedModel, Model
from configs.rollout import VllmEngine

DistillationMode = Literal["advantage", "direct"]
Divergence = Literal["reverse_kl", "forward_kl", "jsd"]

TEACHER = "teacher"
"""Role of the teacher of every prompt source that has none of its own."""


class Distillation(Section):
    """How a teacher's log-probabilities train; read in a run that has a teacher."""

    distillation_mode: DistillationMode = "advantage"
    """`advantage`: per-token advantages in the surrogate; `direct`: a divergence is minimised."""

    kl_coef: float = Field(default=1.0, ge=0.0)
    """Weight of `log pi_teacher - log pi_old` (nats) in a token's advantage."""

    kl_advantage_bound: float = Field(default=0.0, ge=0.0)
    """That difference is clamped to this many nats on either side; 0: not clamped."""

    task_advantage_weight: float = Field(default=0.0, ge=0.0)
    """Weight of the group's advantage, from rewards, in a token's advantage."""

    divergence: Divergence = "reverse_kl"
    """What `direct` minimises: KL(student, teacher), KL(teacher, student) or between the two."""

    jsd_beta: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of the teacher in the mixture of `jsd`; 0 is the forward KL, 1 the reverse."""

    teacher_topk: int = Field(default=0, ge=0)
    """`direct` over the teacher's so many likeliest tokens and one bucket; 0: all tokens."""


READS: dict[str, frozenset[str]] = {
    "advantage": frozenset({"kl_coef", "kl_advantage_bound", "task_advantage_weight"}),
    "direct": frozenset({"divergence", "jsd_beta", "teacher_topk"}),
}
"""Which of these fields each mode reads, `distillation_mode` aside."""


class EmbeddedTeacher(EmbeddedModel):
    """The embedded model, trained until it can teach."""

    warm_start_accuracy: float = Field(default=0.99, ge=0.0, lt=1.0)
    """Supervised training ends at this greedy accuracy on training problems."""

    warm_start_max_steps: int = Field(default=1500, ge=0)
    """Most supervised steps; ending them below `warm_start_accuracy` is an error; 0: none."""


class Teacher(Section):
    """The frozen model that is distilled, a role of its own; read by the `opd` workflow."""

    source: Literal["none", "embedded", "pretrained"] = "none"
    """`none`: no teacher; `embedded` builds a local model; `pretrained` opens `name_or_path`."""

    name_or_path: str = ""
    """Hugging Face directory or hub name of a `pretrained` teacher."""

    revision: str = ""
    """Hub revision of a `pretrained` teacher; empty: the default branch."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the teacher's weights."""

    by_source: dict[str, str] = {}
    """Directory or hub name of the teacher of a prompt source; other sources use the one above."""

    engine: Literal["transformers", "vllm"] = "transformers"
    """What scores the table; `vllm` needs the temperature 1, and for `direct` a `teacher_topk`."""

    embedded: EmbeddedTeacher = EmbeddedTeacher()
    """Size and training of the `embedded` teacher."""

    vllm: VllmEngine = VllmEngine()
    """Memory and parallelism of `engine=vllm`."""

    def models(self) -> dict[str, Model]:
        """Return the model of every teacher by role, `role_of` of a prompt source.

        Raises:
            ValueError: if there is no teacher.
        """
        if self.source == "none":
            raise ValueError("teacher.source=none: there is no teacher to open; set teacher.source")
        default = Model(
            source=self.source,
            name_or_path=self.name_or_path,
            revision=self.revision,
            dtype=self.dtype,
            embedded=EmbeddedModel(**self.embedded.model_dump()),
        )
        others = {
            role_of(name): Model(source="pretrained", name_or_path=path, dtype=self.dtype)
            for name, path in self.by_source.items()
        }
        return {TEACHER: default, **others}


def role_of(source: str) -> str:
    """Return the role of a prompt source's own teacher.

    >>> role_of("gsm8k")
    'teacher:gsm8k'
    """
    return f"{TEACHER}:{source}"
