"""Health probes over HTTP, `millpond health`, and what systemd receives."""

import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.operating import Call
from tests.cli.running import Running, running
from tests.waiting import until

from millpond.cli.exits import Exit, Refusal
from millpond.cli.supervise import health_server
from millpond.cli.supervise.health_answer import Address, Health
from millpond.cli.supervise.health_server import HealthServer
from millpond.cli.supervise.heartbeat import STALLED_AFTER, Heartbeat
from millpond.cli.supervise.systemd import Systemd
from millpond.cli.worker_process import health_of

TERM = signal.SIGTERM


def ask(port: int, path: str) -> tuple[int, dict[str, Any]]:
    """Return the status and the answer of a probe."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def port_of(worker: Running) -> int:
    """Return the port that a worker logs."""
    return int(worker.until("health on http://").rpartition(":")[2].removesuffix("/health"))


@pytest.mark.parametrize("processes", [(), ("--processes", "2")])
def test_a_worker_is_ready_until_it_drains(processes: tuple[str, ...]) -> None:
    """It stays live while it drains, so that no probe kills it."""
    with running(
        "shop:mp", *processes, "--grace", "60", "--health-port", "0", SHOP_WORK="endless"
    ) as worker:
        port = port_of(worker)
        until(lambda: ask(port, "/ready")[0] == 200)
        status, health = ask(port, "/health")
        assert 200 == status
        assert health["live"]
        assert (2 if processes else 1) == health["processes"]
        until(lambda: ask(port, "/health")[1]["running"] == health["processes"])
        assert 404 == ask(port, "/secret")[0]
        worker.signal(TERM)
        until(lambda: ask(port, "/ready")[0] == 503)
        status, health = ask(port, "/live")
        assert (200, "draining") == (status, health["state"])


def test_a_store_that_is_away_makes_a_worker_not_ready(tmp_path: Path) -> None:
    """It is still live: a restart would not help."""
    state = tmp_path / "state"
    state.write_text("there", "utf-8")
    with running(
        "trouble:flaky", "--grace", "0", "--health-port", "0", STORE_IS=str(state)
    ) as worker:
        port = port_of(worker)
        until(lambda: ask(port, "/ready")[0] == 200)
        state.write_text("away", "utf-8")
        until(lambda: ask(port, "/ready")[0] == 503)
        status, health = ask(port, "/live")
        assert (200, "store unreachable") == (status, health["state"])
        state.write_text("back", "utf-8")
        until(lambda: ask(port, "/ready")[0] == 200)


def test_a_blocked_loop_is_not_live() -> None:
    """The thread of the endpoint still answers, and says so."""
    now = 0.0
    heartbeat = Heartbeat(clock=lambda: now)
    heartbeat.write()
    assert health_of(heartbeat).live
    now = STALLED_AFTER + 1
    assert Health(live=False, ready=False, state="stalled", running=0) == health_of(heartbeat)


@pytest.fixture
def endpoint() -> Iterator[tuple[HealthServer, list[Health]]]:
    """An endpoint, and the health that it reports."""
    state = [Health(live=True, ready=False, state="starting", running=0)]
    server = HealthServer(Address("127.0.0.1", 0), lambda: state[0])
    server.start()
    yield server, state
    server.close()


def test_the_command_asks_the_endpoint(
    endpoint: tuple[HealthServer, list[Health]], millpond: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its exit code is the answer; the port may come from the environment."""
    server, state = endpoint
    assert Exit.BROKE == millpond("health", "--port", server.port).code
    assert Exit.CLEAN == millpond("health", "--port", server.port, "--live").code
    state[0] = Health(live=True, ready=True, state="ready", running=3, processes=2)
    monkeypatch.setenv("MILLPOND_HEALTH_PORT", f"0.0.0.0:{server.port}")
    answer = millpond("health")
    assert (Exit.CLEAN, "ready, 2 process(es), 3 running\n") == (answer.code, answer.out)
    assert 3 == millpond("health", "--json").json["running"]


def test_the_command_fails_without_an_answer(
    endpoint: tuple[HealthServer, list[Health]], millpond: Call
) -> None:
    """In one line, with the address."""
    port = endpoint[0].port
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        answer = millpond("health", "--port", taken.getsockname()[1])
        assert Exit.BROKE == answer.code
        assert answer.err.startswith("millpond health: no answer from 127.0.0.1:")
    assert Exit.USAGE == millpond("health").code
    with pytest.raises(Refusal, match="--health-port: cannot listen on"):
        HealthServer(Address("127.0.0.1", port), lambda: endpoint[1][0])


