"""`millpond run`: a durable `xargs`. A SQLite store keeps the items and their results."""

from millpond.cli.run.arguments import parser as parser
from millpond.cli.run.command import main as main
