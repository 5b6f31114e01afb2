"""The OpenAPI document is whole, and no request made from it breaks the server."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.strategies import booleans
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import response_schema_conformance
from tests.server.desk import desk
from tests.server.test_reading import shop

EXAMPLES = 25
"""Requests of each kind for each operation."""


@contextmanager
def served() -> Iterator[str]:
    """Serve a Millpond in memory, in a process of its own; give the address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.server.served_app"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip().rstrip("/")
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 0


async def test_every_reference_leads_somewhere() -> None:
    async with desk(shop) as at:
        answer = await at.client.get("/openapi.json")
        document = answer.json()
        schemas = document["components"]["schemas"]
        used = set(re.findall(r'"#/components/schemas/(\w+)"', answer.text))
        assert used <= schemas.keys()
        assert len(document["paths"]) > 25
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                assert operation["description"], f"{method} {path}"
                assert operation["responses"].keys() & {"200", "202", "204"}, f"{method} {path}"


@pytest.mark.rows("DA-12")
async def test_headers_that_a_client_acts_on_are_in_the_document() -> None:
    """Where a new thing is, and when to try a refused request again."""
    async with desk(shop) as at:
        paths = (await at.client.get("/openapi.json")).json()["paths"]
        submit = paths["/api/v1/pools/{pool}/tasks"]["post"]["responses"]
        for status in ("200", "202"):
            assert "Location" in submit[status]["headers"]
        for operations in paths.values():
            for operation in operations.values():
                for status in ("429", "503"):
                    assert "Retry-After" in operation["responses"][status]["headers"]
        stream = paths["/api/v1/live"]["get"]["responses"]["200"]["content"]
        assert list(stream) == ["text/event-stream"]


async def test_fields_are_described() -> None:
    async with desk(shop) as at:
        schemas = (await at.client.get("/openapi.json")).json()["components"]["schemas"]
        limit = schemas["PoolGlance"]["properties"]["limit"]
        assert limit["description"] == "How many tasks may run at a time."
        assert schemas["Submission"]["additionalProperties"] is False


@pytest.mark.rows("DA-11")
@pytest.mark.timeout(600)
def test_no_request_breaks_the_server() -> None:
    """Requests that fit the document, and requests that do not: never a 5xx but an honest 503."""
    statuses: Counter[int] = Counter()
    with served() as url:
        document = httpx.get(f"{url}/openapi.json").json()
        # A stream has no end to wait for; its own tests are in test_live.
        del document["paths"]["/api/v1/live"]
        known = _known(url)
        schema = schemathesis.openapi.from_dict(document)
        for found in schema.get_all_operations():
            operation: Any = found
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                _try(operation.ok(), mode, url, known, statuses)
    assert statuses[200] > 100
    assert statuses[422] > 100
    assert sum(statuses.values()) > 1000


def _known(url: str) -> dict[str, str]:
    """Return the names and ids of things that are there, by the parameters that take them."""
    bodies = [{"function": "absent"}, {"function": "pay", "kwargs": {"amount": -1}}]
    tasks = [httpx.post(f"{url}/api/v1/pools/orders/tasks", json=one).json() for one in bodies]
    event = httpx.post(f"{url}/api/v1/events", json={"name": "paid", "payload": 3}).json()
    ids = {"task": tasks[1]["id"], "run": "1", "after": "5"}
    return {**ids, "pool": "orders", "schedule": "hourly", "event": event["task"]}


def _try(
    operation: Any,
    mode: GenerationMode,
    url: str,
    known: dict[str, str],
    statuses: Counter[int],
) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode), is_known=booleans())
    def ask(case: Any, is_known: bool) -> None:
        for given_here in (case.path_parameters, case.query) if is_known else ():
            names = given_here.keys() & known.keys() if given_here else ()
            given_here.update({name: known[name] for name in names})
        # To wait for a minute finds nothing more.
        if "wait" in (case.query or {}):
            case.query["wait"] = 0
        answer = case.call(base_url=url)
        statuses[answer.status_code] += 1
        honest = answer.status_code == 503 and "retry-after" in answer.headers
        assert answer.status_code < 500 or honest, f"{case.as_curl_command()}: {answer.text}"
        if answer.status_code < 400:
            case.validate_response(answer, checks=[response_schema_conformance])

    with contextlib.suppress(Unsatisfiable):
        # Some operations take nothing that could be wrong.
        ask()
