"""A page of the admin with failed tasks: error, traceback, and a button that queues them again."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import HttpResponseRedirect
from django.template.response import TemplateResponse

from millpond.integrations.django.backend import MillpondBackend, backends
from millpond.integrations.django.models import FailedTask

LIMIT = 100
"""Failed tasks of one pool that the page shows."""

_ID = re.compile("[0-9]{1,19}")


@dataclass(frozen=True)
class Row:
    """One failed task, as the page shows it."""

    choice: str
    id: int
    pool: str
    task: str
    failed_at: datetime | None
    attempts: int
    error: str
    traceback: str


@admin.register(FailedTask)
class FailedTaskAdmin(admin.ModelAdmin):  # type: ignore[misc] # Django has no types
    """Lists what failed, over all Millpond backends of TASKS."""

    def has_add_permission(self, request: Any) -> bool:  # noqa: ANN401, ARG002 - as Django calls it
        """Tasks come from code."""
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:  # noqa: ANN401, ARG002
        """The pool's retention removes them."""
        return False

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:  # noqa: ANN401
        """Show the failed tasks; a POST queues the chosen ones again."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method == "POST":
            if not self.has_change_permission(request):
                raise PermissionDenied
            count = redrive(request.POST.getlist("task"))
            messages.success(request, f"Queued {count} task(s) again.")
            return HttpResponseRedirect(request.get_full_path())
        context = {
            **self.admin_site.each_context(request),
            "title": "Failed tasks",
            "opts": self.model._meta,  # noqa: SLF001 - as Django's own pages do
            "rows": failed_tasks(),
            "may_redrive": self.has_change_permission(request),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "millpond/failed_tasks.html", context)


def failed_tasks() -> list[Row]:
    """Return the failed tasks of all backends, the latest first."""
    rows = [row for backend in backends() for row in _rows(backend)]
    return sorted(rows, key=lambda row: row.failed_at or datetime.min.replace(tzinfo=UTC))[::-1]


def _rows(backend: MillpondBackend) -> list[Row]:
    mp = backend.millpond
    mp.sync.open()
    infos = [info for pool in mp.sync.pools() for info in pool.tasks(status="failed", limit=LIMIT)]
    return [
        Row(
            choice=f"{backend.alias}/{info.id}",
            id=info.id,
            pool=info.pool,
            task=info.labels.get("task", info.function),
            failed_at=None
            if info.finished_at is None
            else datetime.fromtimestamp(info.finished_at, UTC),
            attempts=info.attempt,
            error=str(info.error) if info.error is not None else info.reason or "",
            traceback=info.error.traceback if info.error is not None else "",
        )
        for info in infos
    ]


def redrive(choices: list[str]) -> int:
    """Queue chosen tasks again; return how many."""
    count = 0
    for backend in backends():
        named = (one.rpartition("/") for one in choices)
        # A form may hold anything; what is no id names no task.
        ids = [int(one) for alias, _, one in named if alias == backend.alias and _ID.fullmatch(one)]
        for pool in backend.millpond.sync.pools() if ids else ():
            count += pool.redrive(ids)
    return count
