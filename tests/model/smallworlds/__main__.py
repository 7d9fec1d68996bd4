"""Search from the command line: `python -m smallworlds position --drop unfenced`."""

from __future__ import annotations

import argparse
import sys
import time

from smallworlds.catalog import MODELS


def main(arguments: list[str]) -> int:
    """0 when nothing was found; 1 with a trace; 2 for a model, world or rule that is none."""
    parser = argparse.ArgumentParser(prog="smallworlds", description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--world", action="append", help="default: those the tests search, or a dropped rule's witness")
    parser.add_argument("--drop", action="append", default=[], help="a rule to do without; may be repeated")
    parser.add_argument("--list", action="store_true", help="say the worlds and the rules")
    asked = parser.parse_args(arguments)
    entry = MODELS[asked.model]
    if asked.list:
        print("worlds:", *entry.worlds)
        print("\n".join(f"{rule}: {what}" for rule, what in entry.rules.items()))
        return 0
    if unknown := [name for name in asked.world or [] if name not in entry.worlds]:
        parser.error(f"no such world: {', '.join(unknown)}; there are {', '.join(entry.worlds)}")
    if unknown := [rule for rule in asked.drop if rule not in entry.rules]:
        parser.error(f"no such rule: {', '.join(unknown)}; there are {', '.join(entry.rules)}")
    witnesses = list(dict.fromkeys(entry.witness[rule] for rule in asked.drop))
    for world in asked.world or witnesses or entry.asked_for():
        began = time.monotonic()
        found = entry.search(world, frozenset(asked.drop))
        print(f"{world} ({time.monotonic() - began:.1f} s): {found}", flush=True)
        if found.broken:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
