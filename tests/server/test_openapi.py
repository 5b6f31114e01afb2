"""The OpenAPI document is whole, and no request made from it breaks the server."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.openapi.checks import response_schema_conformance
from tests.server.desk import desk
from tests.server.test_reading import shop

from millpond import Millpond, bounded
from millpond.server import app

EXAMPLES = 25
"""Requests of each kind for each operation."""


@contextmanager
def served() -> Iterator[str]:
    """Serve a Millpond in memory whose pools may be changed; give the address."""
    mp = Millpond(work=False)
    shop(mp)
    mp.pool("full", backpressure=bounded(2, "fail_submitter"))
    made = app(mp, allow_actions=True, max_rate=1_000_000, max_clients=20)
    config = uvicorn.Config(made, "127.0.0.1", 0, log_config=None, access_log=False)
    server = uvicorn.Server(config)
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


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


async def test_fields_are_described() -> None:
    async with desk(shop) as at:
        schemas = (await at.client.get("/openapi.json")).json()["components"]["schemas"]
        limit = schemas["PoolGlance"]["properties"]["limit"]
        assert limit["description"] == "How many tasks may run at a time."
        assert schemas["Submission"]["additionalProperties"] is False


@pytest.mark.timeout(600)
def test_no_request_breaks_the_server() -> None:
    """Requests that fit the document, and requests that do not: never a 5xx but an honest 503."""
    statuses: Counter[int] = Counter()
    with served() as url:
        document = httpx.get(f"{url}/openapi.json").json()
        # A stream has no end to wait for; its own tests are in test_live.
        del document["paths"]["/api/v1/live"]
        schema = schemathesis.openapi.from_dict(document)
        for operation in schema.get_all_operations():
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                _try(operation.ok(), mode, url, statuses)
    assert statuses[200] > 100
    assert statuses[422] > 100
    assert sum(statuses.values()) > 1000


def _try(operation: Any, mode: GenerationMode, url: str, statuses: Counter[int]) -> None:
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
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
