"""A model without a table: the admin lists the failed tasks of the store under its name."""

from __future__ import annotations

from django.db import models


class FailedTask(models.Model):  # type: ignore[misc] # Django has no types
    """A task that failed. It is in the store of Millpond, not in a table of Django's."""

    class Meta:
        """No table and no migration; only the permission to look."""

        app_label = "millpond"
        managed = False
        default_permissions = ("view", "change")
        verbose_name = "failed task"

    def __str__(self) -> str:
        return "failed task"
