"""Signed HTTP endpoints whose requests become events: an ASGI app without a framework."""

from millpond.webhooks.app import Webhooks as Webhooks
from millpond.webhooks.scheme import Scheme as Scheme
from millpond.webhooks.scheme import github as github
from millpond.webhooks.scheme import standard as standard
from millpond.webhooks.scheme import timestamped as timestamped

__all__ = ["Scheme", "Webhooks", "github", "standard", "timestamped"]
