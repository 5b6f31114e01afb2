"""The network between a client and a server that benchmarks measure with."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from verify.servers.network_delay import NetworkDelay

pytestmark = [pytest.mark.compiler, pytest.mark.real_loop]

EACH_WAY = 0.002


def echo(door: socket.socket) -> None:
    """Send back whatever one client sends, until it hangs up."""
    client, _ = door.accept()
    with client:
        while data := client.recv(65536):
            client.sendall(data)


def test_every_byte_arrives_in_order_and_later() -> None:
    """An answer takes at least a delay there and one back; a megabyte comes back as it was sent."""
    sent = bytes(range(256)) * 4096
    with socket.create_server(("127.0.0.1", 0)) as door:
        server = threading.Thread(target=echo, args=[door])
        server.start()
        with NetworkDelay(door.getsockname()[1], EACH_WAY) as network:
            with socket.create_connection(("127.0.0.1", network.port)) as client:
                since = time.monotonic()
                client.sendall(b"?")
                assert client.recv(1) == b"?"
                assert time.monotonic() - since >= 2 * EACH_WAY
                writer = threading.Thread(target=client.sendall, args=[sent])
                writer.start()
                received = b""
                while len(received) < len(sent):
                    received += client.recv(65536)
                writer.join()
            # The proxy passes the end of the connection on.
            server.join(10.0)
            assert not server.is_alive()
    assert received == sent
