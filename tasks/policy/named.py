"""From what a user calls a policy to its files: a checkpoint, a directory or a hub name."""

import re
from pathlib import Path
from typing import NamedTuple

from configs.model import Model
from configs.run import RunConfig
from tasks.policy import checkpoints
from tasks.policy.directory import WEIGHT_SUFFIXES
from tasks.policy.files import PolicyFiles
from tasks.policy.start import initial_policy

INITIAL = "initial"
"""Stands for the policy that a run starts from."""

HUB_NAME = re.compile(r"(?P<name>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[\w./-]+))?")

EXPECTED = (
    f"'{INITIAL}', the directory of a run or of a checkpoint, a Hugging Face directory, or the "
    "name of a model on the Hugging Face hub, with @revision if need be"
)


class Named(NamedTuple):
    """A policy, the next step to train it (0: it is no checkpoint) and where it was found."""

    files: PolicyFiles
    step: int
    origin: str


def find_policy(name: str, config: RunConfig) -> Named:
    """Return the policy that a name stands for.

    Args:
        name: `initial`; the directory of a run, for its newest checkpoint; of a checkpoint or its
            `weights`; any Hugging Face directory; a hub name, with `@revision`; empty: the
            directory of the run that `config` is of.
        config: whose `model` is the initial one, and under whose output root files are kept.

    Raises:
        ValueError: naming what was looked for, if nothing is there or it cannot be used.
    """
    if name == INITIAL:
        files = initial_policy(
            config.model,
            config.data,
            seed=config.job.seed,
            output_root=Path(config.job.output_root).resolve(),
        )
        return Named(files, 0, INITIAL)
    path = Path(name or config.directory)
    if path.is_dir():
        return _checkpoint(path.resolve()) or _directory(path.resolve(), config)
    if not name:
        raise ValueError(
            f"there is no run in {path}; train it first, or say which checkpoint to evaluate: "
            f"{EXPECTED}"
        )
    return _from_hub(name, config)


def _checkpoint(path: Path) -> Named | None:
    """Return the checkpoint in a directory, or the newest of a run's; None if it is of neither."""
    for root in (path / "checkpoints", path):
        if checkpoints.paths(root):
            return _intact(checkpoints.newest(root), root)
    own = path.parent if path.name == checkpoints.WEIGHTS else path
    return _intact(checkpoints.read(own), own) if (own / checkpoints.MANIFEST).is_file() else None


def _intact(found: checkpoints.Checkpoint | None, path: Path) -> Named:
    if found is None:
        raise ValueError(
            f"checkpoint={str(path)!r}: files are missing or were altered since it was published, "
            f"its {checkpoints.MANIFEST} does not verify; name another one"
        )
    return Named(found.policy, found.step, str(found.path))


def _directory(path: Path, config: RunConfig) -> Named:
    """Return the policy of a Hugging Face directory."""
    has_weights = any(file.suffix in WEIGHT_SUFFIXES for file in path.iterdir())
    lacking = [] if (path / "config.json").is_file() else ["config.json"]
    lacking += [] if has_weights else [f"weights ({' or '.join(sorted(WEIGHT_SUFFIXES))})"]
    if lacking:
        raise ValueError(
            f"checkpoint={str(path)!r}: the directory has no {' and no '.join(lacking)}; "
            f"expected {EXPECTED}"
        )
    return _pretrained(str(path), "", config)


def _from_hub(name: str, config: RunConfig) -> Named:
    match = HUB_NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"checkpoint={name!r}: no such directory; expected {EXPECTED}")
    try:
        found = _pretrained(match["name"], match["revision"] or "", config)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"checkpoint={name!r}: no such directory here, and not to be had from the Hugging Face "
            f"hub ({type(error).__name__}: {str(error).splitlines()[0]}); expected {EXPECTED}"
        ) from error
    return found._replace(origin=name)


def _pretrained(name: str, revision: str, config: RunConfig) -> Named:
    files = initial_policy(
        Model(source="pretrained", name_or_path=name, revision=revision),
        config.data,
        seed=config.job.seed,
        output_root=Path(config.job.output_root).resolve(),
    )
    return Named(files, 0, name)
