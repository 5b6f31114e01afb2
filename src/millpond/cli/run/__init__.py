"""`millpond run`: a durable `xargs`. Items and what became of them are kept in a SQLite store."""

from millpond.cli.run.command import main as main
from millpond.cli.run.parser import parser as parser
