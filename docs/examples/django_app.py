"""Django in one file: views submit. `gunicorn django_app:application` serves it, uvicorn `asgi`."""

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

from millpond import Millpond

settings.configure(
    ROOT_URLCONF=__name__,
    SECRET_KEY="only for this example",  # noqa: S106 - no secret
    ALLOWED_HOSTS=["*"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": "work.db",
            "OPTIONS": {"transaction_mode": "IMMEDIATE"},  # atomic() may write after it has read
        }
    },
    MIDDLEWARE=[f"{__name__}.millpond_middleware"],
)
django.setup()

mp = Millpond("sqlite:///work.db", work=True)  # work=True: this process runs the tasks, too
mail = mp.pool("mail", max_concurrent=4)


@mail.task
async def send(to: str) -> str:
    return f"sent to {to}"


def millpond_middleware(get_response):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    def middleware(request: HttpRequest) -> object:
        mp.sync.open()  # opens it once per process; after that it costs a microsecond
        return get_response(request)

    return middleware


def submit_mail(request: HttpRequest) -> JsonResponse:
    with transaction.atomic():
        # Your own changes to models go here: they and the task are stored together, or neither.
        handle = mail.sync.submit(send.bind(request.GET["to"]), connection=connection)
    return JsonResponse({"task": str(handle.id)}, status=202)


def read_mail(_request: HttpRequest, task: int) -> JsonResponse:
    return JsonResponse({"result": mp.sync.handle(task, of=send).get(timeout=10)})


urlpatterns = [path("mails", submit_mail), path("mails/<int:task>", read_mail)]
application = get_wsgi_application()
asgi = get_asgi_application()
