"""The pytest plugin, in a pytest of its own and as an installed package offers it."""

import subprocess
import sys
from pathlib import Path

import pytest

from millpond import Millpond, NotSupported, Retry, TaskFailed
from millpond.testing import eager

APP = """
from millpond import Millpond
mp = Millpond("postgresql://shop@nowhere.invalid/shop")
mail = mp.pool("mail", max_concurrent=2)
sent = []

@mail.task
async def send(to: str) -> str:
    sent.append(to)
    return f"sent to {to}"
"""

TESTS = """
import work

def test_a_lab(millpond_lab):
    handle = millpond_lab.submit(work.send.bind("ada"))
    millpond_lab.run_until_idle()
    assert millpond_lab.result(handle) == "sent to ada"

def test_eager_mode_in_flask(millpond_eager):
    from flask import Flask
    app = Flask("shop")

    @app.post("/signup")
    def sign_up():
        work.mp.sync.open()
        return {"task": str(work.send.sync.submit("eve").id)}

    assert app.test_client().post("/signup").status_code == 200
    assert work.sent[-1] == "eve"
    later = work.mail.sync.submit(work.send.bind("bob"), delay=60)
    assert work.sent[-1] == "eve"
    millpond_eager.advance(60)
    assert later.get() == "sent to bob"
"""


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder, as a project of its own."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def make_project(folder: Path, settings: str, tests: str = TESTS) -> None:
    """Write an application and its tests."""
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = .\n{settings}\n")
    (folder / "work.py").write_text(APP)
    (folder / "test_work.py").write_text(tests)


def test_the_fixtures_open_the_millpond_that_the_settings_name(tmp_path: Path) -> None:
    """No plugin has to be named, and no database to be there."""
    make_project(tmp_path, "millpond_app = work:mp")
    done = run_pytest(tmp_path, "-W", "error")
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_settings_that_name_nothing_say_what_to_write(tmp_path: Path) -> None:
    """Or which fixture to override; an overridden one needs no setting."""
    make_project(tmp_path, "")
    done = run_pytest(tmp_path)
    assert 'millpond_app = "package.module:mp"' in done.stdout
    overrides = "import pytest, work\n@pytest.fixture\ndef millpond_app():\n    return work.mp\n"
    (tmp_path / "conftest.py").write_text(overrides)
    assert "2 passed" in run_pytest(tmp_path).stdout


def test_a_project_that_does_not_use_it_imports_nothing(tmp_path: Path) -> None:
    """pytest loads the plugin in every project, so it must cost nothing."""
    test = """
import sys

def test_nothing_is_imported():
    loaded = {name for name in sys.modules if name.startswith("millpond")}
    assert loaded == {"millpond", "millpond.integrations", "millpond.integrations.pytest_plugin"}
"""
    make_project(tmp_path, "", test)
    done = run_pytest(tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.memory("a lab has its own store")
def test_eager_mode_runs_what_is_submitted_and_keeps_errors_in_the_handle() -> None:
    """Retries come when time passes; batches, maps and reads work as they do in threads."""
    mp = Millpond("sqlite:///never-made.db")
    pool = mp.pool("work", max_concurrent=2, retry=Retry(attempts=2, initial=10, jitter=0))
    seen: list[int] = []

    @pool.task
    async def note(number: int) -> int:
        seen.append(number)
        if number < 0:
            raise ValueError(str(number))
        return 2 * number

    @pool.task
    def in_thread(number: int) -> int:
        return note.sync.submit(number).get(timeout=5)

    with eager(mp) as bench:
        assert [2, 4] == [one.get() for one in pool.sync.submit_many([note.bind(1), note.bind(2)])]
        assert [6, 8] == pool.sync.map(note, [3, 4]).get()
        assert [10] == list(pool.sync.map(note, [5]))
        with pytest.raises(NotSupported, match="list"):
            pool.sync.map(note, (number for number in (1, 2))).get()
        failing = note.sync.submit(-1)
        assert [-1] == seen[5:]
        bench.advance(15)
        assert [-1, -1] == seen[5:]
        with pytest.raises(TaskFailed):
            failing.get()
        assert 0 == pool.sync.size()
        assert 14 == in_thread.sync.submit(7).get()
    assert not mp.is_open
    assert not Path("never-made.db").exists()
