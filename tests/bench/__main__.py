"""`make bench`: everything that is claimed of speed, measured in one run on one machine.

Prints one table and writes `build/bench.json`: a list of `{work, phase, ours, peer, ratio}`, where
a ratio above 1 means that ours is better, and of `{check, value}`.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from tests.bench import comparison, machine, orchestration, processes
from tests.bench.records import COMPLETE, Record, check, publish, read, table, write


def layouts(*, quick: bool) -> list[Record]:
    """Return what a backward pass takes by layout, and what of it is padding."""
    arguments = ["--quick"] if quick else []
    told = processes.told(Path(sys.executable), "tests.bench.layouts", *arguments)
    return [
        check(f"layout {name}: {figure}", value)
        for name, figures in told.items()
        for figure, value in figures.items()
    ]


def passes(*, quick: bool) -> list[Record]:
    """Return the peak memory of a training pass in GiB, beside the logits of every position."""
    from tests.bench import memory

    return [] if quick else memory.measure()


def ranks(*, quick: bool) -> list[Record]:
    """Return the seconds of a training step on one rank and on two."""
    from tests.bench.ranks import seconds_per_step

    return [] if quick else [check(name, value) for name, value in seconds_per_step().items()]


SECTIONS: list[tuple[str, Callable[..., list[Record]]]] = [
    ("comparison", comparison.compare),
    ("layouts", layouts),
    ("memory", passes),
    ("ranks", ranks),
    ("run", orchestration.whole_run),
    ("scaling", orchestration.scaling),
    ("imports", orchestration.imports),
]
"""What is measured, in this order; each takes `quick`."""


def measure(names: list[str], *, quick: bool) -> list[Record]:
    """Return the records of some sections, and of the machine that they were measured on.

    What is measured is written at once: a section that fails loses none of those before it.
    """
    found = machine.describe()
    for name, section in SECTIONS:
        if name in names:
            print(f"measuring: {name}", file=sys.stderr, flush=True)
            found += section(quick=quick)
            write([*found, check(COMPLETE, False)])
    is_complete = names == [name for name, _ in SECTIONS] and not quick
    records = [*found, check(COMPLETE, is_complete)]
    write(records)
    return records


def main() -> None:
    """Measure, print and write; or put what was measured last into the docs."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    names = [name for name, _ in SECTIONS]
    parser.add_argument("--quick", action="store_true", help="next to no work: shows that it runs")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="SECTION")
    parser.add_argument(
        "--publish",
        action="store_true",
        help="measure nothing: write the last table into docs/benchmarks.md",
    )
    arguments = parser.parse_args()
    if arguments.publish:
        publish(read())
        return
    records = measure([n for n in names if n in arguments.only], quick=arguments.quick)
    print(table(records))


if __name__ == "__main__":
    main()
