"""Signed HTTP endpoints whose requests become events: an ASGI app without a framework."""

from millpond.webhooks.app import Webhooks as Webhooks
from millpond.webhooks.signatures import Scheme as Scheme
from millpond.webhooks.signatures import github as github
from millpond.webhooks.signatures import standard as standard
from millpond.webhooks.signatures import timestamped as timestamped

__all__ = ["Scheme", "Webhooks", "github", "standard", "timestamped"]
