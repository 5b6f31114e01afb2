"""Links hold in other processes: one that takes over after a kill, or a child."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

APP = Path(__file__).parent / "traced_app.py"


def begin(role: str, file: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", str(APP), role, str(file)],
        stdout=subprocess.PIPE,
        text=True,
    )


def spans_of(role: str, file: Path) -> list[dict[str, Any]]:
    """Return the spans that a process printed."""
    with begin(role, file) as process:
        lines, _ = process.communicate(timeout=30)
    assert 0 == process.returncode
    return [json.loads(line) for line in lines.splitlines()]


def by_name(spans: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [span for span in spans if span.get("name") == name]


@pytest.mark.rows("HN-26")
def test_a_task_is_linked_to_its_submit_over_processes_and_a_kill(tmp_path: Path) -> None:
    """Submitted by one, begun by one that is killed, run by a third, which points at the first."""
    file = tmp_path / "work.db"
    submitted = spans_of("submit", file)
    (request,), (submit,) = by_name(submitted, "request"), by_name(submitted, "submit mail")
    assert request["context"]["span_id"] == submit["parent_id"]

    with begin("die", file) as victim:
        assert victim.stdout is not None
        assert "began\n" == victim.stdout.readline()
        victim.kill()

    worked = spans_of("work", file)
    of = {span["attributes"]["millpond.function"]: span for span in by_name(worked, "process mail")}
    process = of["send"]
    assert (2, "completed") == (
        process["attributes"]["millpond.attempt"],
        process["attributes"]["millpond.outcome"],
    )
    assert (
        submit["attributes"]["messaging.message.id"]
        == (process["attributes"]["messaging.message.id"])
    )
    (link,) = process["links"]
    assert (submit["context"]["trace_id"], submit["context"]["span_id"]) == (
        link["context"]["trace_id"],
        link["context"]["span_id"],
    )
    assert submit["context"]["trace_id"] != process["context"]["trace_id"]
    # The handler in a process of its own was inside the attempt of its worker.
    (rendered,) = [line["render"] for line in worked if "render" in line]
    context = of["render"]["context"]
    assert [context["trace_id"], context["span_id"], "bob"] == [
        f"0x{rendered[0]}",
        f"0x{rendered[1]}",
        rendered[2],
    ]
