"""Our step against TRL's, and against a plain loop: fresh processes, taking turns."""

import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tests.bench import processes
from tests.bench.records import ROOT, Record, check, compared
from tests.bench.work import SMOLLM2, WORKS, Folder, Work

PEER_PYTHON = ROOT / ".venv-trl" / "bin" / "python"
VLLM_PYTHON = ROOT / ".venv-vllm" / "bin" / "python"

SECONDS = {"generate": "generate_s", "rest": "rest_s", "end to end": "step_s"}
"""Phases by the figure that they are; fewer seconds are better."""

WORK_DONE = ("prompt_tokens", "completion_tokens")
"""Figures in which all sides must agree."""

Figures = Mapping[str, float]


class Side(NamedTuple):
    """A process that does the work.

    Attributes:
        name: what it is called here.
        python: interpreter of its environment, which need not exist.
        module: what it runs.
        arguments: what follows the folder.
        works: what it does.
    """

    name: str
    python: Path
    module: str
    arguments: tuple[str, ...] = ()
    works: tuple[Work, ...] = WORKS

    def is_ready(self) -> bool:
        """Return whether its environment was completed."""
        own = self.python == Path(sys.executable)
        return own or (self.python.parents[1] / ".ready").exists()


OURS = Side("ours", Path(sys.executable), "tests.bench.ours")
BARE = Side("bare", Path(sys.executable), "tests.bench.bare")
PEER = Side("peer", PEER_PYTHON, "tests.bench.peer")
VLLM = Side("vllm", VLLM_PYTHON, "tests.bench.ours", ("vllm",), works=(SMOLLM2,))
SIDES = (OURS, PEER, BARE, VLLM)
"""In the order of a turn."""


def compare(*, quick: bool) -> list[Record]:
    """Measure all works on all sides."""
    return [record for work in WORKS for record in compare_one(work, quick=quick)]


def compare_one(work: Work, *, quick: bool) -> list[Record]:
    """Measure one work on the sides that do it and are installed."""
    sides = [side for side in SIDES if work in side.works and side.is_ready()]
    with TemporaryDirectory() as scratch:
        folder = Folder(root=Path(scratch))
        work = work.quick() if quick else work
        folder.write_work(work)
        processes.run(Path(sys.executable), "tests.bench.prepare", scratch)
        turns = [
            (side.name, _take_turn(side, scratch)) for _ in range(work.num_turns) for side in sides
        ]
    versions = {name: told["versions"] for name, told in turns}
    figures = medians([(name, told["figures"]) for name, told in turns])
    return [*_versions(work.name, versions), *records(work.name, figures)]


def _take_turn(side: Side, scratch: str) -> dict[str, Any]:
    told = processes.told(side.python, side.module, scratch, *side.arguments)
    print(f"{side.name}: {told['figures']}", file=sys.stderr, flush=True)
    return told


def _versions(work: str, sides: dict[str, dict[str, str]]) -> list[Record]:
    return [
        check(f"{work}: versions, {name}", ", ".join(f"{k} {v}" for k, v in versions.items()))
        for name, versions in sides.items()
        if name in (PEER.name, VLLM.name)
    ]


def medians(turns: list[tuple[str, Figures]]) -> dict[str, Figures]:
    """Return each side's figures, the median over its turns.

    Raises:
        ValueError: the sides did not do the same work.
    """
    gathered: dict[str, list[Figures]] = defaultdict(list)
    for name, figures in turns:
        gathered[name].append(figures)
    for key in WORK_DONE:
        counts = {name: figures[key] for name, figures in turns}
        if len(set(counts.values())) > 1:
            raise ValueError(f"the sides did different work: {key} is {counts}, expected all equal")
    return {
        name: {key: median(turn[key] for turn in found) for key in found[0]}
        for name, found in gathered.items()
    }


def records(work: str, sides: dict[str, Figures]) -> list[Record]:
    """Return the rows of a work; a side that is not installed gives none or empty ones."""
    ours, peer, bare = sides["ours"], sides.get("peer", {}), sides["bare"]
    rows = [compared(work, phase, ours[key], peer.get(key)) for phase, key in SECONDS.items()]
    rows += [
        compared(work, "samples/s", ours["samples_per_s"], peer.get("samples_per_s"), larger=True),
        compared(work, "peak RSS MiB", ours["peak_rss_mib"], peer.get("peak_rss_mib")),
    ]
    if work == SMOLLM2.name:
        vllm = sides.get("vllm", {}).get("generate_s")
        rows.append(compared(work, "generate, ours by vLLM", vllm, peer.get("generate_s")))
    for phase, key in SECONDS.items():
        rows.append(check(f"{work}: {phase}, seconds over a plain loop's", ours[key] / bare[key]))
    return rows
