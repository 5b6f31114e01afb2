"""The wheel that users install has the package, and nothing that only we run."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Build the wheel with the installed backend, without network, and return its files."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (file,) = folder.glob("*.whl")
    with zipfile.ZipFile(file) as archive:
        return archive.namelist()


def test_the_wheel_has_only_the_package_and_its_metadata(wheel: list[str]) -> None:
    """Neither verify/ nor tests/, tools/ or bench/."""
    tops = {name.split("/")[0] for name in wheel}
    assert {"millpond"} == {top for top in tops if not top.endswith(".dist-info")}


def test_the_wheel_has_every_module_and_data_file_of_the_package(wheel: list[str]) -> None:
    """SQL files, the marker for type checkers, and the kit for testing handlers."""
    sources = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src/millpond").rglob("*")
        if path.suffix in (".py", ".sql", ".typed") and path.is_file()
    }
    assert set() == sources - set(wheel)
    assert "millpond/testing/lab.py" in wheel


def test_the_wheel_has_the_pages_that_millpond_docs_prints(wheel: list[str]) -> None:
    """Guides, reference and the programs of both, and nothing that only developers read."""
    packed = {name for name in wheel if name.startswith("millpond/docs/")}
    assert {"millpond/docs/index.md", "millpond/docs/reference/errors.md"} <= packed
    programs = {name for name in packed if name.startswith("millpond/docs/examples/")}
    assert "millpond/docs/examples/orders_app.py" in programs
    assert {"md"} == {name.rpartition(".")[2] for name in packed - programs}
    assert [] == [name for name in packed if "design-decisions" in name or "conformance" in name]
