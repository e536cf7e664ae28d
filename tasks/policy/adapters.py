"""A policy in PEFT layout: low-rank adapters, and the name of the frozen model that they change."""

import json
from dataclasses import dataclass
from pathlib import Path

CONFIG_FILE = "adapter_config.json"


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """What a directory of adapters declares.

    Attributes:
        base: directory or hub name of the frozen model.
        rank: largest rank of its matrices.
    """

    base: str
    rank: int


def adapter_of(directory: Path) -> Adapter | None:
    """Return what a policy's directory declares, or None if it holds whole weights.

    Raises:
        ValueError: the frozen model is not named.
    """
    path = directory / CONFIG_FILE
    if not path.is_file():
        return None
    declared = json.loads(path.read_text())
    if not declared["base_model_name_or_path"]:
        raise ValueError(
            f"{path}: base_model_name_or_path is empty, expected the directory or hub name of the "
            "model that was adapted; write it there"
        )
    ranks = [declared["r"], *declared.get("rank_pattern", {}).values()]
    return Adapter(base=declared["base_model_name_or_path"], rank=max(ranks))


def base_of(directory: Path) -> str:
    """Return where a policy's whole weights are: its own directory, or that of the frozen model."""
    adapter = adapter_of(directory)
    return str(directory) if adapter is None else adapter.base
