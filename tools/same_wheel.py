"""`python same_wheel.py WHEEL REBUILT SOURCE`: both wheels are equal, and hold what SOURCE holds.

REBUILT is the wheel that the sdist makes. Exits with 1 if a file differs, lacks or is too many.
"""

import sys
from pathlib import Path
from zipfile import ZipFile


def contents(wheel: Path) -> dict[str, int]:
    """Return the checksum of each file in a wheel."""
    with ZipFile(wheel) as opened:
        return {each.filename: each.CRC for each in opened.infolist() if not each.is_dir()}


def files(source: Path) -> set[str]:
    """Return what a wheel of this source holds."""
    found = (path for path in source.rglob("*") if path.is_file())
    return {
        path.relative_to(source).as_posix()
        for path in found
        if "__pycache__" not in path.parts and not path.name.startswith(".")
    }


def main(wheel: Path, rebuilt: Path, source: Path) -> None:
    """Compare them."""
    one, other = contents(wheel), contents(rebuilt)
    different = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
    # The pages for `millpond docs` come from docs/; a test says which.
    packed = {n for n in one if ".dist-info/" not in n and not n.startswith("millpond/docs/")}
    unlike = sorted(packed ^ files(source))
    if different or unlike:
        sys.exit(f"not the same in the sdist's wheel: {different}\nnot as in {source}: {unlike}")
    print(f"ok  {len(packed)} files, as in {source}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
