"""Templates: what the arguments of a command are for an item, and that an item stays data."""

import subprocess
from pathlib import Path

import pytest

from millpond.cli.exits import Exit, Refusal
from millpond.cli.run.template import Template

NASTY = "a  b'\"$(touch pwned)`touch pwned`;touch pwned\n*"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", "photos/a.b/c.tar.gz"),
        ("{.}", "photos/a.b/c.tar"),
        ("{/}", "c.tar.gz"),
        ("{//}", "photos/a.b"),
        ("{/.}", "c.tar"),
        ("{#}", "7"),
        ("x{#}-{/}{}", "x7-c.tar.gzphotos/a.b/c.tar.gz"),
        ("{ }", "{ }"),
    ],
)
def test_replacement_strings_mean_what_they_do_in_gnu_parallel(text: str, expected: str) -> None:
    """Also within an argument, and more than one of them."""
    made = Template(["echo", text, "-", "{}"]).arguments("photos/a.b/c.tar.gz", 7)
    assert ["echo", expected, "-"] == made[:3]


@pytest.mark.parametrize(
    ("item", "stem", "last", "folder"),
    [
        ("a", "a", "a", "."),
        ("/a", "/a", "a", "/"),
        ("a.d/b", "a.d/b", "b", "a.d"),
        ("a/b.c", "a/b", "b.c", "a"),
        (".rc", "", ".rc", "."),
        ("a/", "a/", "", "."),
    ],
)
def test_paths_are_cut_as_gnu_parallel_cuts_them(
    item: str, stem: str, last: str, folder: str
) -> None:
    """A dot in a folder's name begins no extension; without a folder it is the current one."""
    made = Template(["x", "{.}", "{/}", "{//}"]).arguments(item, 1)
    assert ["x", stem, last, folder] == made


def test_the_item_is_the_last_argument_by_default() -> None:
    """As with xargs; a number alone stands for it too."""
    assert ["gzip", "-9", "a b"] == Template(["gzip", "-9"]).arguments("a b", 1)
    assert ["echo", "3"] == Template(["echo", "{#}"]).arguments("a b", 3)


def test_another_text_may_stand_for_the_item() -> None:
    """As with `xargs -I`; then the usual one is only text."""
    made = Template(["mv", "FILE", "FILE.{}", "{.}"], replace="FILE").arguments("a.b", 1)
    assert ["mv", "a.b", "a.b.{}", "a"] == made


@pytest.mark.parametrize(
    "script",
    [
        "printf %s {}",
        'printf %s "{}"',
        "printf %s '{}'",
        "printf %s \"$(printf %s {}; printf .)\" | sed '$s/[.]$//'",
        'printf %s "$(printf %s "{}."; )" | sed \'$s/[.]$//\'',
        'printf %s "$1"',
        "printf %s",
        "(printf %s {})",
        "true \\' && printf %s {}",
    ],
)
def test_an_item_is_one_word_of_a_script_wherever_it_stands(script: str, tmp_path: Path) -> None:
    """Between quotes of either kind, or none; nothing in it is obeyed."""
    arguments = Template([script], shell=True).arguments(NASTY, 1)
    output = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert NASTY == output.stdout
    assert [] == list(tmp_path.iterdir())


def test_an_item_is_never_run_as_code_even_in_a_here_document(tmp_path: Path) -> None:
    """In a here-document the quotes stay in the text, and the item stays an item."""
    script = "cat <<END\n{}\nEND"
    arguments = Template([script], shell=True).arguments(NASTY, 1)
    output = subprocess.run(arguments, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert f'"{NASTY}"\n' == output.stdout
    assert [] == list(tmp_path.iterdir())


def test_each_replacement_string_has_its_own_parameter_in_a_script() -> None:
    """The item is always the first."""
    arguments = Template(["echo {.} {#} {.}"], shell=True).arguments("a.b", 9)
    assert ["/bin/sh", "-c", 'echo "${2}" "${3}" "${2}"', "millpond", "a.b", "a", "9"] == arguments


@pytest.mark.parametrize(
    "command", [["sh", "-c", "rm {}"], ["/bin/bash", "-e", "-xc", "rm {/}"], ["zsh", "-c", "{}"]]
)
def test_a_command_that_puts_an_item_into_shell_text_is_refused(command: list[str]) -> None:
    """It is refused, and --shell is named, which does the same safely."""
    with pytest.raises(Refusal, match="--shell") as refused:
        Template(command)
    assert Exit.USAGE == refused.value.code


@pytest.mark.parametrize(
    "command", [["sh", "-c", 'rm "$1"', "sh", "{}"], ["bash", "tidy.sh", "-c", "{}"], ["sh", "{}"]]
)
def test_a_shell_may_be_given_items_as_arguments(command: list[str]) -> None:
    """Only its script must not have one."""
    assert "x" == Template(command).arguments("x", 1)[-1]
