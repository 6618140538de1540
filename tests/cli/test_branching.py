from __future__ import annotations

import click
import pytest

from streamrec.cli.branching import BranchingCommand


@click.command(cls=BranchingCommand, invoke_without_command=True)
@click.argument("places", nargs=-1)
@click.option("--often", is_flag=True)
def look(places: tuple[str, ...], *, often: bool) -> tuple[object, ...]:
    return "look", places, often


@look.command()
@click.argument("one")
@click.option("--closely", is_flag=True)
def at(one: str, *, closely: bool) -> tuple[object, ...]:
    return "at", one, closely


def ran(*arguments: str) -> object:
    return look.main(arguments, prog_name="look", standalone_mode=False)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), ("look", (), False)),
        (("a", "--often", "b"), ("look", ("a", "b"), True)),
        (("a", "at"), ("look", ("a", "at"), False)),
        (("./at",), ("look", ("./at",), False)),
        (("at", "a"), ("at", "a", False)),
        (("at", "--closely", "at"), ("at", "at", True)),
    ],
)
def test_the_command_or_one_beneath_it(arguments: tuple[str, ...], expected: object) -> None:
    assert ran(*arguments) == expected


@pytest.mark.parametrize("arguments", [("--often", "at", "a"), ("--", "at", "a")])
def test_a_name_behind_an_option_is_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(click.UsageError, match=r"'at' is a command, .* write `look at ...`"):
        ran(*arguments)


@pytest.mark.parametrize("arguments", [("at", "a", "--often"), ("a", "--closely")])
def test_options_are_those_of_the_command_that_runs(arguments: tuple[str, ...]) -> None:
    with pytest.raises(click.NoSuchOption):
        ran(*arguments)


def test_the_path_of_a_command_beneath_has_no_arguments_of_the_one_above() -> None:
    with pytest.raises(click.UsageError) as caught:
        ran("at")
    assert caught.value.ctx is not None
    assert caught.value.ctx.command_path == "look at"
