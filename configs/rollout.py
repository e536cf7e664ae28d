"""The `rollout` section: how responses are sampled."""

from typing import Annotated, Literal

from pydantic import Field

from configs.base import Section


class VllmEngine(Section):
    """A vLLM engine inside the process of the task: read with `engine=vllm` only."""

    dtype: Literal["model", "float32", "bfloat16"] = "model"
    """Type that it computes in; `model`: that of `model.dtype`, of a teacher `teacher.dtype`."""

    tensor_parallel_size: int = Field(default=1, ge=1)
    """GPUs over which every layer is split."""

    gpu_memory_utilization: float = Field(default=0.5, gt=0.0, le=1.0)
    """Share of a GPU's memory for weights and KV cache; the trainer needs the rest."""

    cpu_kv_cache_gib: int = Field(default=1, ge=1)
    """KV cache of an engine that runs on a CPU, in GiB."""

    compile: bool = False
    """Compile and capture graphs at the start: decodes faster, starts up to a minute later."""

    sleep: bool = False
    """Move weights to host memory and free the KV cache between rollouts; GPUs only."""


class VllmServer(Section):
    """A vLLM server that already runs elsewhere: read with `rollout.engine=server` only."""

    url: str = ""
    """Its address, such as `http://10.0.0.7:8000`."""

    timeout_s: float = Field(default=600.0, gt=0.0)
    """Longest wait, in seconds, for one answer, and for new weights to be in place."""

    connect_timeout_s: float = Field(default=60.0, gt=0.0)
    """Longest wait, in seconds, for it to accept connections."""

    max_connections: int = Field(default=64, ge=1)
    """Most responses asked for at once."""


class Sampling(Section):
    """The distribution that a response is drawn from."""

    temperature: float = Field(default=1.0, ge=0.0)
    """Sampling temperature: logits are divided by it; training needs more than 0."""

    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Nucleus mass; only 1 (off) trains, as engine and loss must share one distribution."""

    top_k: int = Field(default=0, ge=0)
    """Most likely tokens kept; only 0 (off) trains."""

    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    """Least probability relative to the likeliest token; only 0 (off) trains."""

    stop_token_ids: list[Annotated[int, Field(ge=0)]] = []
    """Tokens that end a response, beside those of the tokenizer and the generation config."""


class Rollout(Sampling):
    """One batch of sampled responses."""

    engine: Literal["transformers", "vllm", "server"] = "transformers"
    """What samples: `transformers` or `vllm` in the process of the rollout, or a vLLM `server`."""

    prompts_per_step: int = Field(default=128, ge=1)
    """Prompts, and so groups, per training step."""

    group_size: int = Field(default=8, ge=1)
    """Responses sampled for each prompt."""

    max_tokens: int = Field(default=4, ge=1)
    """Most response tokens; also the divisor of `seq-mean-token-sum-fixed`."""

    max_prompt_tokens: int = Field(default=64, ge=1)
    """Longest prompt; a longer one stops the run by name."""

    batch_size: int = Field(default=1024, ge=1)
    """Most responses decoded at once; bounds the memory of the KV cache."""

    staleness: int = Field(default=0, ge=0)
    """Steps by which the sampling policy may trail the trained one."""

    shards: int = Field(default=1, ge=1)
    """Rollout tasks among which the prompts of a step are divided."""

    routing_replay: bool = False
    """Record the experts that each token is sent to, and train with the same (mixture of experts
    only): rounding then never sends a token elsewhere."""

    vllm: VllmEngine = VllmEngine()
    """Memory and parallelism of `engine=vllm`."""

    server: VllmServer = VllmServer()
    """Address and patience of `engine=server`."""
