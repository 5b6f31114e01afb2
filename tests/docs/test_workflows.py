"""What the forge runs is what a contributor can run: make's targets, on the declared versions."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")

Job: TypeAlias = dict[str, Any]


def each(*paths: Path) -> pytest.MarkDecorator:
    """Run a test for each of these files."""
    return pytest.mark.parametrize("path", paths, ids=[path.name for path in paths])


def read(path: Path) -> dict[Any, Any]:
    """Return a workflow."""
    found = yaml.safe_load(path.read_text("utf-8"))
    assert isinstance(found, dict)
    return found


def jobs(path: Path) -> dict[str, Job]:
    """Return the jobs of a workflow by name."""
    found: dict[str, Job] = read(path)["jobs"]
    return found


def matrix(job: Job) -> dict[str, list[str]]:
    """Return what a job is run for, by the name of the variable."""
    found = {**job.get("strategy", {}).get("matrix", {})}
    rows = found.pop("include", [])
    values = {name: [str(value) for value in given] for name, given in found.items()}
    for name, value in (pair for row in rows for pair in row.items()):
        values[name] = [*values[name], str(value)]
    return values


def lines(job: Job) -> Iterator[str]:
    """Return the command lines of a job, one for each value of its matrix."""
    values = matrix(job)
    for line in "\n".join(step.get("run", "") for step in job["steps"]).splitlines():
        named = re.search(r"\$\{\{ matrix\.(\w+) \}\}", line)
        if named is None:
            yield line
        else:
            yield from (line.replace(named[0], value) for value in values[named[1]])


def targets() -> dict[str, str]:
    """Return make's targets, each with the group it is listed in."""
    group, found = "", {}
    for line in MAKEFILE.splitlines():
        if line.startswith("##@ "):
            group = line.removeprefix("##@ ").partition(":")[0]
        elif named := re.match(r"([a-z-]+):.*## ", line):
            found[named[1]] = group
    return found


def called(line: str) -> tuple[str, dict[str, str]] | None:
    """Return the target that a line calls, and the variables it sets."""
    words = line.partition("make ")[2].split() if re.search(r"(^|\s)make ", line) else []
    given = dict(word.split("=", 1) for word in words if "=" in word)
    named = [word for word in words if "=" not in word]
    return (named[0], given) if named else None


def pythons() -> list[str]:
    """Return the versions that the package says it runs on."""
    shown = re.compile(r"Programming Language :: Python :: (3\.\d+)")
    return [named[1] for line in PROJECT["classifiers"] if (named := shown.fullmatch(line))]


def test_there_is_a_workflow_for_each_kind_of_check() -> None:
    """Lint, tests, servers, the wheel, the pages, and what takes longer."""
    assert ["docs", "lint", "postgres", "prove", "test", "wheel"] == [p.stem for p in WORKFLOWS]


@each(*WORKFLOWS)
def test_a_workflow_calls_only_targets_that_make_has(path: Path) -> None:
    """Whatever fails there can be repeated here with the same words."""
    calls = [found for job in jobs(path).values() for line in lines(job) if (found := called(line))]
    assert calls
    assert set() == {target for target, _ in calls} - set(targets())
    assert {given.get("DEPS", "locked") for _, given in calls} <= {"locked", "oldest", "newest"}


@each(*WORKFLOWS)
def test_a_workflow_may_only_read_and_ends(path: Path) -> None:
    """It has no right to write, every job has a limit of time, and skips are failures."""
    workflow = read(path)
    assert {"contents": "read"} == workflow["permissions"]
    assert "true" == workflow["env"]["CI"]
    assert [] == [name for name, job in workflow["jobs"].items() if "timeout-minutes" not in job]


@each(*WORKFLOWS)
def test_an_action_is_pinned_by_its_major_version(path: Path) -> None:
    """Not by a branch, which changes without notice."""
    used = [step["uses"] for job in jobs(path).values() for step in job["steps"] if "uses" in step]
    assert [] == [name for name in used if not re.fullmatch(r"actions/[a-z-]+@v\d+", name)]


@each(*WORKFLOWS)
def test_a_workflow_uses_only_pythons_that_are_declared(path: Path) -> None:
    """A matrix of Pythons is all of them; a single one is one of them."""
    for job in jobs(path).values():
        versions = matrix(job).get("python")
        assert versions is None or set(pythons()) == set(versions)
        setup = [step["with"] for step in job["steps"] if "setup-python" in step.get("uses", "")]
        assert [] == [
            one["python-version"]
            for one in setup
            if one["python-version"] not in [*pythons(), "${{ matrix.python }}"]
        ]


