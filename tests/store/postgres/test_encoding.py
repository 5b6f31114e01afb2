"""Arguments reach the server as they are, whatever characters they have."""

import json

import psycopg
import pytest

from millpond.core.task import Call, Dedupe, NewTask
from millpond.store.postgres.encoding import array, listed
from millpond.store.postgres.unit_of_work import plain_text

TEXTS = [
    "a",
    "",
    'say "yes"',
    "back\\slash",
    '"',
    "\\",
    '\\"',
    "x,y",
    "{}",
    "NULL",
    "é",
    "\n\t",
    " ",
]


@pytest.mark.parametrize("values", [TEXTS, [""], ["", ""], [*TEXTS, None]])
def test_an_array_of_texts_arrives_as_it_is(postgres_url: str, values: list[str | None]) -> None:
    """Quotes, backslashes, commas and empty texts, with NULL among them or without."""
    octets, _ = array(values)
    assert octets is not None
    given = [octets.decode()]
    if None not in values:
        given.append(listed([one for one in values if one is not None]))
    with psycopg.connect(postgres_url) as connection:
        for text in given:
            row = connection.execute("SELECT %s::text[]", [text]).fetchone()
            assert (values,) == row


@pytest.mark.parametrize("values", [["a\0b"], ["a", "\0"], ["", "\0", ""], ["\0"]])
def test_a_text_with_a_nul_is_refused(values: list[str]) -> None:
    """It would end the text for the library, and the next value would come too early."""
    with pytest.raises(psycopg.DataError, match="NUL"):
        array(values)


@pytest.mark.parametrize("key", [*TEXTS[2:], '"\\u0000"'])
@pytest.mark.parametrize("share", [None, "s", '"\\u0000"'])
@pytest.mark.parametrize("run", [None, 7])
def test_the_fields_of_a_task_with_a_key_are_its_own(
    key: str, share: str | None, run: int | None
) -> None:
    """Whatever stands in its key and its share."""
    new = NewTask(
        id=1,
        pool="p",
        call=Call("work"),
        share=share,
        idempotency_key=key,
        dedupe=Dedupe.SUCCESS,
        run=run,
    )
    fields = {"function": "work", "attempts": 3, "weight": 1, "share": share, "run": run}
    fields |= {"idempotency_key": key, "dedupe": "success"}
    text = plain_text(new)
    assert text is not None
    assert {name: one for name, one in fields.items() if one is not None} == json.loads(text)
