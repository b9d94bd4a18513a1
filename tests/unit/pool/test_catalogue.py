"""The catalogue: one entry a line, whole or not at all, and clear when it cannot."""

import json
import multiprocessing
from pathlib import Path

import pytest

from mantle.core.ids import ModelId
from mantle.pool.catalogue import Catalogue, CatalogueError
from mantle.pool.port import CatalogueEntry, ModelState


def entry(name: str, *aliases: str) -> CatalogueEntry:
    return CatalogueEntry(
        id=ModelId(name),
        driver="scripted",
        path=f"/models/{name}",
        digest="d" * 64,
        size_bytes=1,
        window_tokens=128,
        created_s=1,
        display_name=name,
        aliases=aliases,
        state=ModelState.LEGACY,
    )


def test_entries_survive_a_new_process(tmp_path: Path) -> None:
    added = [entry("a", "x", "y"), entry("org/b:1.0")]
    for one in added:
        Catalogue(tmp_path).add(one)
    read = Catalogue(tmp_path)
    assert list(read.entries()) == added
    assert read.find("org/b:1.0") == added[1]
    assert read.find("x") == read.find("y") == read.find("a") == added[0]
    assert read.find("z") is None


def test_file_holds_one_entry_a_line(tmp_path: Path) -> None:
    catalogue = Catalogue(tmp_path)
    catalogue.add(entry("a"))
    catalogue.add(entry("b"))
    lines = catalogue.path.read_text().splitlines()
    assert [json.loads(line.rstrip(","))["id"] for line in lines[1:-1]] == ["a", "b"]
    assert json.loads(catalogue.path.read_text())["version"] == 1


def test_empty_folder_is_an_empty_catalogue_and_stays_untouched(tmp_path: Path) -> None:
    assert Catalogue(tmp_path / "new").entries() == ()
    assert not (tmp_path / "new").exists()


def test_emptied_catalogue_can_be_read(tmp_path: Path) -> None:
    Catalogue(tmp_path).add(entry("a", "x"))
    assert Catalogue(tmp_path).remove("x").id == "a"
    assert Catalogue(tmp_path).entries() == ()


@pytest.mark.parametrize("taken", [entry("a"), entry("x"), entry("b", "a"), entry("b", "x")])
def test_taken_name_is_refused_with_its_owner(tmp_path: Path, taken: CatalogueEntry) -> None:
    catalogue = Catalogue(tmp_path)
    catalogue.add(entry("a", "x"))
    with pytest.raises(CatalogueError, match="taken by the model 'a'") as caught:
        catalogue.add(taken)
    assert "remove a" in caught.value.hint
    assert len(catalogue.entries()) == len(Catalogue(tmp_path).entries()) == 1


@pytest.mark.parametrize("name", ["", " ", "a b", "../a", "-a", "é", "a" * 129, "a\n"])
def test_ill_formed_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CatalogueError, match="cannot be a model's name"):
        Catalogue(tmp_path).add(entry(name))


def test_alias_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="twice"):
        Catalogue(tmp_path).add(entry("a", "a"))


def test_removing_an_unknown_model_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="no model is called 'b'") as caught:
        Catalogue(tmp_path).remove("b")
    assert "models list" in caught.value.hint


def test_change_keeps_what_another_process_wrote_meanwhile(tmp_path: Path) -> None:
    ours, theirs = Catalogue(tmp_path), Catalogue(tmp_path)
    theirs.add(entry("theirs"))
    ours.add(entry("ours"))
    assert [e.id for e in Catalogue(tmp_path).entries()] == ["theirs", "ours"]
    theirs.reload()
    assert theirs.find("ours") is not None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"version":1,"models":[{"id":"a"}]}',
        b'{"version":1,"models":[],"more":1}',
        b'{"version":2,"models":[]}',
    ],
)
def test_unreadable_file_is_named_and_leaves_the_list_as_it_was(
    tmp_path: Path, content: bytes
) -> None:
    catalogue = Catalogue(tmp_path)
    catalogue.add(entry("a"))
    catalogue.path.write_bytes(content)
    with pytest.raises(CatalogueError) as caught:
        catalogue.reload()
    assert str(catalogue.path) in caught.value.message
    assert caught.value.hint
    assert [e.id for e in catalogue.entries()] == ["a"]
    with pytest.raises(CatalogueError):
        catalogue.add(entry("b"))
    assert catalogue.path.read_bytes() == content


def add_ten(folder: str, first: str) -> None:
    for number in range(10):
        Catalogue(Path(folder)).add(entry(f"{first}{number}"))


@pytest.mark.process
def test_processes_that_add_at_once_lose_nothing(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("fork")
    workers = [spawn.Process(target=add_ten, args=(str(tmp_path), c)) for c in "abc"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    ids = {e.id for e in Catalogue(tmp_path).entries()}
    assert ids == {f"{c}{number}" for c in "abc" for number in range(10)}
