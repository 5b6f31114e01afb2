"""What a worker process does not import: each module stays in memory for as long as it runs."""

import subprocess
import sys


def test_a_worker_without_a_health_endpoint_imports_no_http_server() -> None:
    """It takes 1 MB."""
    code = "import sys, millpond.cli.worker_process; print('http.server' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
