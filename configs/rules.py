"""A rule that a config may break, and the rules of sections that every kind of run has."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Generic, Protocol, TypeVar

from configs.data import PromptSource
from configs.model import ALL_LINEAR, Model
from configs.resources import Resources
from configs.trainer import Trainer

Config_contra = TypeVar("Config_contra", contravariant=True)

GSM8K_TEST = 1319
"""Problems of the test set."""


class Trains(Protocol):
    """What every kind of run has: a model, a source of prompts, a trainer and resources."""

    @property
    def model(self) -> Model: ...

    @property
    def data(self) -> PromptSource: ...

    @property
    def trainer(self) -> Trainer: ...

    @property
    def resources(self) -> Resources: ...


@dataclass(frozen=True, kw_only=True)
class Rule(Generic[Config_contra]):
    """One row: when it is broken, which field it names, and what the user should do.

    Attributes:
        field: dotted name of the field that is at fault.
        broken: whether a config breaks the rule.
        message: why it is refused, and the remedy.
    """

    field: str
    broken: Callable[[Config_contra], bool]
    message: str

    def explain(self, config: Config_contra) -> str:
        """Return the message with the field and the value it has in `config`."""
        return f"{self.field}={value_of(config, self.field)!r}: {self.message}"


def value_of(config: object, field: str) -> object:
    """Return the value of a dotted field name."""
    return reduce(getattr, field.split("."), config)


def broken(config: Config_contra, rules: Iterable[Rule[Config_contra]]) -> list[str]:
    """Return one line for each rule that a config breaks."""
    return [rule.explain(config) for rule in rules if rule.broken(config)]


def refuse(config: Config_contra, rules: Iterable[Rule[Config_contra]]) -> None:
    """Raise `ValueError` with one line for each broken rule."""
    problems = broken(config, rules)
    if problems:
        raise ValueError("\n".join(problems))


SHARED: tuple[Rule[Trains], ...] = (
    Rule(
        field="model.name_or_path",
        broken=lambda c: c.model.source != "pretrained" and c.model.name_or_path != "",
        message="is read with model.source=pretrained only; remove it, or set that",
    ),
    Rule(
        field="model.name_or_path",
        broken=lambda c: c.model.source == "pretrained" and c.model.name_or_path == "",
        message="model.source=pretrained needs a Hugging Face directory or hub name here",
    ),
    Rule(
        field="model.revision",
        broken=lambda c: c.model.source != "pretrained" and c.model.revision != "",
        message="is read with model.source=pretrained only; remove it",
    ),
    Rule(
        field="model.embedded",
        broken=lambda c: c.model.source != "embedded" and bool(c.model.embedded.changed()),
        message="is read with model.source=embedded only; remove its settings",
    ),
    Rule(
        field="model.embedded.num_heads",
        broken=lambda c: c.model.embedded.hidden_size % (2 * c.model.embedded.num_heads) != 0,
        message="model.embedded.hidden_size must be a multiple of twice this (rotary embedding)",
    ),
    Rule(
        field="model.lora",
        broken=lambda c: c.model.lora.rank == 0 and bool(c.model.lora.changed()),
        message="is never read while model.lora.rank=0; set the rank, or remove its settings",
    ),
    Rule(
        field="model.lora.target_modules",
        broken=lambda c: not c.model.lora.target_modules,
        message=f"names no layer to adapt; remove it for {ALL_LINEAR}, or set model.lora.rank=0",
    ),
    Rule(
        field="model.lora.target_modules",
        broken=lambda c: (
            ALL_LINEAR in c.model.lora.target_modules and len(c.model.lora.target_modules) > 1
        ),
        message=f"{ALL_LINEAR} holds every other name; name it alone, or remove it",
    ),
    Rule(
        field="data.source",
        broken=lambda c: c.model.source == "embedded" and c.data.source != "arithmetic",
        message="the embedded model reads digits only; set data.source=arithmetic, or another "
        "model.source",
    ),
    Rule(
        field="data.num_held_out",
        broken=lambda c: c.data.held_out_path != "" and "num_held_out" in c.data.changed(),
        message="is never read while data.held_out_path names a file; remove one of the two",
    ),
    Rule(
        field="data.num_held_out",
        broken=lambda c: c.data.source == "gsm8k" and c.data.num_held_out > GSM8K_TEST,
        message=f"exceeds the test set of GSM8K, {GSM8K_TEST} problems; lower it",
    ),
    Rule(
        field="data.digits",
        broken=lambda c: c.data.source != "arithmetic" and "digits" in c.data.changed(),
        message="is read by data.source=arithmetic only; remove it",
    ),
    Rule(
        field="data.path",
        broken=lambda c: (c.data.source == "file") == (c.data.path == ""),
        message="goes with data.source=file, which needs it; set both or neither",
    ),
    Rule(
        field="data.held_out_path",
        broken=lambda c: c.data.source != "file" and c.data.held_out_path != "",
        message="is read by data.source=file only; remove it",
    ),
    Rule(
        field="data.prompt_field",
        broken=lambda c: c.data.source != "file" and "prompt_field" in c.data.changed(),
        message="is read by data.source=file only; remove it",
    ),
    Rule(
        field="data.provider",
        broken=lambda c: (c.data.source == "provider") == (c.data.provider == ""),
        message="goes with data.source=provider, which needs it; set both or neither",
    ),
    Rule(
        field="data.chat",
        broken=lambda c: c.model.source == "embedded" and c.data.chat,
        message="the embedded model has no chat template; remove it",
    ),
    Rule(
        field="data.system_prompt",
        broken=lambda c: not c.data.chat and c.data.system_prompt != "",
        message="is read with data.chat=true only; remove it, or set data.chat=true",
    ),
    Rule(
        field="trainer.final_lr_fraction",
        broken=lambda c: (
            c.trainer.lr_schedule == "constant" and "final_lr_fraction" in c.trainer.changed()
        ),
        message="is never read while trainer.lr_schedule=constant; remove it",
    ),
    *(
        Rule(
            field=f"resources.{role}.gpu_type",
            broken=lambda c, role=role: (
                getattr(c.resources, role).gpu_type != "" and getattr(c.resources, role).gpus == 0
            ),
            message=f"names a GPU, but resources.{role}.gpus=0 requests none; set both or neither",
        )
        for role in Resources.model_fields
    ),
    Rule(
        field="trainer.num_processes",
        broken=lambda c: c.trainer.num_processes % c.trainer.num_nodes != 0,
        message="cannot be split evenly over trainer.num_nodes machines; make it a multiple",
    ),
    Rule(
        field="trainer.num_processes",
        broken=lambda c: (
            c.resources.train.gpus not in (0, c.trainer.num_processes / c.trainer.num_nodes)
        ),
        message="one process trains on one GPU; set it to resources.train.gpus, which is of one "
        "machine, times trainer.num_nodes",
    ),
    *(
        Rule(
            field=f"trainer.{name}",
            broken=lambda c, name=name: (
                c.trainer.num_processes == 1 and name in c.trainer.changed()
            ),
            message="is never read while trainer.num_processes=1; remove it, or raise that",
        )
        for name in ("strategy", "rank_timeout_s")
    ),
)
"""Settings of the sections that they share that cannot hold together."""


SHARED_WARNINGS: tuple[Rule[Trains], ...] = (
    Rule(
        field="trainer.gradient_checkpointing",
        broken=lambda c: c.model.source == "embedded" and c.trainer.gradient_checkpointing,
        message="the embedded model's activations are small, so this costs time and saves little",
    ),
)
"""Settings of the same sections that are honoured, but of little use."""
