"""The Django app: it opens the Millponds of the project's task backends before each request."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core.signals import request_started


class MillpondConfig(AppConfig):  # type: ignore[misc] # Django has no types
    """`millpond.integrations.django` in INSTALLED_APPS."""

    name = "millpond.integrations.django"
    label = "millpond"
    verbose_name = "Millpond"

    def ready(self) -> None:
        """Open in each process that serves requests: after a fork, and outside transactions."""
        request_started.connect(_open_all, dispatch_uid="millpond")


def _open_all(**_given: Any) -> None:  # noqa: ANN401 - as signals call it
    from millpond.integrations.django.backend import backends  # noqa: PLC0415 - needs the settings

    for backend in backends():
        backend.millpond.sync.open()
