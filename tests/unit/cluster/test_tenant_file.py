"""Are tenants kept, and keys not?"""

import pytest

from mantle.admission.directory import Directory
from mantle.cluster.config import ConfigError
from mantle.cluster.config_model import Config, TenantConfig
from mantle.cluster.tenant_file import TenantFile, tenant_keys


@pytest.fixture
def file(tmp_path):
    return TenantFile(tmp_path)


def test_key_works_and_is_not_stored(file, tmp_path):
    file.add(TenantConfig("acme", weight=2.0))
    key = file.add_key("acme")
    directory = Directory(tenant_keys(Config(), file.read()))
    assert directory.authenticate(key).tenant.id == "acme"
    assert directory.weight("acme") == 2.0
    written = (tmp_path / "tenants.json").read_text()
    assert key not in written
    assert key.removeprefix("mk-") not in written


def test_file_is_for_its_owner_only(file, tmp_path):
    file.add(TenantConfig("acme"))
    assert (tmp_path / "tenants.json").stat().st_mode & 0o077 == 0


def test_revoked_key_is_forgotten(file):
    file.add(TenantConfig("acme"))
    first, _second = file.add_key("acme"), file.add_key("acme")
    first_hash = file.read()[0].api_key_sha256[0]
    assert file.revoke_key("acme", first_hash[:8]) == 1
    assert first_hash not in file.read()[0].api_key_sha256
    assert len(file.read()[0].api_key_sha256) == 1
    assert first


def test_same_id_twice_is_refused(file):
    file.add(TenantConfig("acme"))
    with pytest.raises(ConfigError, match="exists"):
        file.add(TenantConfig("acme"))


def test_key_for_nobody_is_refused(file):
    with pytest.raises(ConfigError, match="no tenant"):
        file.add_key("nobody")


def test_tenant_in_config_and_folder_is_refused(file):
    file.add(TenantConfig("acme"))
    with pytest.raises(ConfigError, match="in the config and in the data folder"):
        tenant_keys(Config(tenants=[TenantConfig("acme")]), file.read())


def test_broken_file_is_named_with_a_remedy(file, tmp_path):
    (tmp_path / "tenants.json").write_text("{")
    with pytest.raises(ConfigError, match="mend it"):
        file.read()
