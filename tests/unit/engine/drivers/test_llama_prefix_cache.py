"""Choosing slots: pure decisions over token ids, no model needed."""

from mantle.engine.drivers.prefix_cache import (
    Slot,
    closing_move,
    common_prefix,
    is_worth_waiting,
    place,
)

LONG = list(range(100, 200))


def _slots(*tokens: list[int], busy: tuple[int, ...] = ()) -> list[Slot]:
    return [Slot(i, list(held), i in busy) for i, held in enumerate(tokens)]


def test_common_prefix_counts_leading_equal_tokens() -> None:
    assert common_prefix([], [1]) == 0
    assert common_prefix([1, 2, 3], [1, 2]) == 2
    assert common_prefix([1, 2, 3], [1, 9, 3]) == 1


def test_idle_slot_that_remembers_the_prefix_is_taken_as_it_is() -> None:
    slots = _slots([], LONG, [])
    placement = place(slots, LONG, copy_is_free=False)
    assert placement.slot is slots[1]
    assert placement.copy_from is None
    assert placement.reused == len(LONG) - 1  # the last token is computed again, for its logits


def test_prefix_of_a_busy_slot_is_copied_to_an_idle_neighbour() -> None:
    slots = _slots([], LONG, [], busy=(1,))
    placement = place(slots, [*LONG, 7], copy_is_free=False)
    assert placement.copy_from is slots[1]
    assert placement.slot in (slots[0], slots[2])
    assert placement.reused == len(LONG)


def test_long_memory_of_an_idle_slot_survives_a_short_common_prefix() -> None:
    slots = _slots(LONG, [])
    placement = place(slots, [*LONG[:20], *range(80)], copy_is_free=True)
    assert placement.slot is slots[1]
    assert placement.copy_from is slots[0]


def test_whole_copy_for_a_short_prefix_does_not_pay() -> None:
    slots = _slots(list(range(5_000)), [], busy=(0,))
    assert place(slots, [*range(20), 9, 9], copy_is_free=False).copy_from is None
    assert place(slots, [*range(20), 9, 9], copy_is_free=True).copy_from is slots[0]


def test_busy_slots_stay_neighbours_and_gaps_are_filled_first() -> None:
    slots = _slots([], [], [], [], [], busy=(0, 1, 3))
    slots[2].idle_since = 50
    assert place(slots, [1, 2], copy_is_free=False).slot is slots[2]


def test_least_recently_used_slot_is_taken_when_nothing_runs() -> None:
    slots = _slots([1] * 30, [2] * 30, [3] * 30)
    slots[0].idle_since, slots[1].idle_since, slots[2].idle_since = 9, 2, 5
    assert place(slots, [7, 8], copy_is_free=False).slot is slots[1]


def test_branch_waits_only_while_its_prompt_is_being_computed() -> None:
    assert is_worth_waiting(LONG, [(LONG, 0)])
    assert not is_worth_waiting(LONG, [(LONG, len(LONG))])
    assert not is_worth_waiting(LONG, [([5, *LONG], 0)])
    assert not is_worth_waiting(LONG[:10], [(LONG[:10], 0)])


def test_gap_is_closed_by_moving_one_out_of_the_smallest_run() -> None:
    slots = _slots([], [], [], [], [], [], busy=(0, 1, 2, 5))
    assert closing_move(slots) == (slots[5], slots[3])


def test_neighbouring_slots_need_no_move() -> None:
    assert closing_move(_slots([], [], [], busy=())) is None
    assert closing_move(_slots([], [], [], busy=(1,))) is None
    assert closing_move(_slots([], [], [], busy=(1, 2))) is None


def test_moves_end_in_one_run_from_any_pattern() -> None:
    for pattern in range(1 << 8):
        slots = _slots(*([] for _ in range(8)), busy=tuple(i for i in range(8) if pattern >> i & 1))
        for _ in range(8):
            move = closing_move(slots)
            if move is not None:
                move[0].is_busy, move[1].is_busy = False, True
        assert closing_move(slots) is None
