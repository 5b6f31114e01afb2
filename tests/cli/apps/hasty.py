"""The shop, with a command that has less patience."""

from tests.cli.apps.shop import mp as mp

from millpond.cli import worker_process as serve

serve.EXIT_WITHIN = 0.3
