"""Digests of files."""

import hashlib
from pathlib import Path


def file_digest(path: Path) -> str:
    """Return the SHA-256 of one file, 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
