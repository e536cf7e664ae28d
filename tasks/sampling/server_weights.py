"""Which policy a vLLM server holds, and how it is given another.

Whole weights replace those it has, and its weight version is then the policy's digest. Adapters are
loaded beside the frozen model under the policy's digest as their name, which every request repeats.
"""

import time
from pathlib import Path
from typing import Any

from tasks.policy.declared import Declared
from tasks.policy.directory import base_of, has_adapter
from tasks.policy.files import PolicyFiles
from tasks.sampling.http import Json, ServerError

LOADING = "loading"
"""Weight version while weights are changed: a reload that fails leaves no policy's name behind."""

UNTOUCHED = "default"
"""Weight version of the weights that a server was started with."""

RETRY_S = 0.2

ADAPTER_REMEDY = (
    "start it with `VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve <the frozen model> --enable-lora "
    "--max-lora-rank <at least model.lora.rank>` beside its other settings"
)


def model_name(files: PolicyFiles) -> dict[str, object]:
    """Return what a request for a policy says of the model: nothing but for adapters."""
    return {"model": files.digest} if has_adapter(files.weights) else {}


def follow(server: Json, files: PolicyFiles, declared: Declared) -> None:
    """Have the server hold the policy of `files`, if it does not yet.

    Raises:
        ServerError: it cannot, or it reports other log-probabilities than those sampled from.
    """
    if has_adapter(files.weights):
        _follow_adapters(server, files, str(base_of(files.weights)))
    elif _version(server) != files.digest:
        _follow_weights(server, files, declared)


def require_version(server: Json, files: PolicyFiles) -> None:
    """Refuse what was sampled while the server was given other weights.

    Raises:
        ServerError: it was.
    """
    expected = UNTOUCHED if has_adapter(files.weights) else files.digest
    found = _version(server)
    if found != expected:
        raise server.error(
            f"it was given other weights ({found}) during a rollout of {files.digest}",
            remedy="give each run a server of its own",
        )


def _follow_weights(server: Json, files: PolicyFiles, declared: Declared) -> None:
    config = _checked_start(server)
    if config["device_config"]["device"] == "cpu" and declared.tied:
        raise server.error(
            "on a CPU, vLLM does not renew an output layer that shares the embedding's weights",
            remedy="serve on a GPU, or set rollout.engine=vllm",
        )
    _name(server, LOADING)
    reload = {"method": "reload_weights", "kwargs": {"weights_path": str(files.weights.resolve())}}
    server.post("/collective_rpc", reload)
    _clear_cache(server)
    _name(server, files.digest)


def _follow_adapters(server: Json, files: PolicyFiles, base: str) -> None:
    """Load adapters under a name not used before, and drop those of earlier policies."""
    found = [model["id"] for model in server.get("/v1/models")["data"] if model.get("parent")]
    if files.digest in found:
        return
    _require_base(server, base)
    adapters = {"lora_name": files.digest, "lora_path": str(files.weights.resolve())}
    try:
        server.tell("/v1/load_lora_adapter", adapters)
    except ServerError as refused:
        raise server.error(f"it took no adapters: {refused}", remedy=ADAPTER_REMEDY) from refused
    for name in found:
        server.tell("/v1/unload_lora_adapter", {"lora_name": name})
    _clear_cache(server)


def _require_base(server: Json, base: str) -> None:
    served = _checked_start(server)["model_config"]["model"]
    if served != base and Path(served).resolve() != Path(base).resolve():
        raise server.error(
            f"it serves {served}, and the adapters change {base}", remedy=ADAPTER_REMEDY
        )
    version = _version(server)
    if version != UNTOUCHED:
        raise server.error(
            f"its weights were replaced by those of {version} since it was started",
            remedy="start it again, and give each run a server of its own",
        )


def _checked_start(server: Json) -> dict[str, Any]:
    """Return the server's configuration, unless it reports other log-probabilities than sampled."""
    config = server.get("/server_info?config_format=json")["vllm_config"]
    mode = config["model_config"]["logprobs_mode"]
    if mode != "processed_logprobs":
        raise server.error(f"it was started with --logprobs-mode {mode}")
    return config


def _clear_cache(server: Json) -> None:
    """Clear cached keys and values of the old weights, once the last request has ended."""
    deadline = time.monotonic() + server.timeout_s
    while not server.post("/reset_prefix_cache")["success"]:
        if time.monotonic() > deadline:
            raise server.error(f"its prefix cache was still in use after {server.timeout_s:g} s")
        time.sleep(RETRY_S)


def _version(server: Json) -> str:
    return server.get("/weight_info")["weight_version"]


def _name(server: Json, version: str) -> None:
    server.post("/update_weight_version", {"new_version": version})
