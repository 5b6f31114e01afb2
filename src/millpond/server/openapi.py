"""The OpenAPI document: paths from FastAPI, schemas from the structs of the contract.

A field's description is the text below it in the source, as everywhere in this library.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response

from millpond.server import contract

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastapi import FastAPI

_REF = "#/components/schemas/{name}"
_PROBLEM = {"application/json": {"schema": {"$ref": _REF.format(name="ErrorAnswer")}}}
_COMMON = {
    401: "A token is required.",
    403: "Not allowed: read-only, another site, or no token is set.",
    421: "The Host header does not name this server.",
    422: "A parameter or a field is wrong; `fields` says which.",
    429: "Too many requests; `Retry-After` says when to try again.",
    503: "The server or the store is overloaded or away; `Retry-After` says when to try again.",
}
_RETRY_AFTER = {
    "Retry-After": {
        "description": "Seconds after which to try again.",
        "schema": {"type": "integer", "minimum": 1},
    }
}
_LOCATION = {
    "Location": {
        "description": "The path to ask for it.",
        "schema": {"type": "string", "format": "uri-reference"},
    }
}
_SAID = {
    400: "The request cannot be read.",
    404: "There is no such pool, task, run, schedule or event.",
    408: "The body came in too slowly.",
    409: "It conflicts with what is stored.",
    413: "The body is too large.",
    415: "The body is not JSON.",
}


def operation(
    returns: type | None,
    *,
    takes: type | None = None,
    status: int = 200,
    says: str = "",
    errors: Iterable[int] = (),
    content: dict[str, Any] | None = None,
    required: bool = True,
    known: str = "",
) -> dict[str, Any]:
    """Return how FastAPI describes the answers and the body of a route.

    `known` says when it answers 200 with the same: what is to be made is there already.
    """
    answers: dict[int | str, dict[str, Any]] = {}
    first: dict[str, Any] = {"description": says or (inspect.getdoc(returns) or "").split("\n")[0]}
    if returns is not None:
        schema = {"$ref": _REF.format(name=returns.__name__)}
        content = {"application/json": {"schema": schema}}
    if content is not None:
        first["content"] = content
    answers[status] = first
    if known:
        first["headers"] = _LOCATION
        answers[200] = {**first, "description": known}
    body = (400, 408, 409, 413, 415) if takes is not None else ()
    for code in sorted({*_COMMON, *errors, *body}):
        answers[code] = {"description": {**_COMMON, **_SAID}[code], "content": _PROBLEM}
        if code in (429, 503):
            answers[code]["headers"] = _RETRY_AFTER
    found: dict[str, Any] = {
        "response_model": None,
        "responses": answers,
        "status_code": status,
    }
    if returns is None:
        # FastAPI would say that it answers with JSON.
        found["response_class"] = Response
    if takes is not None:
        schema = {"$ref": _REF.format(name=takes.__name__)}
        content = {"application/json": {"schema": schema}}
        found["openapi_extra"] = {"requestBody": {"content": content, "required": required}}
    return found


def document(app: FastAPI, version: str) -> dict[str, Any]:
    """Return the OpenAPI document of the app."""
    made: dict[str, Any] = get_openapi(
        title="Millpond",
        version=version,
        description=inspect.getdoc(contract),
        routes=app.routes,
    )
    components = made.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    schemas.update(_schemas())
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer"},
        "session": {"type": "apiKey", "in": "cookie", "name": "millpond_session"},
    }
    made["security"] = [{"token": []}, {"session": []}, {}]
    return made


def _schemas() -> dict[str, Any]:
    """Return the schemas of all structs of the contract."""
    structs = [
        one
        for one in vars(contract).values()
        if isinstance(one, type) and issubclass(one, msgspec.Struct)
    ]
    _, found = msgspec.json.schema_components(structs, ref_template=_REF)
    for struct in structs:
        properties = found[struct.__name__].get("properties", {})
        for name, text in _field_texts(struct).items():
            # Beside a reference a description would be ignored, or worse.
            if name in properties and "$ref" not in properties[name]:
                properties[name]["description"] = text
    return found


@cache
def _field_texts(struct: type) -> dict[str, str]:
    """Return the text below each field of a struct."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(struct)))
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    texts: dict[str, str] = {}
    for field, text in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            texts[field.target.id] = " ".join(text.value.value.split())
    return texts
