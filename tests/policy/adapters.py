"""Tiny bases on disk and adapters on them."""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from configs.model import Lora
from tasks.policy.adapter import Base, write_adapter
from tasks.policy.directory import load_model, weights_digest
from tasks.policy.embedded import build_tokenizer
from tests.trainer.builders import TINY_QWEN

LORA = Lora(rank=2, alpha=8.0)


def qwen(seed: int = 0) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(Qwen2Config(**TINY_QWEN)).eval()


def write_base(root: Path, model: PreTrainedModel) -> Path:
    base = root / "base"
    model.save_pretrained(base)
    build_tokenizer().save_pretrained(base)
    return base


def write_new(base: Path, to: Path, lora: Lora = LORA, *, seed: int = 0) -> Path:
    to.mkdir(parents=True)
    where = Base(str(base), "", weights_digest(base))
    write_adapter(lora, where, seed=seed, to=to)
    return to


def adapted() -> PreTrainedModel:
    """A model whose adapter changes its outputs."""
    with TemporaryDirectory() as folder:
        new = write_new(write_base(Path(folder), qwen()), Path(folder, "new"))
        return moved(load_model(new, dtype="float32"), scale=0.2)


def moved(model: PreTrainedModel, *, scale: float = 0.5) -> PreTrainedModel:
    """The same model with random numbers added to every number of its adapter."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return model


def adapted_layers(model: PreTrainedModel) -> set[str]:
    return {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, BaseTunerLayer)
    }
