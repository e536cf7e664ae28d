"""The machine and the versions that figures were measured with."""

import os
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tests.bench.records import Record, check

CPU_INFO = Path("/proc/cpuinfo")
VECTOR_UNITS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
"""Flags of a CPU that the speed of a matrix product hangs on."""

LIBRARIES = ("torch", "transformers", "flytekit")
GIB = 2**30


def describe() -> list[Record]:
    """Return date, machine, load and versions."""
    versions = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    return [
        check("date", datetime.now(UTC).date().isoformat()),
        check("machine", f"{os.cpu_count()} x {cpu()}, {memory_gib():.0f} GiB"),
        check("load at the start", f"{os.getloadavg()[0]:.1f}"),
        check("versions", versions),
    ]


def cpu() -> str:
    """Return the name of the CPU and those of its vector units that matter."""
    facts = {
        key.strip(): value.strip()
        for key, _, value in (line.partition(":") for line in CPU_INFO.read_text().splitlines())
    }
    flags = set(facts.get("flags", "").split())
    return " ".join([facts.get("model name", "CPU"), *(u for u in VECTOR_UNITS if u in flags)])


def memory_gib() -> float:
    """Return the memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
