"""Loading a tokeniser: the right kind for a driver, and faults that name no path."""

from pathlib import Path

import pytest

from mantle.core.errors import LoadFailed
from mantle.text.load import load_model_text
from mantle.text.port import ChatMessage


def test_scripted_driver_reads_its_script(tmp_path: Path) -> None:
    path = tmp_path / "fake.script.json"
    path.write_text('{"reply": ["hello"]}')
    text = load_model_text("scripted", path)
    assert text.encode_chat([ChatMessage("user", "hi")])


@pytest.mark.model
def test_llama_cpp_driver_reads_the_model_file(demo_weights: Path) -> None:
    text = load_model_text("llama_cpp", demo_weights)
    assert text.vocab_size == 49_152
    assert text.special.bos_id == 1


@pytest.mark.parametrize("driver", ["llama_cpp", "scripted", "unheard_of"])
def test_fault_is_a_load_failure_without_the_path(tmp_path: Path, driver: str) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"not a model")
    for path in (broken, tmp_path / "missing"):
        with pytest.raises(LoadFailed) as caught:
            load_model_text(driver, path)
        assert str(tmp_path) not in caught.value.message + caught.value.hint


def test_fault_of_llama_cpp_prints_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(LoadFailed):
        load_model_text("llama_cpp", tmp_path / "missing")
    assert capfd.readouterr() == ("", "")
