"""Does the forgetful disk forget, and keep what it must? Its model, then the mounted thing."""

import os

import pytest

from tests.crash.forgetful_disk import (
    PAGE_BYTES,
    Create,
    Disk,
    PowerLost,
    Rename,
    Sync,
    SyncFolder,
    Truncate,
    Unlink,
    Write,
)


def after_power_loss(*ops):
    return Disk([*ops, PowerLost()]).content()


def test_what_was_synced_is_there_and_nothing_else():
    made = (Create("a"), Write(0, 0, b"old"), Sync(0))
    assert after_power_loss(Create("a"), Write(0, 0, b"old")) == {}
    assert after_power_loss(*made) == {"a": b"old"}
    assert after_power_loss(*made, Write(0, 1, b"new!")) == {"a": b"old"}
    assert after_power_loss(*made, Write(0, 1, b"new!"), Sync(0)) == {"a": b"onew!"}
    assert after_power_loss(*made, Truncate(0, 0)) == {"a": b"old"}
    assert after_power_loss(*made, Truncate(0, 0), Truncate(0, 2), Sync(0)) == {"a": bytes(2)}


def test_names_need_the_folder_or_their_own_file():
    made = (Create("a"), Sync(0))
    assert after_power_loss(*made, Unlink("a")) == {"a": b""}
    assert after_power_loss(*made, Unlink("a"), SyncFolder()) == {}
    assert after_power_loss(*made, Rename("a", "b")) == {"a": b""}
    assert after_power_loss(*made, Rename("a", "b"), Sync(0)) == {"b": b""}


def test_failed_sync_is_not_made_good_by_the_next_one():
    made = (Create("a"), Write(0, 0, b"old"), Sync(0), Write(0, 0, b"new"), Sync(0, True))
    assert Disk(made).content() == {"a": b"new"}, "readers see it"
    assert after_power_loss(*made, Sync(0)) == {"a": b"old"}
    assert after_power_loss(*made, Write(0, 0, b"new"), Sync(0)) == {"a": b"new"}


def test_a_seed_keeps_some_sectors_and_the_same_ones_each_time():
    ops = [Create("a"), Truncate(0, 8 * PAGE_BYTES), Sync(0), Write(0, 0, b"x" * 8 * PAGE_BYTES)]
    left = [Disk([*ops, PowerLost(seed)]).content()["a"] for seed in (1, 1, 2)]
    assert left[0] == left[1] != left[2]
    assert 0 < left[0].count(b"x") < 8 * PAGE_BYTES


@pytest.mark.process
def test_mounted_disk_forgets_what_was_not_synced(mounted):
    folder = mounted()
    for name, content in (("kept", b"synced"), ("gone", b"not synced")):
        file = os.open(folder.path / name, os.O_CREAT | os.O_WRONLY)
        os.write(file, content)
        if name == "kept":
            os.fsync(file)
            os.write(file, b", and more")
        os.close(file)
    assert (folder.path / "kept").read_bytes() == b"synced, and more"
    folder.cut_power()
    folder.mount()
    assert {one.name: one.read_bytes() for one in folder.path.iterdir()} == {"kept": b"synced"}
