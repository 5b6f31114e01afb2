"""Write the generated pages; with --check, only say which are out of date."""

import sys
from pathlib import Path

from tools import (
    bounds,
    commands,
    conformance,
    errors,
    http_api,
    lifecycle,
    options,
    reference,
    search_words,
    shown,
    telemetry,
    values,
)

ROOT = Path(__file__).parents[1]


def pages(root: Path = ROOT) -> dict[Path, str]:
    """Return every generated page as it should be."""
    return {
        root / "docs/reference/bounds.md": bounds.page(),
        root / "docs/reference/command.md": commands.page(),
        root / "docs/reference/conformance.md": conformance.page(root),
        root / "docs/reference/errors.md": errors.page(),
        root / "docs/reference/http-api.md": http_api.page(),
        root / "docs/reference/options.md": options.page(root),
        root / "docs/reference/search.md": search_words.page(root),
        root / "docs/reference/telemetry.md": telemetry.page(),
        root / "docs/reference/handles-and-reports.md": values.page(),
        **{root / "docs/reference" / name: text for name, text in reference.pages().items()},
        root / "docs/explanation/the-lifecycle.md": lifecycle.page(),
    }


def stale(root: Path = ROOT) -> list[str]:
    """Return the generated pages that do not say what they should."""
    return [
        path.relative_to(root).as_posix()
        for path, text in pages(root).items()
        if not path.exists() or path.read_text("utf-8") != text
    ]


def main() -> int:
    """Write, or check."""
    if "--check" in sys.argv[1:]:
        old = stale()
        print("\n".join(f"out of date, run `make docs`: {path}" for path in old) or "up to date")
        return bool(old)
    add_shown_rows()
    for path, text in pages().items():
        path.write_text(text, "utf-8")
    return 0


def add_shown_rows(root: Path = ROOT) -> None:
    """Add what tests show now to the list of shown rows."""
    order = [row.id for family in conformance.families(root) for row in family.rows]
    rows = shown.grown(shown.listed(root), shown.collected(root))
    (root / shown.LIST).write_text(shown.text_of(rows, order), "utf-8")


if __name__ == "__main__":
    sys.exit(main())
