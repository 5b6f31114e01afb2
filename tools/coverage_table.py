"""`coverage json -o - | python coverage_table.py`: what tests reach, by package, least first."""

import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any, NamedTuple

WEAKEST = 15
"""How many files are shown by name."""


class Reached(NamedTuple):
    """Statements and branches, and how many of them some test has reached."""

    statements: int
    reached: int
    branches: int
    taken: int

    @property
    def percent(self) -> float:
        """As `coverage report` has it: statements and branches in one figure."""
        every = self.statements + self.branches
        return 100.0 * (self.reached + self.taken) / every if every else 100.0

    def row(self, name: str) -> str:
        """Return a line of a table."""
        lines, branches = self.statements - self.reached, self.branches - self.taken
        return (
            f"| {name:<44} | {self.statements:>10} | {lines:>6} "
            f"| {self.branches:>8} | {branches:>6} | {self.percent:>5.1f} % |"
        )


HEAD = (
    f"| {'':<44} | statements | missed | branches | missed | reached |\n"
    f"|{'-' * 46}|{'-' * 12}|{'-' * 8}|{'-' * 10}|{'-' * 8}|{'-' * 9}|"
)


def of(summary: dict[str, Any]) -> Reached:
    """Return the figures of a file."""
    return Reached(
        summary["num_statements"],
        summary["covered_lines"],
        summary["num_branches"],
        summary["covered_branches"],
    )


def together(figures: Iterable[Reached]) -> Reached:
    """Return the sum of all."""
    return Reached(*map(sum, zip(*figures, strict=True)))


def main() -> None:
    """Print the tables."""
    found = json.load(sys.stdin)["files"]
    packages: defaultdict[str, list[Reached]] = defaultdict(list)
    files: dict[str, Reached] = {}
    for path, figures in found.items():
        parts = PurePath(path).parts
        inside = parts[parts.index("millpond") :]
        files["/".join(inside)] = of(figures["summary"])
        packages["/".join(inside[:-1][:3])].append(files["/".join(inside)])
    print("\n" + HEAD)
    for name in sorted(packages):
        print(together(packages[name]).row(name))
    print(together(files.values()).row("all"))
    print(f"\nThe {WEAKEST} files that tests reach least:\n\n" + HEAD)
    for name in sorted(files, key=lambda name: files[name].percent)[:WEAKEST]:
        print(files[name].row(name))


if __name__ == "__main__":
    main()
