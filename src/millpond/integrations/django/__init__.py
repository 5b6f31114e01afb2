"""Millpond for Django: a backend of `django.tasks`, a worker command and a page in the admin.

    INSTALLED_APPS = [..., "millpond.integrations.django"]
    TASKS = {"default": {"BACKEND": "millpond.integrations.django.backend.MillpondBackend"}}

Tasks are stored in the database of the project, beside its models: `enqueue` inside `atomic()` is
part of that transaction. Django 6 has `django.tasks`; for Django 5 install `django-tasks`.
"""
