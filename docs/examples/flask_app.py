"""Flask: each request makes sure that the Millpond is open. `gunicorn flask_app:app` serves it."""

from flask import Flask, request

from millpond import Millpond

mp = Millpond("sqlite:///work.db", work=True)  # work=True: this process runs the tasks, too
mail = mp.pool("mail", max_concurrent=4)
app = Flask(__name__)


@mail.task
async def send(to: str) -> str:
    return f"sent to {to}"


@app.before_request
def open_millpond() -> None:
    mp.sync.open()  # opens it once per process; after that it costs a microsecond


@app.post("/mails")
def submit_mail() -> tuple[dict[str, str], int]:
    handle = send.sync.submit(request.args["to"])
    return {"task": str(handle.id)}, 202


@app.get("/mails/<int:task>")
def read_mail(task: int) -> dict[str, str]:
    return {"result": mp.sync.handle(task, of=send).get(timeout=10)}
