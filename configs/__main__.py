"""`python -m configs show RECIPE [--overrides ...]`, `... diff A B` and `... reference`."""

import argparse
import sys

from configs.dpo import DpoConfig
from configs.dpo_preflight import dpo_warnings
from configs.plan import AnyConfig, difference, plan, to_yaml
from configs.preflight import warnings
from configs.reference import reference
from configs.resolve import resolve_any


def main(argv: list[str]) -> int:
    """Run one subcommand; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m configs", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    show = commands.add_parser("show", help="print the resolved config, the plan and the warnings")
    show.add_argument("recipe")
    show.add_argument("--overrides", default="", help='"section.field=value ..."')
    show.add_argument("--json", action="store_true", help="print the config alone, as JSON")
    diff = commands.add_parser("diff", help="print the keys in which two recipes differ")
    diff.add_argument("first")
    diff.add_argument("second")
    commands.add_parser("reference", help="print docs/configuration.md")
    arguments = parser.parse_args(argv)
    try:
        sys.stdout.write(_answer(arguments))
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def _answer(arguments: argparse.Namespace) -> str:
    if arguments.command == "reference":
        return reference()
    if arguments.command == "diff":
        rows = difference(resolve_any(arguments.first), resolve_any(arguments.second))
        return "".join(f"{key}: {a!r} -> {b!r}\n" for key, (a, b) in rows.items())
    config = resolve_any(arguments.recipe, arguments.overrides)
    if arguments.json:
        return config.model_dump_json(indent=2) + "\n"
    lines = [to_yaml(config), "# plan", *(f"#   {line}" for line in plan(config))]
    lines += [f"# warning: {line}" for line in _warnings(config)]
    return "\n".join(lines) + "\n"


def _warnings(config: AnyConfig) -> list[str]:
    return dpo_warnings(config) if isinstance(config, DpoConfig) else warnings(config)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
