"""From `module:app` to the Millpond that is meant, or what to do about it."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millpond.cli.exits import Exit, Refusal
from millpond.cli.load_app import load

Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write modules into an empty folder that is the current one; they are forgotten later."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    known = set(sys.modules)

    def put(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")

    yield put
    for name in set(sys.modules) - known:
        del sys.modules[name]


ONE = "from millpond import Millpond\nmp = Millpond()\nmp.pool('mail')\n"


def refusal(target: str) -> Refusal:
    with pytest.raises(Refusal) as refused:
        load(target)
    return refused.value


@pytest.mark.parametrize("target", ["shop:mp", "shop", "shop:make", "shop:inside.mp"])
def test_a_millpond_is_found(write: Write, target: str) -> None:
    """By its name, as the only one, made by a function, or inside something else."""
    write(
        "shop.py",
        ONE + "def make():\n    return mp\nclass inside:\n    mp = mp\nsame = mp\n",
    )
    assert ["mail"] == [pool.name for pool in load(target).pools()]


def test_a_module_of_a_package_is_found(write: Write) -> None:
    """The current folder is on the path, whatever the command's own folder is."""
    write("company/__init__.py", "")
    write("company/shop.py", ONE)
    assert load("company.shop:mp").pools()


@pytest.mark.parametrize("usual", ["app", "mp"])
def test_of_several_millponds_the_one_with_a_usual_name_is_loaded(write: Write, usual: str) -> None:
    """If none is named."""
    make = "from millpond import Millpond\n"
    write("shop.py", f"{make}one = Millpond()\n{usual} = Millpond()\n{usual}.pool('this')\n")
    assert ["this"] == [pool.name for pool in load("shop").pools()]


def test_modules_in_imports_are_imported(write: Write) -> None:
    """Pools and tasks of other modules are known before anything is checked."""
    write("shop.py", "from millpond import Millpond\nmp = Millpond(imports=['jobs'])\n")
    write("jobs.py", "from shop import mp\nmp.pool('jobs')\n")
    assert ["jobs"] == [pool.name for pool in load("shop:mp").pools()]


@pytest.mark.parametrize("target", ["", ":mp", "sh op:mp", "..shop:mp", "shop-2:mp"])
def test_a_target_that_is_no_module_is_refused(target: str) -> None:
    """No module is searched."""
    refused = refusal(target)
    assert (Exit.USAGE, f"{target!r} is not module:name") == (refused.code, refused.message)


@pytest.mark.parametrize(
    ("target", "expected_name"),
    [
        ("shop.py:mp", "shop:mp"),
        ("./src/shop.py", "src.shop"),
        ("company/shop:mp", "company.shop:mp"),
    ],
)
def test_a_path_instead_of_a_module_is_refused_with_a_suggestion(
    target: str, expected_name: str
) -> None:
    """The message contains the right form."""
    refused = refusal(target)
    assert Exit.USAGE == refused.code
    assert refused.message.endswith(f"; write the module as in `import`: {expected_name}")


def test_a_function_with_parentheses_is_refused_with_a_suggestion(write: Write) -> None:
    """The message contains the right form."""
    write("shop.py", ONE)
    refused = refusal("shop:make()")
    assert Exit.USAGE == refused.code
    assert "name a function without parentheses: shop:make" == refused.message


def test_a_missing_module_is_refused(write: Write, tmp_path: Path) -> None:
    """The message names the folder that was searched."""
    refused = refusal("shop:mp")
    assert Exit.APP == refused.code
    assert f"no module named 'shop'; looked in {tmp_path}" in refused.message
    assert "" == refused.trace


def test_a_missing_submodule_is_refused(write: Write) -> None:
    """Just as one that is not there at all."""
    write("company/__init__.py", "")
    assert "no module named 'company.shop'" in refusal("company.shop:mp").message


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("import nowhere\n", "ModuleNotFoundError: No module named 'nowhere'"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("def f(:\n", "SyntaxError: "),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
    ],
)
def test_a_module_that_raises_is_shown_with_its_traceback(
    write: Write, text: str, complaint: str
) -> None:
    """The frames are the user's own, and the last line says what failed."""
    write("shop.py", text)
    refused = refusal("shop:mp")
    assert Exit.APP == refused.code
    assert refused.message.startswith(f"importing shop failed: {complaint}")
    assert "shop.py" in refused.trace
    assert "cli/load_app.py" not in refused.trace
    assert "importlib" not in refused.trace


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        ("shop:nothing", "module shop has no 'nothing'; use one of: shop:mp"),
        ("shop:mp.nothing", "module shop has no 'mp.nothing'; use one of: shop:mp"),
        ("shop:number", "shop:number is of type int, not a Millpond; use one of: shop:mp"),
        ("shop:Millpond", "shop:Millpond is the class Millpond, not a Millpond"),
        ("shop:send", "shop:send is a task, not a Millpond; use one of: shop:mp"),
        ("shop:other", "shop:other() returned a value None, not a Millpond"),
        ("shop:later", "shop:later() returned a value of type coroutine, not a Millpond"),
        ("shop:of", "shop:of takes arguments (missing a required argument: 'url'); a worker"),
    ],
)
def test_an_attribute_that_is_no_millpond_is_refused_by_name(
    write: Write, target: str, complaint: str
) -> None:
    """With what could be meant instead. A task is not called, whatever it is."""
    write(
        "shop.py",
        ONE
        + "number = 3\n"
        + "@mp.task\ndef send():\n    raise AssertionError\n"
        + "def other():\n    pass\n"
        + "async def later():\n    return mp\n"
        + "def of(url):\n    return mp\n",
    )
    refused = refusal(target)
    assert (Exit.APP, "") == (refused.code, refused.trace)
    assert refused.message.startswith(complaint)


def test_a_function_that_raises_is_shown_with_its_traceback(write: Write) -> None:
    """As a module that raises is."""
    write("shop.py", "def make():\n    raise KeyError('no such setting')\n")
    refused = refusal("shop:make")
    assert (Exit.APP, "shop:make() failed: KeyError: 'no such setting'") == (
        refused.code,
        refused.message,
    )
    assert ", line 2, in make" in refused.trace


def test_a_module_without_a_millpond_is_refused(write: Write) -> None:
    """The message says what else can be named."""
    write("shop.py", "")
    assert refusal("shop").message.startswith("module shop has no Millpond; name the function")


def test_several_millponds_without_a_usual_name_are_refused(write: Write) -> None:
    """The message names them."""
    make = "from millpond import Millpond\n"
    write("shop.py", f"{make}one = Millpond()\ntwo = Millpond()\n")
    complaint = "module shop has several Millponds; use one of: shop:one, shop:two"
    assert complaint == refusal("shop").message


def test_a_module_it_imports_may_fail_too(write: Write) -> None:
    """It is that module which is named."""
    write("shop.py", "from millpond import Millpond\nmp = Millpond(imports=['jobs'])\n")
    assert "no module named 'jobs'" in refusal("shop").message
