"""The ledger, with a command that has less patience."""

from tests.cli.apps.ledger import make as make

from millpond.cli import worker_process as serve

serve.EXIT_WITHIN = 0.3
serve.CLOSE_WITHIN = 0.1
