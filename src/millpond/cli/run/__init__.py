"""`millpond run`: a durable `xargs`. Items and what became of them are kept in a SQLite store."""

from millpond.cli.run.arguments import parser as parser
from millpond.cli.run.command import main as main
