"""`millpond migrate`, `bench`, `completion`, and what all commands have in common."""

import importlib
import os
import resource
import subprocess
import sys
from pathlib import Path

import click
import pytest
from tests.cli.operating import Call

from millpond.cli import main as command
from millpond.cli.exits import OPERATOR_EXITS, Exit

OF_OTHERS = ("worker", "doctor", "demo")
"""Commands that use argparse, and need no extra."""

OPERATING = [
    name
    for name in command.COMMANDS
    if name not in OF_OTHERS and isinstance(command.load_command(name), click.Command)
]


# Migrate


def test_migrate_creates_tables_once(millpond: Call, tmp_path: Path) -> None:
    """A check changes nothing, and sets the exit code."""
    url = f"sqlite:///{tmp_path}/new.db"
    answer = millpond("migrate", "--check", "--store", url)
    assert Exit.BROKE == answer.code
    assert "no Millpond tables; this release needs schema" in answer.out
    assert [] == list(tmp_path.iterdir())
    made = millpond("migrate", "--store", url, "--json")
    assert Exit.CLEAN == made.code
    assert {"store", "before", "version", "needed"} == set(made.json)
    assert (0, made.json["needed"]) == (made.json["before"], made.json["version"])
    again = millpond("migrate", "--store", url)
    assert Exit.CLEAN == again.code
    assert again.out.endswith("up to date\n")
    assert Exit.CLEAN == millpond("migrate", "--check", "--store", url).code
    assert [] == millpond("pools", "--store", url, "--json").json


def test_a_store_in_a_missing_folder_is_refused(millpond: Call, tmp_path: Path) -> None:
    """It is refused with the exit code of stores."""
    for line in (("migrate",), ("migrate", "--check"), ("bench", "--tasks", 1)):
        answer = millpond(*line, "--store", f"sqlite:///{tmp_path}/none/work.db")
        assert (Exit.STORE, "") == (answer.code, answer.out)


# Bench


def test_bench_measures_a_new_file_and_removes_it(
    millpond: Call, store: str, tmp_path: Path
) -> None:
    """Its figures, and no file more than before."""
    before = sorted(tmp_path.iterdir())
    answer = millpond("bench", "--tasks", 20, "--json", "--durability", "normal")
    assert Exit.CLEAN == answer.code
    assert {
        *("store", "tasks", "batch", "concurrency", "durability", "submit_per_second"),
        *("run_per_second", "cpu_per_task", "round_trip", "completed"),
    } == set(answer.json)
    assert f"a file beside {store}" == answer.json["store"]
    assert 70 == answer.json["completed"]
    assert before == sorted(tmp_path.iterdir())


def test_memory_is_measured_too(millpond: Call) -> None:
    """For people, in a few lines."""
    answer = millpond("bench", "--memory", "--tasks", 20)
    assert Exit.CLEAN == answer.code
    assert ["store", "submit", "run", "one", "processor"] == [
        line.split()[0] for line in answer.out.splitlines()
    ]


# Completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(millpond: Call, shell: str) -> None:
    """By a text for it to read."""
    answer = millpond("completion", shell)
    assert Exit.CLEAN == answer.code
    assert f"_MILLPOND_COMPLETE={shell}_complete" in answer.out


