"""`mantle models`, as an operator types it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mantle.cli.models import models, name_of


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "Fake Model.script.json"
    path.write_text('{"reply": ["hi"]}')
    return path


def run(data_dir: Path, *arguments: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(models, [*arguments, "--data-dir", str(data_dir)], input=answer)


def listed(data_dir: Path) -> list[dict[str, object]]:
    result = run(data_dir, "list", "--json")
    assert result.exit_code == 0
    entries: list[dict[str, object]] = json.loads(result.stdout)
    return entries


def test_added_model_is_listed_and_can_be_removed_by_alias(tmp_path: Path, script: Path) -> None:
    data_dir = tmp_path / "d"
    added = run(data_dir, "add", str(script), "--alias", "f", "--alias", "g")
    assert added.exit_code == 0, added.output
    assert "added 'fake-model'" in added.stdout
    (entry,) = listed(data_dir)
    assert (entry["id"], entry["aliases"]) == ("fake-model", ["f", "g"])
    assert (entry["path"], entry["file_missing"]) == (str(script), False)
    assert "fake-model, f, g" in run(data_dir, "list").stdout
    removed = run(data_dir, "remove", "g", "--yes")
    assert removed.exit_code == 0
    assert listed(data_dir) == []
    assert script.exists()


def test_list_of_nothing_says_how_to_add(tmp_path: Path) -> None:
    result = run(tmp_path, "list")
    assert "mantle models add" in result.stdout
    assert listed(tmp_path) == []


def test_list_says_which_file_is_missing(tmp_path: Path, script: Path) -> None:
    run(tmp_path, "add", str(script))
    assert "MISSING" not in run(tmp_path, "list").stdout
    script.unlink()
    assert "FILE IS MISSING" in run(tmp_path, "list").stdout
    assert listed(tmp_path)[0]["file_missing"] is True


def test_remove_asks_first(tmp_path: Path, script: Path) -> None:
    run(tmp_path, "add", str(script), "--name", "a")
    refused = run(tmp_path, "remove", "a", answer="n\n")
    assert refused.exit_code == 1
    assert len(listed(tmp_path)) == 1
    assert run(tmp_path, "remove", "a", answer="y\n").exit_code == 0
    assert listed(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["add", "nowhere.gguf"], "nowhere.gguf: there is no such file (give the path"),
        (["add", "SCRIPT", "--name", "taken"], "the name 'taken' is taken"),
        (["add", "SCRIPT", "--alias", "taken"], "the name 'taken' is taken"),
        (["add", "SCRIPT", "--name", "not good"], "'not good' cannot be a model's name"),
        (["add", "SCRIPT", "--quantize", "q4_0"], "a script has no weights"),
        (["add", "SCRIPT", "--quantize", "q3"], "'q3' is not one of"),
        (["remove", "unknown", "--yes"], "no model is called 'unknown'"),
    ],
)
def test_fault_is_one_clear_line_and_exit_code_2(
    tmp_path: Path, script: Path, arguments: list[str], expected: str
) -> None:
    run(tmp_path, "add", str(script), "--name", "taken")
    result = run(tmp_path, *[str(script) if a == "SCRIPT" else a for a in arguments])
    assert result.exit_code == 2
    assert expected in result.stderr
    assert "Traceback" not in result.output
    assert len(listed(tmp_path)) == 1


@pytest.mark.parametrize(
    ("file", "kind", "name"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", None, "smollm2-135m-instruct"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "q8_0", "smollm2-135m-instruct-q8_0"),
        ("qwen2.5-0.5b-instruct-q4_k_m.gguf", None, "qwen2.5-0.5b-instruct"),
        ("Llama 3 (new).gguf", None, "llama-3-new"),
        ("phi-F16.gguf", None, "phi"),
        ("fake.script.json", None, "fake"),
    ],
)
def test_default_name_is_made_from_the_file(file: str, kind: str | None, name: str) -> None:
    assert name_of(Path(file), kind) == name


@pytest.mark.model
def test_quantised_model_is_measured_and_its_copy_removed_with_it(
    tmp_path: Path, demo_weights: Path
) -> None:
    added = run(tmp_path, "add", str(demo_weights), "--quantize", "q4_0", "--name", "org/s")
    assert added.exit_code == 0, added.output
    assert "times as fast" in added.stdout
    assert "tokens/s" in added.stdout
    assert "quantising to q4_0" in added.stderr
    (entry,) = listed(tmp_path)
    copy = Path(str(entry["path"]))
    assert entry["quantization"] == "Q4_0"
    assert copy.is_relative_to(tmp_path / "models")
    assert f"removed 'org/s' and {copy}" in run(tmp_path, "remove", "org/s", "--yes").stdout
    assert not copy.exists()
    assert demo_weights.exists()
