"""The fourth tutorial, followed on a real server; and the second, its blocks in one file."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


def blocks(page: str, language: str) -> list[str]:
    """Return the blocks of a tutorial."""
    text = (ROOT / "docs/tutorial" / page).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_the_second_tutorial_runs_as_printed(tmp_path: Path) -> None:
    """Its blocks, one below the other, are a program that prints what the page says."""
    file = tmp_path / "typed.py"
    file.write_text("\n\n".join(blocks("02-a-named-pool.md", "python")), "utf-8")
    answer = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert 0 == answer.returncode, answer.stderr
    page = " ".join((ROOT / "docs/tutorial/02-a-named-pool.md").read_text("utf-8").split())
    assert 6 == len(answer.stdout.splitlines())
    assert [] == [line for line in answer.stdout.splitlines() if line not in page]


class Reader:
    """A reader who follows the fourth page in their own folder."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        program = (ROOT / "docs/examples/shop_app.py").read_text("utf-8")
        (folder / "shop_app.py").write_text(program.replace("sleep(2)", "sleep(0.1)"), "utf-8")
        paths = ":".join(sys.path)
        self._environment = {
            **os.environ, "PYTHONPATH": paths, "DATABASE_URL": url, "MILLPOND_STORE": url
        }  # fmt: skip

    def run(self, *words: str) -> str:
        """Type a command, and return all that it prints."""
        answer = subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        return (answer.stdout + answer.stderr).strip()

    def until(self, there: Callable[[str], bool], *words: str) -> str:
        """Type a command until its output is as it should be, at most fifty times."""
        for _ in range(50):
            if there(seen := self.run(*words)):
                return seen
        raise AssertionError(seen)

    @contextmanager
    def worker(self) -> Iterator[subprocess.Popen[bytes]]:
        """Start a worker, and end it."""
        command = [sys.executable, "-m", "millpond", "worker", "shop_app:mp"]
        with subprocess.Popen(
            command, cwd=self.folder, env=self._environment, stderr=subprocess.DEVNULL
        ) as running:
            try:
                yield running
            finally:
                running.kill()


@pytest.mark.listens
@pytest.mark.session
@pytest.mark.timeout(300)  # it starts a dozen processes, one after the other
def test_the_fourth_tutorial_ends_as_it_says(postgres_url: str, tmp_path: Path) -> None:
    """An order is stored with its task or not at all; two workers run what SQL submitted too."""
    reader = Reader(tmp_path, postgres_url)
    assert "ready" == reader.run("shop_app.py", "prepare")
    stored = "order {} and its task are stored"
    assert stored.format(1) == reader.run("shop_app.py", "buy", "acme")
    refused = "no money: neither the order nor its task exists"
    assert refused == reader.run("shop_app.py", "fail", "acme")
    assert stored.format(3) == reader.run("shop_app.py", "buy", "bolt")
    (statement,) = blocks("04-on-postgresql.md", "sql")
    with psycopg.connect(postgres_url) as connection:
        connection.execute(statement.encode())
        assert (2,) == connection.execute("SELECT count(*) FROM orders").fetchone()
    tasks = ("-m", "millpond", "tasks")
    assert 3 == reader.run(*tasks).count(" queued ")
    with reader.worker() as first, reader.worker() as second:
        reader.until(lambda seen: 3 == seen.count(" completed "), *tasks)
        assert 3 == len(reader.run("-m", "millpond", "workers").splitlines())
        for command, output in {
            "resize invoices 8": "invoices: at most 8 at a time, 4 before",
            "pause invoices": "invoices paused",
            "resume invoices": "invoices resumed",
        }.items():
            assert output in reader.run("-m", "millpond", *command.split())
        for worker in (first, second):
            worker.send_signal(signal.SIGTERM)
            assert 0 == worker.wait(PATIENCE)
