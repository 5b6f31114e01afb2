"""What tests of the command share."""

import shutil
from pathlib import Path

import pytest
from tests.cli.operating import Call, caller, fill


@pytest.fixture(scope="session")
def filled_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store that no test changes."""
    folder = tmp_path_factory.mktemp("filled")
    fill(folder)
    return folder


@pytest.fixture
def store(filled_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A copy of that store, which the environment names."""
    shutil.copy(filled_folder / "work.db", tmp_path / "work.db")
    url = f"sqlite:///{tmp_path}/work.db"
    monkeypatch.setenv("MILLPOND_STORE", url)
    return url


@pytest.fixture
def millpond(capsys: pytest.CaptureFixture[str]) -> Call:
    """`millpond`, called within this process."""
    return caller(capsys)
