"""Bytes go into windows first in, first out; what no window has room for comes last."""

from __future__ import annotations

from lazytrain.schedule.instance import Bandwidth, Options
from lazytrain.schedule.plan import LETTERS
from lazytrain.schedule.windows import channel, exposed_s, place


def homes(letters):
    """Return homes of a row of letters G, C, N, R."""
    return [LETTERS[letter] for letter in letters]


def test_a_window_has_what_mandatory_traffic_leaves(make_instance):
    instance = make_instance(
        mandatory_d2h_bytes=(0, 20, 50, 70, 0, 0), mandatory_h2d_bytes=(30,) * 6
    )
    # 50 B/s for 1 s of forward, and for 2 s of backward; 20 B/s for the disk.
    assert channel(instance, "d2h").slack_bytes == [50, 30, 0, 0, 50, 50]
    assert channel(instance, "h2d").slack_bytes == [70] * 6
    assert channel(instance, "nvme_write").slack_bytes == [20] * 6
    assert channel(instance, "nvme_read").slack_bytes == [40] * 6


def test_the_boundary_that_came_first_goes_first(make_instance):
    """Windows of 50 B: boundary 0 fills 0 and 1, boundary 1 the two behind them."""
    placed = place(make_instance(), homes("CCGGGGG"))
    assert placed["d2h"] == {0: {0: 50.0, 1: 50.0}, 1: {2: 50.0, 3: 50.0}}
    # Of 100 B on the way back: one window each.
    assert placed["h2d"] == {0: {0: 100.0}, 1: {1: 100.0}}
    assert placed["nvme_write"] == placed["nvme_read"] == {}


def test_no_boundary_moves_before_it_may(make_instance):
    late = make_instance(options=Options(read_deadline="layer"))
    placed = place(late, homes("GCGGGGG"))
    assert placed["d2h"] == {1: {1: 50.0, 2: 50.0}}
    assert placed["h2d"] == {1: {2: 100.0}}
    causal = make_instance(options=Options(read_deadline="block"))
    assert place(causal, homes("GCRRGGG"))["h2d"] == {1: {4: 100.0}}


def test_what_is_left_waits_in_the_last_window_and_is_exposed(make_instance):
    instance = make_instance(
        bandwidth=Bandwidth(d2h=10, h2d=50, nvme_write=20, nvme_read=20)
    )
    placed = place(instance, homes("GGGCCGG"))
    # 10 B a window: 30 B of boundary 3 fit, and all of boundary 4 comes too late.
    assert placed["d2h"] == {3: {3: 10.0, 4: 10.0, 5: 80.0}, 4: {5: 100.0}}
    assert exposed_s(instance, placed)["d2h"] == (200 - 30) / 10


def test_coupled_bytes_cross_both_links_in_one_window(make_instance):
    """The disk's 20 B a window, 40 B on the way back, bind the link as well."""
    instance = make_instance(options=Options(nvme_coupling="gds"))
    placed = place(instance, homes("NCGGGGG"))
    spilled = {window: 20.0 for window in range(5)}
    assert placed["nvme_write"] == {0: spilled}
    assert placed["d2h"][0] == spilled
    # Boundary 1 gets what the link has left beside them.
    assert placed["d2h"][1] == {1: 30.0, 2: 30.0, 3: 30.0, 4: 10.0}
    assert placed["nvme_read"] == {0: {0: 40.0, 1: 40.0, 2: 20.0}}
    assert placed["h2d"][1] == {1: 60.0, 2: 40.0}
