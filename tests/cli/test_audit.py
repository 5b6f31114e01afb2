"""`millpond audit`: JSON Lines, from a position on, and with --follow."""

import json
import os
import signal
import subprocess
import sys

import pytest
from tests.cli.operating import Call

from millpond.cli.exits import Exit

pytestmark = pytest.mark.usefixtures("store")


def test_each_line_is_a_record(millpond: Call) -> None:
    """Positions count up, ids are texts, and no fence is given away."""
    answer = millpond("audit")
    assert (Exit.CLEAN, "") == (answer.code, answer.err)
    lines = answer.lines
    assert [*range(1, len(lines) + 1)] == [line["position"] for line in lines]
    assert {"position", "at", "kind", "pool", "detail"} == set(lines[0])
    arrow = next(line for line in lines if line.get("event") == "lease")
    assert isinstance(arrow["task"], str)
    assert {"before", "after", "attempt", "worker", "function", "due"} <= set(arrow)
    assert not any("token" in line for line in lines)


def test_reading_goes_on_where_it_stopped(millpond: Call) -> None:
    """Without gap or overlap."""
    uncut = millpond("audit").lines
    first = millpond("audit", "--limit", 5).lines
    rest = millpond("audit", "--after", first[-1]["position"]).lines
    assert uncut == first + rest


def test_audit_filters_by_pool_task_and_kind(millpond: Call) -> None:
    """By pool, kind, task and age."""
    uncut = millpond("audit").lines
    for options, fits in (
        (("--pool", "mail"), lambda line: line["pool"] == "mail"),
        (("--kind", "control"), lambda line: line["kind"] == "control"),
        (("--kind", "update"), lambda line: line["kind"] == "update"),
        (
            ("--kind", "retry", "--kind", "settle"),
            lambda line: line["kind"] in ("retry", "settle"),
        ),
        (("--since", "1h"), lambda _: True),
        (("--since", "0"), lambda _: False),
    ):
        assert [line for line in uncut if fits(line)] == millpond("audit", *options).lines
    (task, *_) = millpond("dead", "--ids").out.split()
    assert [line for line in uncut if line.get("task") == task] == (
        millpond("audit", "--task", task).lines
    )


def test_audit_follow_prints_new_records(millpond: Call, store: str) -> None:
    """New records are printed as they come; Ctrl-C ends it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "millpond", "audit", "--follow", "--new", "--every", "0.05"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path), "MILLPOND_STORE": store},
    )
    try:
        assert process.stdout is not None
        millpond("pause", "mail")
        output: dict[str, object] = {}
        # It may have begun to look before or after that.
        while not output:
            millpond("pause", "hooks")
            os.set_blocking(process.stdout.fileno(), False)
            output = json.loads(process.stdout.readline() or "{}")
        assert "control" == output["kind"]
        process.send_signal(signal.SIGINT)
        assert Exit.INTERRUPTED == process.wait(timeout=15)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_closed_output_pipe_is_no_failure(store: str) -> None:
    """As `millpond audit | head` does."""
    line = f"{sys.executable} -m millpond audit | head -n 1"
    answer = subprocess.run(
        ["/bin/bash", "-c", f"set -o pipefail; {line}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path), "MILLPOND_STORE": store},
        timeout=30,
        check=False,
        input="",
    )
    assert (0, "") == (answer.returncode, answer.stderr)
    assert 1 == json.loads(answer.stdout)["position"]