def test_an_unknown_shell_is_refused(millpond: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal lists the known shells."""
    monkeypatch.setenv("SHELL", "/bin/false")
    assert Exit.USAGE == millpond("completion").code
    assert Exit.USAGE == millpond("completion", "tcsh").code


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("millpond re", {"resume", "resize", "redrive", "replay"}),
        ("millpond tasks --st", {"--status", "--store"}),
        ("millpond tasks --status fa", {"failed"}),
        ("millpond worker --on", {"--once"}),
        ("millpond demo --sp", {"--speed"}),
        ("millpond pause r", {"reviews"}),
    ],
)
def test_a_shell_completes_a_line(
    millpond: Call,
    monkeypatch: pytest.MonkeyPatch,
    store: str,
    words: str,
    expected: set[str],
) -> None:
    """Commands, options, values, and the pools of the store."""
    monkeypatch.setenv("_MILLPOND_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    answer = millpond()
    assert Exit.CLEAN == answer.code
    assert expected == {line.partition(",")[2] for line in answer.out.splitlines()}


def test_completion_offers_no_pools_without_a_store(
    millpond: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is not complained of: a shell would print that into the line."""
    monkeypatch.setenv("MILLPOND_STORE", "sqlite:////nowhere/none.db")
    monkeypatch.setenv("_MILLPOND_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "millpond pause r")
    monkeypatch.setenv("COMP_CWORD", "2")
    answer = millpond()
    assert (Exit.CLEAN, "", "") == (answer.code, answer.out.strip(), answer.err)


# All of them


def test_every_command_is_listed_and_loads() -> None:
    """Every command that was promised, and each can be found."""
    promised = (
        "worker pools tasks task pause resume resize purge cancel redrive dead audit top doctor "
        "migrate bench demo completion"
    )
    assert set(promised.split()) <= set(command.COMMANDS)
    for name in command.COMMANDS:
        assert callable(command.load_command(name))


@pytest.mark.parametrize("name", OPERATING)
def test_help_lists_options_and_exit_codes(millpond: Call, name: str) -> None:
    """Exit code 0, and each option says what it does."""
    answer = millpond(name, "--help")
    assert (Exit.CLEAN, "") == (answer.code, answer.err)
    assert answer.out.startswith(f"Usage: millpond {name} ")
    for code in OPERATOR_EXITS:
        assert f"\n  {int(code):<3}" in answer.out
    made = command.load_command(name)
    assert isinstance(made, click.Command)
    assert made.help
    for option in made.params:
        if isinstance(option, click.Option):
            assert option.help
            assert option.opts[0] in answer.out


@pytest.mark.parametrize("name", ["tasks", "pause", "top"])
def test_help_needs_no_store_and_no_library(name: str) -> None:
    """What it costs is what click costs."""
    requested = (
        "import sys; from millpond.cli.main import main; "
        f"main(['{name}', '--help']); print(*sys.modules)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", requested], capture_output=True, text=True, check=True, timeout=15
    )
    loaded = set(answer.stdout.splitlines()[-1].split())
    assert "click" in loaded
    assert not {"msgspec", "sqlite3", "rich", "millpond.pool", "millpond.store"} & loaded


@pytest.mark.parametrize("package", ["click", "rich"])
def test_a_missing_extra_is_named(package: str) -> None:
    """With how to install it."""
    block = f"import sys; sys.modules['{package}'] = None; "
    run = "from millpond.cli.main import main; sys.exit(main(['top', '--help']))"
    answer = subprocess.run(
        [sys.executable, "-c", block + run], capture_output=True, text=True, check=False, timeout=15
    )
    if package == "rich":
        assert 0 == answer.returncode
        return
    assert Exit.USAGE == answer.returncode
    assert "this needs the package click: run `pip install 'millpond[cli]'`" in answer.stderr


def test_plain_tables_need_no_rich(store: str) -> None:
    """Output into a pipe is plain text."""
    block = "import sys; sys.modules['rich'] = None; "
    run = "from millpond.cli.main import main; sys.exit(main(['pools']))"
    answer = subprocess.run(
        [sys.executable, "-c", block + run], capture_output=True, text=True, check=False, timeout=15
    )
    assert (0, "") == (answer.returncode, answer.stderr)
    assert "reviews" in answer.stdout


def used() -> float:
    """Return how much of the processor the processes took that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_the_command_starts_in_three_times_the_start_of_python(option: str, tmp_path: Path) -> None:
    """In time of the processor, which does not count what else the machine does."""
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(Path(importlib.import_module("millpond").__file__ or "").parents[1]),
        "PYTHONPYCACHEPREFIX": str(tmp_path),
    }

    def cost(*line: str) -> float:
        """Return the least time of the processor of several, but for the first, which compiles."""
        took = []
        for _ in range(6):
            before = used()
            subprocess.run(
                [sys.executable, *line], env=environment, capture_output=True, check=True
            )
            took.append(used() - before)
        return min(took[1:])

    python, ours = cost("-c", "pass"), cost("-m", "millpond", option)
    assert ours <= 3 * python, f"{ours * 1000:.0f} ms, and python -c pass {python * 1000:.0f} ms"
