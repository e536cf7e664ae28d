"""`python -m tasks.policy.merge ADAPTER TO`: an adapter and its base as one whole model."""

import argparse
from pathlib import Path

from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import AutoConfig

from tasks.policy.adapter import load_adapted
from tasks.policy.directory import (
    ADAPTER_CONFIG,
    BASE_FILE,
    base_of,
    copy_others,
    has_adapter,
)


def merge(adapter: Path, to: Path, *, dtype: str = "float32") -> None:
    """Write the base of an adapter with the adapter added to its weights.

    Args:
        adapter: directory of the adapter.
        to: a directory that is empty or does not exist yet.
        dtype: type of the weights that are written.

    Raises:
        ValueError: there is no adapter, its base is quantised, or `to` holds something.
    """
    if not has_adapter(adapter):
        raise ValueError(f"{adapter} holds no adapter: there is no {ADAPTER_CONFIG} in it")
    if to.exists() and any(to.iterdir()):
        raise ValueError(f"{to} is not empty; name a directory that does not exist yet")
    base = base_of(adapter)
    if hasattr(AutoConfig.from_pretrained(base), "quantization_config"):
        raise ValueError(f"the base {base} is quantised: what is added to it would be rounded off")
    model = load_adapted(adapter, dtype=dtype)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, BaseTunerLayer):
            layer.merge(safe_merge=True)
            model.set_submodule(name, layer.get_base_layer())
    to.mkdir(parents=True, exist_ok=True)
    copy_others(adapter, to)
    for name in (ADAPTER_CONFIG, BASE_FILE):
        (to / name).unlink()
    model.save_pretrained(to)


def main() -> None:
    """Read the command line and merge."""
    parser = argparse.ArgumentParser(prog="python -m tasks.policy.merge", description=__doc__)
    parser.add_argument("adapter", type=Path, help="directory of the adapter, such as weights/")
    parser.add_argument("to", type=Path, help="directory to write, which must not exist yet")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    arguments = parser.parse_args()
    try:
        merge(arguments.adapter, arguments.to, dtype=arguments.dtype)
    except (OSError, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
