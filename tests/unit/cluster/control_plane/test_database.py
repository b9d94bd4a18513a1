"""Do tables and migrations agree, and does an old database become a new one with all it held?"""

import importlib.resources
import io
import threading

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from mantle.cluster.config import ConfigError
from mantle.cluster.control_plane.database import engine_of, migrate, open_database, writing
from mantle.cluster.control_plane.store import ControlStore
from mantle.cluster.control_plane.tables import METADATA

OPTIONS = {"compare_type": True}


def test_tables_and_migrations_agree(tmp_path):
    engine = open_database(tmp_path)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts=OPTIONS)
        assert compare_metadata(context, METADATA) == []


def test_a_difference_would_be_seen(tmp_path):
    engine = open_database(tmp_path)
    with writing(engine).begin() as connection:
        connection.execute(sa.text("DROP TABLE admin_keys"))
        context = MigrationContext.configure(connection, opts=OPTIONS)
        assert compare_metadata(context, METADATA)


def test_old_database_is_migrated_with_all_it_held(tmp_path):
    engine = engine_of(f"sqlite:///{tmp_path}/control.db")
    migrate(engine, target="0001")
    with writing(engine).begin() as connection:
        connection.execute(
            sa.text("INSERT INTO tenants VALUES ('acme', 2.0, '[\"flex\"]', NULL, 7);")
        )
        connection.execute(
            sa.text("INSERT INTO api_keys VALUES ('aa', 'acme', 'mk-12345', 8, NULL)")
        )
    engine.dispose()
    store = ControlStore(open_database(tmp_path))
    stored = store.find("acme")
    assert stored.tenant.weight == 2.0
    assert stored.key_hashes == ("aa",)
    assert stored.tenant.quotas == ()
    store.replace_admin_key()


def test_database_of_a_newer_mantle_is_refused(tmp_path):
    engine = open_database(tmp_path)
    with writing(engine).begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ConfigError, match="newer Mantle"):
        open_database(tmp_path)


def test_file_that_is_no_database_is_named(tmp_path):
    (tmp_path / "control.db").write_bytes(b"not a database, certainly not" * 50)
    with pytest.raises(ConfigError, match=r"control\.db: can not be opened"):
        open_database(tmp_path)


def test_opening_at_once_migrates_once(tmp_path):
    failures = []

    def open_it():
        try:
            open_database(tmp_path).dispose()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_migrations_can_be_written_for_postgresql():
    sql = io.StringIO()
    options = {"as_sql": True, "output_buffer": sql}
    context = MigrationContext.configure(dialect_name="postgresql", opts=options)
    folder = importlib.resources.files("mantle.cluster.control_plane.migrations")
    with Operations.context(context):
        for script in reversed([*ScriptDirectory(str(folder)).walk_revisions()]):
            script.module.upgrade()
    written = {name for name in METADATA.tables if f"CREATE TABLE {name} (" in sql.getvalue()}
    assert written == set(METADATA.tables)


def test_migrations_are_part_of_the_package():
    folder = importlib.resources.files("mantle.cluster.control_plane.migrations")
    assert (folder / "env.py").is_file()
    assert (folder / "versions" / "__init__.py").is_file(), "else the wheel leaves them out"
