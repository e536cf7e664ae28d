"""Where a model's directory is: on a disk, or downloaded once from the hub."""

from pathlib import Path


def fetch(name: str, revision: str = "") -> Path:
    """Return the local directory of a path or hub name; a hub's ends in its commit.

    Args:
        name: directory or hub name.
        revision: of a hub name; empty: its default branch.

    Raises:
        ValueError: an absolute path leads nowhere.
    """
    path = Path(name)
    if path.is_dir():
        return path
    if path.is_absolute():
        raise ValueError(f"the model's directory {name} does not exist; restore or rename it")
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, revision=revision or None))
