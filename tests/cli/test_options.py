"""The options of `millpond worker`: wrong values, and the help."""

import pytest

from millpond.cli import main as command
from millpond.cli import worker
from millpond.cli.exits import WORKER_EXITS, Exit


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "the following arguments are required: APP"),
        (["shop:mp", "--concurency", "3"], "unrecognized arguments: --concurency 3"),
        (["shop:mp", "--conc", "3"], "unrecognized arguments: --conc 3"),
        (["shop:mp", "--concurrency", "0"], "'0' is not a whole number of 1 or more"),
        (["shop:mp", "--concurrency", "two"], "'two' is not a whole number of 1 or more"),
        (["shop:mp", "--concurrency", "²"], "'²' is not a whole number of 1 or more"),
        (["shop:mp", "--grace", "-1"], "'-1' is not a number of seconds"),
        (["shop:mp", "--grace", "nan"], "'nan' is not a number of seconds"),
        (["shop:mp", "--grace", "inf"], "'inf' is not a number of seconds"),
        (["shop:mp", "--grace", "soon"], "'soon' is not a number of seconds"),
        (["shop:mp", "--pools", " , "], "argument --pools: no pool is named"),
        (["shop:mp", "--log-level", "loud"], "argument --log-level: invalid choice: 'loud'"),
        (["shop:mp", "other:mp"], "unrecognized arguments: other:mp"),
    ],
)
def test_a_wrong_argument_is_refused_in_one_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, and nothing was loaded."""
    with pytest.raises(SystemExit) as left:
        command.main(["worker", *arguments])
    assert Exit.USAGE == left.value.code
    assert complaint in capsys.readouterr().err.splitlines()[-1]


def test_pool_names_are_split_at_commas() -> None:
    """Spaces do not count, and a name that comes twice is one."""
    assert ("a", "b") == worker.names("a, b,a,")


def test_the_help_lists_every_option_and_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 0."""
    with pytest.raises(SystemExit) as left:
        command.main(["worker", "--help"])
    assert 0 == left.value.code
    output = capsys.readouterr().out
    usage = output.partition("\n\n")[0]
    for option in ("--pools", "--concurrency", "--once", "--grace", "--store", "--log-level"):
        assert option in usage
        assert 2 <= output.count(option)
    for code in WORKER_EXITS:
        assert f"\n  {code:<3}  {code.meaning}" in output
