"""What tests of several folders share."""

import itertools
from collections.abc import Iterator

import pytest

from tests.postgres_server import PostgresServer, postgres_or_skip


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server for the whole run."""
    server = postgres_or_skip()
    yield server
    server.remove()


_numbers = itertools.count(1)


@pytest.fixture
def postgres_schema(postgres) -> Iterator[str]:
    """A schema that is this test's alone."""
    name = f"test_{next(_numbers)}"
    yield name
    postgres.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
