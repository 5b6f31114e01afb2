"""The recipes for web frameworks, under real servers and over HTTP."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.integrations.serving import SOON, Served, gunicorn, served, uvicorn

SERVERS = {
    "fastapi under uvicorn": uvicorn("fastapi_app:app"),
    "starlette under uvicorn": uvicorn("starlette_app:app"),
    "flask under gunicorn": gunicorn("flask_app:app", "--workers", "2"),
    "flask under gunicorn with threads": gunicorn("flask_app:app", "--threads", "8"),
    "flask under gunicorn, preloaded": gunicorn("flask_app:app", "--workers", "2", "--preload"),
    "django under gunicorn": gunicorn("django_app:application", "--workers", "2"),
    "django under gunicorn, preloaded": gunicorn(
        "django_app:application", "--workers", "2", "--preload"
    ),
    "django under uvicorn": uvicorn("django_app:asgi", "--lifespan", "off"),
}


@pytest.mark.parametrize("name", SERVERS)
def test_a_request_submits_and_another_reads_the_result(name: str, tmp_path: Path) -> None:
    """Whichever process answers; and the server ends as soon as it is asked to."""
    with served(SERVERS[name], tmp_path) as server, httpx.Client(timeout=SOON) as client:
        for number in range(8):
            task = submit(client, server, f"ada{number}@example.com")
            answer = client.get(f"{server.url}/mails/{task}")
            assert 200 == answer.status_code, server.log
            assert {"result": f"sent to ada{number}@example.com"} == answer.json()
        assert server.stop() in (0, -15), server.log
    assert "Traceback" not in server.log


def test_a_run_is_followed_by_server_sent_events(tmp_path: Path) -> None:
    """The stream ends with the run; one of a run that is unknown ends at once."""
    server_of_events = uvicorn("fastapi_events:app")
    with served(server_of_events, tmp_path) as server, httpx.Client(timeout=SOON) as client:
        events = client.post(f"{server.url}/imports/june", params={"rows": 40}).json()["events"]
        lines = client.get(f"{server.url}{events}").text.strip().split("\n\n")
        assert 'data: {"ended": 40, "of": 40}' == lines[-1]
        assert "" == client.get(f"{server.url}/imports/may/events").text
        assert 0 == client.get(f"{server.url}/health").json()["waiting"]


def submit(client: httpx.Client, server: Served, to: str) -> str:
    """Submit over HTTP; return the id of the task."""
    answer = client.post(f"{server.url}/mails", params={"to": to})
    assert 202 == answer.status_code, answer.text + server.log
    task: str = answer.json()["task"]
    return task


def test_a_status_page_shows_how_far_a_task_has_come(tmp_path: Path) -> None:
    """It answers without waiting for the result, and 404 for a task that was never there."""
    with (
        served(SERVERS["fastapi under uvicorn"], tmp_path) as server,
        httpx.Client(timeout=SOON) as client,
    ):
        task = submit(client, server, "ada@example.com")
        client.get(f"{server.url}/mails/{task}").raise_for_status()  # waits for the result
        status = client.get(f"{server.url}/mails/{task}/status").json()
        assert {"status": "completed", "done": 0.5, "doing": "connected"} == status
        assert 404 == client.get(f"{server.url}/mails/77/status").status_code


@pytest.mark.parametrize(
    "options",
    [("--threads", "16"), ("--workers", "2", "--threads", "8", "--preload")],
    ids=["threads", "processes"],
)
def test_flask_submits_from_hundreds_of_requests_at_once(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    """Every request is answered, and every task has run, each once."""
    many = 300
    # Each request has a connection of its own: the client may close an idle one, which it has just
    # given to another thread.
    apart = httpx.Limits(max_keepalive_connections=0)
    with served(gunicorn("flask_app:app", *options), tmp_path) as server:
        with ThreadPoolExecutor(64) as callers, httpx.Client(timeout=SOON, limits=apart) as client:
            mails = (callers.submit(submit, client, server, f"{number}") for number in range(many))
            tasks = [mail.result() for mail in list(mails)]
            assert many == len(set(tasks))

            def read(task: str) -> str:
                answer = client.get(f"{server.url}/mails/{task}")
                assert 200 == answer.status_code, answer.text + server.log
                result: str = answer.json()["result"]
                return result

            results = list(callers.map(read, tasks))
        assert [f"sent to {number}" for number in range(many)] == results
        assert 0 == server.stop(), server.log
    assert "Traceback" not in server.log
