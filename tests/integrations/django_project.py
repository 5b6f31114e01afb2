"""A Django project in a folder: a model, tasks, views, the admin and the task backend."""

import textwrap
from pathlib import Path
from typing import Any

MODERN = "django.tasks"
BACKPORT = "django_tasks"

FILES = {
    "manage.py": """
        import os, sys
        os.environ["DJANGO_SETTINGS_MODULE"] = "shop_settings"
        from django.core.management import execute_from_command_line
        execute_from_command_line(sys.argv)
    """,
    "shop_settings.py": """
        SECRET_KEY = "only for a test"
        DEBUG = False
        ALLOWED_HOSTS = ["*"]
        USE_TZ = True
        ROOT_URLCONF = "shop.urls"
        WSGI_APPLICATION = "shop.wsgi.application"
        DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
        INSTALLED_APPS = [
            "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes",
            "django.contrib.sessions", "django.contrib.messages",
            "shop", "millpond.integrations.django",
        ] + {more_apps}
        MIDDLEWARE = [
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
        ]
        TEMPLATES = [{{
            "BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
            "OPTIONS": {{"context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]}},
        }}]
        DATABASES = {{"default": {database}}}
        TASKS = {{"default": {{
            "BACKEND": "millpond.integrations.django.backend.MillpondBackend",
            "QUEUES": ["default", "mail"],
            "OPTIONS": {{"pools": {{"mail": {{"max_concurrent": 2}}}}}},
        }}}}
    """,
    "shop/__init__.py": "",
    "shop/models.py": """
        from django.db import models

        class Order(models.Model):
            article = models.CharField(max_length=50)
            is_mailed = models.BooleanField(default=False)
    """,
    "shop/tasks.py": """
        from {tasks} import task
        from shop.models import Order

        @task(queue_name="mail")
        def mail(number, article):
            order = Order.objects.get(pk=number)
            assert order.article == article
            order.is_mailed = True
            order.save()
            return {{"mailed": number}}

        @task()
        async def double(number):
            return 2 * number

        @task(takes_context=True, priority=5)
        def attempt(context):
            return context.attempt

        @task()
        def fail(word):
            raise ValueError(f"no {{word}} <today>")
    """,
    "shop/views.py": """
        from django.db import transaction
        from django.http import JsonResponse
        from shop import tasks
        from shop.models import Order

        class Undone(Exception):
            pass

        def buy(request, article):
            try:
                with transaction.atomic():
                    order = Order.objects.create(article=article)
                    result = tasks.mail.enqueue(order.pk, article=article)
                    if "undo" in request.GET:
                        raise Undone
            except Undone:
                return JsonResponse({{"result": result.id}}, status=409)
            return JsonResponse({{"result": result.id, "status": result.status}}, status=202)

        def result(request, id):
            found = tasks.mail.get_backend().get_result(id)
            return JsonResponse({{
                "status": found.status, "task": found.task.name, "queue": found.task.queue_name,
                "args": found.args, "kwargs": found.kwargs, "attempts": found.attempts,
                "value": found._return_value, "errors": [one.traceback for one in found.errors],
            }})

        def enqueue(request, name):
            args = request.GET.getlist("arg")
            return JsonResponse({{"result": getattr(tasks, name).enqueue(*args).id}}, status=202)

        async def aenqueue(request, number):
            return JsonResponse({{"result": (await tasks.double.aenqueue(number)).id}}, status=202)
    """,
    "shop/urls.py": """
        from django.contrib import admin
        from django.urls import path
        from shop import views

        urlpatterns = [
            path("admin/", admin.site.urls),
            path("buy/<article>", views.buy),
            path("results/<id>", views.result),
            path("enqueue/<name>", views.enqueue),
            path("aenqueue/<int:number>", views.aenqueue),
        ]
    """,
    "shop/wsgi.py": """
        import os
        os.environ["DJANGO_SETTINGS_MODULE"] = "shop_settings"
        from django.core.wsgi import get_wsgi_application
        application = get_wsgi_application()
    """,
    "shop/asgi.py": """
        import os
        os.environ["DJANGO_SETTINGS_MODULE"] = "shop_settings"
        from django.core.asgi import get_asgi_application
        application = get_asgi_application()
    """,
}


def make_project(folder: Path, database: dict[str, Any], *, tasks: str) -> None:
    """Write the project into a folder."""
    more = [] if tasks == MODERN else [BACKPORT]
    for name, text in FILES.items():
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        code = textwrap.dedent(text)
        if "{" in code:
            code = code.format(database=repr(database), tasks=tasks, more_apps=repr(more))
        file.write_text(code)
