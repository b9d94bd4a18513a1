"""Stop strings: nothing of them is shown, nothing else is lost, however the text is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mantle.text.stop_strings import StopStrings


def run(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    watch = StopStrings(stops)
    shown, matched = "", None
    for piece in pieces:
        text, matched = watch.feed(piece)
        shown += text
    if matched is None:
        shown += watch.flush()
    return shown, matched


def naive(stops: list[str], text: str) -> tuple[str, str | None]:
    """Reads character by character and looks at the whole text so far each time."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "matched"),
    [
        (["DEFGHIJ"], ["ABC", "DEF", "G", "HI", "J", "K"], "ABC", "DEFGHIJ"),
        (["DE"], ["ABC", "DEFG"], "ABC", "DE"),
        (["\nObservation:"], ["think", "\nObs", "ervation", ": x"], "think", "\nObservation:"),
        (["HALT"], ["ok ", "HA", "LT", " more"], "ok ", "HALT"),
        (["HALT"], ["ok ", "HA", "LF"], "ok HALF", None),
        ([], ["a", "b"], "ab", None),
        (["b", "ab"], ["ab"], "", "ab"),
        (["bc", "abcd"], ["abcd"], "a", "bc"),
        (["🌊🦀"], ["x🌊", "🌊", "🦀"], "x🌊", "🌊🦀"),
    ],
)
def test_text_ends_before_the_stop_string(
    stops: list[str], pieces: list[str], shown: str, matched: str | None
) -> None:
    assert run(stops, pieces) == (shown, matched)


def test_text_that_cannot_begin_a_stop_string_is_not_held_back() -> None:
    watch = StopStrings(["HALT"])
    assert watch.feed("go HA") == ("go ", None)
    assert watch.feed("x") == ("HAx", None)


def test_nothing_comes_out_after_a_match() -> None:
    watch = StopStrings(["."])
    assert watch.feed("a.b") == ("a", ".")
    assert watch.feed("c") == ("", ".")
    assert watch.flush() == ""


letters = st.text(alphabet="ab<", min_size=1, max_size=4)


@given(st.lists(letters, max_size=4), st.lists(st.text(alphabet="ab<", max_size=5), max_size=12))
def test_any_cut_gives_what_reading_character_by_character_gives(
    stops: list[str], pieces: list[str]
) -> None:
    assert run(stops, pieces) == naive(stops, "".join(pieces))