def test_the_least_python_is_the_first_declared() -> None:
    """`requires-python` and the classifiers say the same."""
    assert f">={pythons()[0]}" == PROJECT["requires-python"]
    assert pythons() == [f"3.{minor}" for minor in range(11, 11 + len(pythons()))]


def test_every_python_is_tested_with_the_oldest_and_the_newest_dependencies() -> None:
    """And one with those of the lock, which a contributor has."""
    found = matrix(jobs(ROOT / ".github/workflows/test.yml")["test"])
    assert {"oldest", "newest", "locked"} == set(found["dependencies"])


def test_every_version_of_postgresql_is_tested() -> None:
    """The forge's matrix, make's list and the locks name the same versions."""
    found = matrix(jobs(ROOT / ".github/workflows/postgres.yml")["versions"])["postgres"]
    named = re.search(r"^VERSIONS \?= (.*)$", MAKEFILE, re.MULTILINE)
    locks = sorted(p.stem.removeprefix("postgres-") for p in ROOT.glob("requirements/postgres-*"))
    assert named is not None
    assert found == named[1].split()
    assert sorted(set(locks)) == found


def test_every_target_is_listed_in_one_of_three_groups() -> None:
    """`make help` names each target with a line that fits a terminal."""
    phony = re.search(r"^\.PHONY:((?:.*\\\n)*.*)$", MAKEFILE, re.MULTILINE)
    assert phony is not None
    assert sorted(phony[1].replace("\\\n", " ").split()) == sorted(targets())
    assert {"Use", "Develop", "Prove"} == set(targets().values())
    helped = re.findall(r"^[a-z-]+:.*## (.*)$", MAKEFILE, re.MULTILINE)
    assert [] == [line for line in helped if len(f"  make {'':18} {line}") > 100]


def wanted() -> dict[str, str]:
    """Return the least version of each package that we declare, extras included."""
    extras = PROJECT["optional-dependencies"].values()
    every = [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]
    found = (re.fullmatch(r"([a-z-]+)(?:\[\w+\])?>=([\d.]+)", line) for line in every)
    return {named[1]: named[2] for named in found if named}


def test_the_oldest_dependencies_are_those_that_are_declared() -> None:
    """`make test DEPS=oldest` installs exactly the lower bounds of pyproject.toml."""
    text = (ROOT / "requirements/oldest.lock").read_text("utf-8")
    locked = dict(re.findall(r"^([a-z-]+)==([\d.]+)", text, re.MULTILINE))
    assert {"msgspec", "psycopg", "click"} <= set(wanted())
    assert {} == {
        name: (least, locked.get(name))
        for name, least in wanted().items()
        if not re.fullmatch(re.escape(least) + r"(\.0)*", locked.get(name, ""))
    }


def test_hooks_download_nothing() -> None:
    """Each calls what `make venv` installed."""
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    (repository,) = config["repos"]
    assert "local" == repository["repo"]
    for hook in repository["hooks"]:
        assert "system" == hook["language"]
        assert hook["entry"].startswith(".venv/bin/")


@each(*sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")))
def test_a_form_can_be_read(path: Path) -> None:
    """Each question has a label, and a name of its own."""
    form = yaml.safe_load(path.read_text("utf-8"))
    questions = [part for part in form.get("body", []) if part["type"] != "markdown"]
    assert len(questions) == len({part["id"] for part in questions})
    assert all(part["attributes"]["label"] for part in questions)


def pages() -> list[Path]:
    """Return every page of the repository."""
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.md")]


def named_targets(text: str) -> set[str]:
    """Return the targets that a page names: as code in a sentence, or first on a block's line."""
    blocks = "\n".join(re.findall(r"^ *```.*?^ *```", text, re.MULTILINE | re.DOTALL))
    in_blocks = re.findall(r"^ *(?:\$ )?make ([a-z][a-z-]*)", blocks, re.MULTILINE)
    return {*in_blocks, *re.findall(r"`make\s+([a-z][a-z-]*)", text)}


def test_pages_name_only_targets_that_make_has() -> None:
    """A command in the documentation can be typed as it stands."""
    scripts = {f"bench-{file.stem}" for file in (ROOT / "bench").glob("*.py")}
    named = {
        (page.name, target) for page in pages() for target in named_targets(page.read_text("utf-8"))
    }
    assert {"test", "lint", "demo"} <= {target for _, target in named}
    assert [] == sorted(each for each in named if each[1] not in {*targets(), *scripts})
