"""Tasks of Django on Millpond, in one file: settings, a task, a transaction, and a worker."""

import django
from django.conf import settings

from millpond import Retry

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": "shop.db",
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},  # atomic() may write after it has read
    }
}
TASKS = {
    "default": {
        "BACKEND": "millpond.integrations.django.backend.MillpondBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"pools": {"mail": {"max_concurrent": 4, "retry": Retry(attempts=5)}}},
    }
}

settings.configure(
    SECRET_KEY="only for this example",  # noqa: S106 - no secret
    USE_TZ=True,
    DATABASES=DATABASES,
    INSTALLED_APPS=["django_tasks", "millpond.integrations.django"],
    TASKS=TASKS,
)
django.setup()

from django.db import transaction  # noqa: E402 - needs the settings
from django_tasks import task  # noqa: E402 - Django 6: from django.tasks import task

from millpond.integrations.django.backend import millpond_of  # noqa: E402


@task(queue_name="mail")
def send_receipt(order: int) -> str:
    return f"receipt for order {order}"


def main() -> None:
    millpond_of("default").sync.open()  # in a web process the app does this before each request

    with transaction.atomic():
        # Order.objects.create(...): the order and its task are stored together, or neither.
        result = send_receipt.enqueue(1984)

    with millpond_of("default").sync.worker():  # in production: manage.py millpond_worker
        millpond_of("default").sync.handle(int(result.id)).wait(timeout=10)

    result.refresh()
    print(result.status, result.return_value)
    assert result.return_value == "receipt for order 1984"


main()
