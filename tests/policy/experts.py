"""Tiny mixtures of experts of several families."""

from collections.abc import Callable

import torch
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from tests.trainer.builders import TINY_QWEN

NUM_EXPERTS, TOP_K, NUM_LAYERS = 4, 2, 2


def _seeded(build: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build().eval()


def qwen3_moe() -> PreTrainedModel:
    config = Qwen3MoeConfig(
        **TINY_QWEN,
        head_dim=8,
        moe_intermediate_size=16,
        num_experts=NUM_EXPERTS,
        num_experts_per_tok=TOP_K,
        norm_topk_prob=True,
    )
    return _seeded(lambda: Qwen3MoeForCausalLM(config))


def mixtral() -> PreTrainedModel:
    config = MixtralConfig(
        **TINY_QWEN, num_local_experts=NUM_EXPERTS, num_experts_per_tok=TOP_K, sliding_window=None
    )
    return _seeded(lambda: MixtralForCausalLM(config))


def deepseek() -> PreTrainedModel:
    """One dense layer and two of experts in two groups, which are selected by `topk` as well."""
    sizes = {**TINY_QWEN, "num_hidden_layers": NUM_LAYERS + 1, "num_key_value_heads": 2}
    config = DeepseekV3Config(
        **sizes,
        first_k_dense_replace=1,
        n_routed_experts=NUM_EXPERTS,
        num_experts_per_tok=TOP_K,
        n_group=2,
        topk_group=2,
        moe_intermediate_size=16,
        n_shared_experts=1,
        q_lora_rank=None,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
    )
    return _seeded(lambda: DeepseekV3ForCausalLM(config))


FAMILIES = {"qwen3_moe": qwen3_moe, "mixtral": mixtral, "deepseek": deepseek}
