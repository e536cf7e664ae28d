"""What a task runs in: one image per role, so that no role carries another's libraries."""

from pathlib import Path

from flytekit import ImageSpec

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"

TABLES = ("flytekit", "mlflow", "numpy", "omegaconf", "pyarrow", "pydantic")
MODELS = ("accelerate", "peft", "tokenizers", "torch", "transformers")


def pinned(*names: str) -> list[str]:
    """Return requirements at the versions that the tests ran with.

    Raises:
        KeyError: if `constraints.txt` pins no such package.
    """
    pins = dict(line.split("==") for line in CONSTRAINTS.read_text().split() if "==" in line)
    return [f"{name}=={pins[name]}" for name in names]


LIGHT = ImageSpec(
    name="posttrain-light", python_version="3.11", packages=pinned(*TABLES, "transformers")
)
"""Tasks that handle tables only; `transformers` is there for its tokenizers."""

TRAIN = ImageSpec(name="posttrain-train", python_version="3.11", packages=pinned(*TABLES, *MODELS))
"""Tasks that hold a policy."""

TEACHER = ImageSpec(
    name="posttrain-teacher", python_version="3.11", packages=pinned(*TABLES, *MODELS)
)
"""Tasks that score with a teacher."""
