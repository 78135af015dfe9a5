"""Copies that lose bytes, come too early, or expose more than they say are refused."""

from __future__ import annotations

from typing import Any

import pytest
from test_check_faults import details
from test_schedule_check import edited, find, kinds, plan_of

from lazytrain.schedule.check import check
from lazytrain.schedule.instance import Bandwidth, Budget, Options
from lazytrain.schedule.plan import Transfer

ROOMY = Budget(gpu=700, cpu=700, nvme=700)
RATES: dict[str, Any] = {"d2h": 1e6, "h2d": 1e6, "nvme_write": 1e6, "nvme_read": 1e6}
FAST = Bandwidth(**RATES)


@pytest.mark.parametrize("sizes", [{2: 99.0}, {2: 50.0, 3: 51.0}])
def test_neither_fewer_nor_more_bytes_than_the_boundary_has(make_instance, sizes):
    instance = make_instance(bandwidth=FAST)
    plan = plan_of(instance, "GGCRRRG")
    wrong = edited(plan, find(plan, "d2h", 2), window_bytes=sizes)
    assert kinds(wrong, instance) == {"bytes"}


def test_a_copy_of_nothing_is_refused(make_instance):
    instance = make_instance()
    plan = plan_of(instance, "GGCRRRG")
    ghost = Transfer(boundary=40, link="d2h", release="forward:40", deadline="turn")
    more = plan.model_copy(update={"transfers": (*plan.transfers, ghost)})
    assert kinds(more, instance) == {"transfer"}
    assert "boundary 40 moves over d2h but does not exist" in details(more, instance)


@pytest.mark.parametrize("link", ["d2h", "h2d", "nvme_write", "nvme_read"])
@pytest.mark.parametrize("event", ["release", "deadline"])
def test_each_event_of_each_copy_is_compared(make_instance, link, event):
    instance = make_instance()
    plan = plan_of(instance, "NGCRRRG")
    wrong = edited(plan, find(plan, link, 0), **{event: "never"})
    assert kinds(wrong, instance) == {"event"}


def test_events_are_those_of_the_block(make_instance):
    instance = make_instance()
    plan = plan_of(instance, "NGCRRRG")
    found = {(t.link, t.boundary): (t.release, t.deadline) for t in plan.transfers}
    assert found["h2d", 2] == ("turn", "backward:5")
    assert found["nvme_write", 0] == ("d2h:0", "turn")
    assert kinds(plan, instance) == set()
    for link, boundary, change in (
        ("h2d", 2, {"deadline": "backward:2"}),
        ("nvme_write", 0, {"release": "forward:0"}),
    ):
        wrong = edited(plan, find(plan, link, boundary), **change)
        assert kinds(wrong, instance) == {"event"}


@pytest.mark.parametrize(
    ("deadline", "link", "first"),
    [
        ("paper", "d2h", 2),
        ("paper", "nvme_write", 2),
        ("paper", "h2d", 2),
        ("layer", "h2d", 3),
        ("layer", "nvme_read", 3),
        ("layer", "d2h", 2),
        ("block", "h2d", 4),
        ("block", "nvme_read", 4),
        ("block", "nvme_write", 2),
    ],
)
def test_the_first_window_is_allowed_and_the_one_before_is_not(
    make_instance, deadline, link, first
):
    instance = make_instance(
        options=Options(read_deadline=deadline),
        bandwidth=FAST,
        budget_bytes=ROOMY,
    )
    plan = plan_of(instance, "GGNRGRG")
    index = find(plan, link, 2)
    for window, expected in ((first, set()), (first - 1, {"window"}), (6, {"window"})):
        moved = edited(plan, index, window_bytes={window: 100.0})
        found = kinds(moved, instance)
        # The window after the last has no room: its bytes are not exposed either.
        assert found == expected, (window, details(moved, instance))


@pytest.mark.parametrize(
    ("disk", "link"), [("nvme_write", "d2h"), ("nvme_read", "h2d")]
)
@pytest.mark.parametrize("side", ["disk", "link"])
def test_coupled_copies_share_every_window_in_both_directions(
    make_instance, disk, link, side
):
    instance = make_instance(
        options=Options(nvme_coupling="gds"),
        bandwidth=FAST,
    )
    plan = plan_of(instance, "NGGRRRG")
    assert kinds(plan, instance) == set()
    moved = edited(
        plan,
        find(plan, disk if side == "disk" else link, 0),
        window_bytes={4: 50.0, 5: 50.0},
    )
    assert kinds(moved, instance) == {"coupling"}
    # A window of one that the other lacks is told from either side.
    assert "differ in window 4" in details(moved, instance)
    assert "differ in window 0" in details(moved, instance)


@pytest.mark.parametrize(
    ("link", "seconds"),
    [("d2h", 1.0), ("nvme_write", 1.0), ("h2d", 2.0), ("nvme_read", 2.0)],
)
def test_each_link_is_exposed_by_what_its_window_cannot_carry(
    make_instance, link, seconds
):
    """100 B in the last window alone, at 20 B/s for 1 s of forward, 2 s of backward."""
    rates = Bandwidth(**RATES | {link: 20.0})
    instance = make_instance(bandwidth=rates, budget_bytes=ROOMY)
    plan = plan_of(instance, "GGGGGNG")
    crammed = edited(plan, find(plan, link, 5), window_bytes={5: 100.0})
    exposed = check(crammed, instance).exposed_s
    assert exposed[link] == pytest.approx((100 - 20 * seconds) / 20)
    assert sum(exposed.values()) == exposed[link]


@pytest.mark.parametrize("link", ["d2h", "h2d"])
def test_mandatory_traffic_takes_room_and_its_own_exposure_is_no_plans(
    make_instance, link
):
    """Windows of 100 B with 60 B taken leave 40; one with 150 B is 50 B over anyway."""
    seconds = "window_write_s" if link == "d2h" else "window_read_s"
    instance = make_instance(
        **{
            seconds: (1.0,) * 6,
            f"mandatory_{link}_bytes": (60, 60, 60, 60, 150, 60),
            "bandwidth": Bandwidth(**RATES | {link: 100.0}),
            "budget_bytes": ROOMY,
        }
    )
    idle = check(plan_of(instance, "GGGGGGG"), instance)
    assert idle.exposed_s[link] == 0.0
    assert idle.mandatory_exposed_s[link] == pytest.approx(0.5)
    assert sum(idle.mandatory_exposed_s.values()) == pytest.approx(0.5)
    plan = plan_of(instance, "GGGCGGG")
    # 40 B in window 3, 60 B in the full window 4: these are exposed whole.
    crammed = edited(plan, find(plan, link, 3), window_bytes={3: 40.0, 4: 60.0})
    assert check(crammed, instance).exposed_s[link] == pytest.approx(0.6)
