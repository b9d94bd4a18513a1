"""A PostgreSQL of the tests' own: in a folder of its own, on a Unix socket, killed at the end."""

import getpass
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import psycopg
import pytest

IS_NEEDED = "MANTLE_TESTS_NEED_POSTGRES"
"""Set in CI: then a missing PostgreSQL is a failure, not a skip."""

_SETTINGS = ("listen_addresses=''", "shared_buffers=16MB", "max_connections=60")


class PostgresServer:
    """One running server; every test takes a schema of its own in it."""

    def __init__(self, bin_dir: Path):
        self._bin = bin_dir
        self._user = "postgres" if os.geteuid() == 0 else getpass.getuser()  # it refuses root
        self.folder = Path(tempfile.mkdtemp(prefix="mantle-postgres-"))
        if os.geteuid() == 0:
            shutil.chown(self.folder, self._user)
        self.url = f"host={self.folder} user={self._user} dbname=postgres"
        self._run("initdb", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-instructions")
        self.start()

    def start(self):
        options = " ".join(f"-c {one}" for one in _SETTINGS)
        log = str(self.folder / "log")
        self._run("pg_ctl", "start", "-w", "-l", log, "-o", f"{options} -k {self.folder}")

    def stop(self, how="immediate"):
        """`immediate` is as by kill -9, but it leaves nothing behind."""
        self._run("pg_ctl", "stop", "-m", how)

    def execute(self, statement, *values):
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    def remove(self):
        self.stop()
        shutil.rmtree(self.folder)

    def _run(self, program, *words):
        command = [str(self._bin / program), "-D", str(self.folder / "data"), *words]
        user = self._user if os.geteuid() == 0 else None
        done = subprocess.run(
            command,
            user=user,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # pg_ctl's server would hold a pipe open
            stderr=subprocess.DEVNULL,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{program} failed ({done.returncode})"


def postgres_or_skip() -> PostgresServer:
    """A running server; skips (in CI: fails) where none is installed."""
    reason = _why_not()
    if reason and os.environ.get(IS_NEEDED):
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)
    return PostgresServer(_bin_dir())


def _why_not() -> str:
    if _bin_dir() is None:
        return "PostgreSQL is not installed (Debian, Ubuntu: apt-get install postgresql)"
    if os.geteuid() == 0 and "postgres" not in {user.pw_name for user in pwd.getpwall()}:
        return "PostgreSQL refuses to run as root, and there is no user 'postgres'"
    return ""


def _bin_dir() -> Path | None:
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    on_path = shutil.which("initdb")
    if on_path:
        places.insert(0, Path(on_path).resolve().parent)
    return next((place for place in places if (place / "initdb").exists()), None)