def test_an_address_has_a_port_and_perhaps_a_host() -> None:
    """Without a host it is this machine alone."""
    assert Address("127.0.0.1", 8080) == Address.parse("8080")
    assert Address("0.0.0.0", 8080) == Address.parse("0.0.0.0:8080")  # noqa: S104
    assert Address("::", 8080) == Address.parse("[::]:8080")
    for wrong in ("", "x", "1.2.3.4:", "70000", "-1"):
        with pytest.raises(ValueError, match="^" + wrong.replace(".", r"\.") + "$"):
            Address.parse(wrong)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[HealthServer]:
    """An endpoint with room for two clients."""
    monkeypatch.setattr(health_server, "MOST_CLIENTS", 2)
    endpoint = HealthServer(
        Address("127.0.0.1", 0), lambda: Health(live=True, ready=True, state="ready", running=0)
    )
    endpoint.start()
    yield endpoint
    endpoint.close()


def client_threads() -> list[threading.Thread]:
    """Return the threads that serve clients of an endpoint."""
    return [one for one in threading.enumerate() if "process_request_thread" in one.name]


def half_a_request(server: HealthServer) -> socket.socket:
    """Return a client that has begun to ask."""
    client = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    client.sendall(b"GET /live HTTP/1.1\r\n")
    return client


def test_clients_that_never_ask_do_not_keep_a_probe_from_its_answer(server: HealthServer) -> None:
    """The oldest are closed; no probe waits, and no thread is left for them."""
    clients = [half_a_request(server) for _ in range(6)]
    assert 200 == ask(server.port, "/live")[0]
    # Sooner than its own time is over.
    clients[0].settimeout(health_server.REQUEST_WITHIN / 2)
    assert b"" == clients[0].recv(1)
    for client in clients:
        client.close()


def test_a_client_that_sends_byte_by_byte_is_closed(
    server: HealthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is that of the whole request, not that of one read."""
    monkeypatch.setattr(health_server, "REQUEST_WITHIN", 0.2)
    with half_a_request(server) as client:

        def is_closed() -> bool:
            try:
                client.sendall(b"A")
            except OSError:
                return True
            return False

        until(is_closed)


def test_a_client_that_hangs_up_is_no_error(
    server: HealthServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing is written to stderr for it."""
    with half_a_request(server) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until(lambda: not client_threads())
    assert "" == capfd.readouterr().err


def test_the_endpoint_and_the_command_import_no_store() -> None:
    """A probe runs every few seconds: it must start quickly."""
    code = "import sys, millpond.cli.health; print([m for m in sys.modules if 'store.sql' in m])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "[]\n" == found.stdout


# systemd


@pytest.fixture
def unit(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a unit with Type=notify."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.settimeout(30)
        yield channel


def received(unit: socket.socket, word: str) -> dict[str, str]:
    """Return the next message that has this variable."""
    while True:
        message = dict(line.split("=", 1) for line in unit.recv(4096).decode().split("\n"))
        if word in message:
            return message


@pytest.mark.parametrize("processes", [(), ("--processes", "2")])
def test_systemd_hears_of_the_start_the_life_and_the_end(
    processes: tuple[str, ...], unit: socket.socket
) -> None:
    """As a unit with Type=notify and WatchdogSec= needs it."""
    with running(
        "shop:mp", *processes, NOTIFY_SOCKET=unit.getsockname(), WATCHDOG_USEC="10000000"
    ) as worker:
        ready = received(unit, "READY")
        assert ("1", str(worker.process.pid)) == (ready["READY"], ready["MAINPID"])
        alive = received(unit, "WATCHDOG")
        assert alive["STATUS"].startswith("ready, ")
        received(unit, "WATCHDOG")
        worker.signal(TERM)
        received(unit, "STOPPING")
        assert Exit.CLEAN == worker.ended()


def test_the_socket_of_systemd_is_not_passed_on() -> None:
    """A program that a handler starts must not speak for the unit."""
    environment = {
        "NOTIFY_SOCKET": "@x",
        "WATCHDOG_USEC": "2000000",
        "WATCHDOG_PID": str(os.getpid()),
        "PATH": "/bin",
    }
    systemd = Systemd.from_environment(environment)
    assert 2.0 == systemd.watchdog
    assert {"PATH": "/bin"} == environment
    assert None is Systemd.from_environment({"WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}).watchdog


def test_a_socket_that_is_gone_is_no_failure(tmp_path: Path) -> None:
    """A worker does its work without systemd."""
    Systemd(str(tmp_path / "gone")).ready("ready")
    Systemd(None).alive("ready")
