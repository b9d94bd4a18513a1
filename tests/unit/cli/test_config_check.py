"""Does `mantle config check` tell errors from warnings, and change nothing?"""

import pytest
from click.testing import CliRunner

from mantle.cli.main import main
from mantle.cluster.capacity import Speed, SpeedMeter
from mantle.cluster.control_plane.import_file import open_store
from mantle.cluster.control_plane.speeds import SpeedBook
from mantle.core.ids import ModelId


@pytest.fixture
def run(tmp_path):
    def call(*args, config="{}"):
        path = tmp_path / "mantle.yaml"
        path.write_text(config)
        options = ["--config", str(path), "--data-dir", str(tmp_path / "data")]
        return CliRunner().invoke(main, ["config", "check", *options, *args])

    return call


def measured(tmp_path):
    store = open_store(tmp_path / "data")
    book = SpeedBook(store.engine, SpeedMeter(), lambda model_id: "s")
    book.save({ModelId("m"): Speed(1_000.0, 100.0)})
    return store


def test_fine_config_without_a_data_folder_makes_none(run, tmp_path):
    result = run("--strict")
    assert result.exit_code == 0, result.output
    assert result.output == "the config is valid; warnings: 0\n"
    assert not (tmp_path / "data").exists()


def test_warning_names_key_and_remedy_and_strict_fails(run):
    text = "scheduler: {lanes: {flex: {floor: 0.3}}}"
    result = run(config=text)
    assert result.exit_code == 0
    assert "warning: scheduler.lanes.flex.floor: gives flex 30%" in result.output
    assert run("--strict", config=text).exit_code == 1


def test_error_ends_with_2(run):
    result = run(config="server: {prot: 1}")
    assert result.exit_code == 2
    assert "did you mean 'port'?" in result.output


def test_tenants_and_speeds_of_the_data_folder_count(run, tmp_path):
    store = measured(tmp_path)
    store.close()
    tenants = CliRunner(env={"MANTLE_DATA_DIR": str(tmp_path / "data")})
    assert tenants.invoke(main, ["tenants", "add", "acme"]).exit_code == 0
    result = run()
    assert "a full queue (8000000 tokens) of tenant 'acme' on 'm'" in result.output
    assert "longest wait in flex: 3600 s (tenant 'acme' on 'm')" in result.output


def test_command_refuses_what_was_not_measured_to_fit_and_warns_where_nothing_was(tmp_path):
    measured(tmp_path).close()
    runner = CliRunner(env={"MANTLE_DATA_DIR": str(tmp_path / "data")})
    reserve = ["--input-tpm", "60000", "--output-tpm", "60"]
    result = runner.invoke(main, ["tenants", "add", "acme", "--reserve", "m", *reserve])
    assert result.exit_code == 2
    assert "measured were 60000 input or 6000 output tokens per minute" in result.output
    result = runner.invoke(main, ["tenants", "add", "acme", "--reserve", "n", *reserve])
    assert result.exit_code == 0
    assert "Warning: the speed of 'n' was not measured yet" in result.output


def test_queue_bounds_are_set_shown_and_lifted(tmp_path):
    runner = CliRunner(env={"MANTLE_DATA_DIR": str(tmp_path / "data")})
    queue = ["--queue", "flex", "--queue-requests", "5"]
    assert runner.invoke(main, ["tenants", "add", "acme", *queue]).exit_code == 0
    shown = runner.invoke(main, ["tenants", "show", "acme"]).output
    assert "queue flex: 5 requests may wait" in shown
    result = runner.invoke(main, ["tenants", "set", "acme", "--no-queue", "flex"])
    assert "queue flex" not in result.output
    for wrong in (["--queue", "flex"], ["--queue-tokens", "5"]):
        assert runner.invoke(main, ["tenants", "set", "acme", *wrong]).exit_code == 2
    result = runner.invoke(
        main, ["tenants", "set", "acme", "--queue", "flex", "--queue-tokens", "0"]
    )
    assert "queues[0].tokens_max: must be 1" in result.output
