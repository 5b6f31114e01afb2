"""One dry run for all tests of the auditor."""

import pytest
from tests.torture.dry_run import dry_run
from verify.torture.evidence import Evidence


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """The evidence of a fleet that kept every promise; a test that changes it takes a copy."""
    return dry_run(tmp_path_factory.mktemp("dry"))
