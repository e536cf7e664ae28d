"""`python -m tasks.evaluation compare FIRST SECOND`: two kept evaluations, prompt by prompt."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tasks.evaluation.comparing import Difference, compare, different_sampling
from tasks.evaluation.record import Kept, read_evaluation

HEAD = ("measure", "first", "second", "difference", "95 % interval", "p", "prompts", "test")


def main(argv: list[str]) -> int:
    """Run one subcommand; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tasks.evaluation", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    pair = commands.add_parser("compare", help="compare two evaluations of the same prompts")
    pair.add_argument("first", type=Path, help="directory that an evaluation was kept in")
    pair.add_argument("second", type=Path)
    arguments = parser.parse_args(argv)
    try:
        first, second = (read_evaluation(path) for path in (arguments.first, arguments.second))
        sys.stdout.write(report(first, second))
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def report(first: Kept, second: Kept) -> str:
    """Return the comparison of two evaluations as text.

    Raises:
        ValueError: as `compare`.
    """
    differences = compare(first, second)
    named = zip(("first", "second"), (first, second), strict=True)
    lines = [f"{name}: {kept.record.origin}, {kept.directory}" for name, kept in named]
    lines += [f"sampled apart: {line}" for line in different_sampling(first, second)]
    return "\n".join([*lines, *_aligned([HEAD, *map(_cells, differences)])]) + "\n"


def _cells(difference: Difference) -> tuple[str, ...]:
    return (
        difference.measure,
        f"{difference.first:.4f}",
        f"{difference.second:.4f}",
        f"{difference.second - difference.first:+.4f}",
        f"{difference.low:+.4f} to {difference.high:+.4f}",
        f"{difference.p_value:.2g}",
        f"{difference.num_prompts:,}",
        difference.test,
    )


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
