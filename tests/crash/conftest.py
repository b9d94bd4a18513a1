"""Where do the crash tests get a disk whose power they may cut? Mounted here, let go of here."""

import contextlib

import pytest

from tests.crash.forgetful_folder import CannotMount, ForgetfulFolder, forgetful_folder, why_not


@pytest.fixture
def mounted(tmp_path):
    """Makes forgetful folders; skips, and says why, where there is no FUSE."""
    if why_not():
        pytest.skip(why_not())
    with contextlib.ExitStack() as open_ones:

        def mount(name="disk", ops=None) -> ForgetfulFolder:
            try:
                return open_ones.enter_context(forgetful_folder(tmp_path / name, ops=ops))
            except CannotMount as reason:
                pytest.skip(str(reason))

        yield mount
