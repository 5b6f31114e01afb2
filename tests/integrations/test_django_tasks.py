"""The Django app in a real project, over HTTP, with its worker command, on both databases."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from tests.integrations.django_project import BACKPORT, MODERN, make_project
from tests.integrations.serving import SOON, Served, gunicorn, served, uvicorn

TASKS = MODERN if importlib.util.find_spec("django.tasks") else BACKPORT


class Project:
    """A project in a folder, on one database."""

    def __init__(self, folder: Path, database: dict[str, Any]) -> None:
        self.folder = folder
        make_project(folder, database, tasks=TASKS)
        self.manage("migrate", "--run-syncdb", "--verbosity", "0")

    def manage(self, *arguments: str) -> str:
        """Run a command of the project; return what it says."""
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=SOON,
            check=False,
            env={**os.environ, "DJANGO_SUPERUSER_PASSWORD": "secret"},
        )
        assert 0 == done.returncode, done.stdout + done.stderr
        return done.stdout + done.stderr

    def work(self) -> None:
        """Run all tasks that are due."""
        self.manage("millpond_worker", "--once")


def on_file(folder: Path, options: dict[str, str]) -> dict[str, Any]:
    """A database in a file."""
    name = str(folder / "shop.db")
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": name, "OPTIONS": options}


@pytest.fixture(params=["sqlite", "postgres"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    """A project on a file, and one on a server."""
    if request.param == "sqlite":
        return Project(tmp_path, on_file(tmp_path, {"transaction_mode": "IMMEDIATE"}))
    url = urlsplit(request.getfixturevalue("postgres_url"))
    place = {name.upper(): values[0] for name, values in parse_qs(url.query).items()}
    return Project(
        tmp_path,
        {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": url.path.lstrip("/"),
            "USER": url.username,
            **place,
        },
    )


def result_of(client: httpx.Client, answer: httpx.Response, server: Served) -> dict[str, Any]:
    """Read a result over HTTP."""
    assert answer.status_code in (202, 409), answer.text + server.log
    read = client.get(f"/results/{answer.json()['result']}")
    assert 200 == read.status_code, read.text + server.log
    found: dict[str, Any] = read.json()
    return found


def test_tasks_are_stored_with_the_models_and_run_by_the_worker(project: Project) -> None:
    """A commit stores both, a rollback neither; results and errors can be read everywhere."""
    command = gunicorn("shop.wsgi:application", "--workers", "2", "--preload")
    with (
        served(command, project.folder) as server,
        httpx.Client(base_url=server.url, timeout=SOON) as client,
    ):
        bought = client.get("/buy/book")
        undone = client.get("/buy/pen", params={"undo": "1"})
        assert 409 == undone.status_code, undone.text + server.log
        doubled = client.get("/enqueue/attempt")
        failed = client.get("/enqueue/fail", params={"arg": "pie"})
        assert "READY" == bought.json()["status"]
        assert "READY" == result_of(client, bought, server)["status"]
        assert 500 == client.get(f"/results/{undone.json()['result']}").status_code
        project.work()

        done = result_of(client, bought, server)
        assert ("SUCCESSFUL", "mail", "mail", 1) == tuple(
            done[name] for name in ("status", "task", "queue", "attempts")
        )
        number = done["args"][0]
        assert {"article": "book"} == done["kwargs"]
        assert {"mailed": number} == done["value"]
        assert 1 == result_of(client, doubled, server)["value"]
        broken = result_of(client, failed, server)
        assert "FAILED" == broken["status"]
        assert "ValueError: no pie <today>" in broken["errors"][0]


def test_async_views_and_tasks(project: Project) -> None:
    """Under an ASGI server, with the event loop of the server."""
    with (
        served(uvicorn("shop.asgi:application", "--lifespan", "off"), project.folder) as server,
        httpx.Client(base_url=server.url, timeout=SOON) as client,
    ):
        doubled = client.get("/aenqueue/21")
        assert 202 == doubled.status_code, doubled.text + server.log
        project.work()
        assert 42 == result_of(client, doubled, server)["value"]


def test_failed_tasks_are_read_and_queued_again_in_the_admin(project: Project) -> None:
    """Only by people who may; and what a task says is text, not markup."""
    people = ["createsuperuser", "--noinput", "--username", "ada", "--email", "ada@example.com"]
    project.manage(*people)
    page = "/admin/millpond/failedtask/"
    with (
        served(gunicorn("shop.wsgi:application"), project.folder) as server,
        httpx.Client(base_url=server.url, timeout=SOON) as client,
    ):
        failed = client.get("/enqueue/fail", params={"arg": "pie"})
        project.work()
        assert 302 == client.get(page).status_code
        token = re.search(r'csrfmiddlewaretoken" value="(\w+)"', client.get("/admin/login/").text)
        assert token is not None
        form = {"username": "ada", "password": "secret", "csrfmiddlewaretoken": token[1]}
        assert 302 == client.post("/admin/login/", data=form).status_code
        shown = client.get(page)
        assert 200 == shown.status_code, shown.text + server.log
        assert "ValueError: no pie &lt;today&gt;" in shown.text
        assert "shop.tasks.fail" in shown.text
        assert "Traceback" in shown.text
        choice = re.search(r'name="task" value="([^"]+)"', shown.text)
        token = re.search(r'csrfmiddlewaretoken" value="(\w+)"', shown.text)
        assert choice is not None
        assert token is not None
        odd = ["default/", "default/x", f"default/{'9' * 40}", f"default/{'9' * 5_000}", "x/1", "1"]
        chosen = {"task": [*odd, choice[1]], "csrfmiddlewaretoken": token[1]}
        assert 302 == client.post(page, data=chosen).status_code, server.log
        assert "READY" == result_of(client, failed, server)["status"]
        assert "No task has failed" in client.get(page).text


def test_a_check_warns_of_transactions_that_begin_as_readers(tmp_path: Path) -> None:
    """On SQLite they fail as soon as another process writes."""
    warned = Project(tmp_path, on_file(tmp_path, {}))
    assert "millpond.W001" in warned.manage("check")
    fine = Project(tmp_path, on_file(tmp_path, {"transaction_mode": "IMMEDIATE"}))
    assert "no issues" in fine.manage("check")


def test_a_first_enqueue_inside_a_transaction_says_what_to_do(project: Project) -> None:
    """On SQLite opening would wait for that very transaction; a server has no such wait."""
    script = """
from django.db import transaction
from shop.models import Order
from shop.tasks import mail
with transaction.atomic():
    order = Order.objects.create(article="book")
    try:
        mail.enqueue(order.pk, "book")
        print("stored")
    except Exception as error:
        print("refused", error)
"""
    said = project.manage("shell", "--verbosity", "0", "-c", script)
    expected = "refused" if (project.folder / "shop.db").exists() else "stored"
    assert expected in said
    if expected == "refused":
        assert "its own transaction" in said
