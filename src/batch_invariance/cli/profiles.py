"""`profiles`: what the package brings along for a kind of task, and its example registry."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from batch_invariance.cli.exit_codes import ExitCode
from batch_invariance.cli.style import Style
from batch_invariance.errors import UsageError
from batch_invariance.live_invariance.profile_files import (
    EXAMPLE_REGISTRY,
    PROFILES,
    example_registry,
    profile_names,
)
from batch_invariance.live_invariance.registry_file import RegistryFile, parse_registry
from batch_invariance.live_invariance.store import check_new, write_new

EXAMPLES = """examples:
  batch-invariance profiles list
  batch-invariance profiles show spark
  batch-invariance profiles init spark
  batch-invariance profiles init spark --out ~/.config/batch-invariance/models.toml

init writes the profile's example registry, over no file and into no folder that is not there.
"""
DEFAULT_TARGET = Path("models.toml")


@dataclass(frozen=True, slots=True)
class FamilyLine:
    """A kind of item in a profile's work-set: its name, and what it is in a line."""

    name: str
    title: str


@dataclass(frozen=True, slots=True)
class Profile:
    """What a profile holds: the families of its work-set, its example registry as text, and the
    models in that."""

    name: str
    families: tuple[FamilyLine, ...]
    models: tuple[str, ...]
    registry: str


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Registers the verb."""
    parser = commands.add_parser(
        "profiles",
        help="list and show the profiles, or write one's example registry",
        description="Lists the profiles, shows one, or writes its example registry of models.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=tuple(_ACTIONS), metavar="ACTION", help="what to do")
    parser.add_argument("name", nargs="?", metavar="NAME", help="of a profile; not for list")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="where init writes (./models.toml)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, server_flags: Sequence[str]) -> int:
    """Carries the verb out and returns the exit code."""
    if server_flags:
        raise UsageError("profiles starts no server: nothing may follow --")
    if (args.name is None) != (args.action == "list"):
        needed = "takes no name" if args.action == "list" else "needs the name of a profile"
        raise UsageError(
            f"profiles {args.action} {needed}; installed: {', '.join(profile_names())}"
        )
    if args.out is not None and args.action != "init":
        raise UsageError(f"profiles {args.action} writes no file: --out is for init")
    _ACTIONS[args.action](args)
    return ExitCode.PROMOTABLE


def _list(args: argparse.Namespace) -> None:
    profiles = [load_profile(name) for name in profile_names()]
    if args.json:
        shown = [
            {"name": p.name, "families": len(p.families), "models": list(p.models)}
            for p in profiles
        ]
        print(json.dumps({"profiles": shown}))
        return
    for profile in profiles:
        print(
            f"{profile.name}: {len(profile.families)} families of items; example registry with "
            + ", ".join(profile.models)
        )


def _show(args: argparse.Namespace) -> None:
    profile = load_profile(args.name)
    if args.json:
        print(json.dumps(asdict(profile)))
        return
    style = Style(sys.stdout)
    print(style.bold(f"profile {profile.name}"))
    for family in profile.families:
        print(f"  {family.name}  {family.title}")
    print(f"\n{style.bold(EXAMPLE_REGISTRY)}, which profiles init {profile.name} writes\n")
    print(profile.registry, end="")


def _init(args: argparse.Namespace) -> None:
    target = DEFAULT_TARGET if args.out is None else args.out
    check_new(target)
    write_new(target, example_registry(args.name))
    if args.json:
        print(json.dumps({"file": str(target), "profile": args.name}))
    else:
        print(f"{target}: the example registry of profile {args.name}; set its paths and flags")


_ACTIONS = {"list": _list, "show": _show, "init": _init}


def load_profile(name: str) -> Profile:
    """What the installed profile `name` holds. Raises UsageError when there is none."""
    data = example_registry(name)
    registry = parse_registry(RegistryFile(f"{EXAMPLE_REGISTRY} of profile {name}", None, data))
    return Profile(name, _families(name), registry.aliases, data.decode("utf-8"))


def _families(name: str) -> tuple[FamilyLine, ...]:
    """The members of the profile's `families.Family`, each with its summary."""
    family: Any = importlib.import_module(f"{PROFILES}.{name}.families").Family
    return tuple(FamilyLine(str(member.value), str(member.summary)) for member in family)
