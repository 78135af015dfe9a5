"""Among equal schedules one is canonical; none that is worse, or fixed, is touched."""

from __future__ import annotations

from lazytrain.schedule.check import check
from lazytrain.schedule.instance import Bandwidth, Budget, Fixed
from lazytrain.schedule.plan import LETTERS, Home
from lazytrain.schedule.settle import settle
from lazytrain.schedule.solve import solve


def settled(instance, letters):
    """Return the canonical schedule of a row of letters."""
    homes = settle(instance, [LETTERS[letter] for letter in letters])
    return "".join({home: letter for letter, home in LETTERS.items()}[h] for h in homes)


FREE = {
    "lambda_z_s": 0.0,
    "lambda_c_s": 0.0,
    "lambda_n_s": 0.0,
    "bandwidth": Bandwidth(d2h=1e6, h2d=1e6, nvme_write=1e6, nvme_read=1e6),
}


def test_slow_tiers_take_what_is_written_first_and_read_last(make_instance):
    instance = make_instance(**FREE, budget_bytes=Budget(gpu=400, cpu=100, nvme=100))
    assert settled(instance, "GRGCGNG") == "NRCGGGG"


def test_a_faster_tier_with_room_is_taken(make_instance):
    instance = make_instance(**FREE, budget_bytes=Budget(gpu=400, cpu=100, nvme=200))
    assert settled(instance, "NNRRRRG") == "GGRRRRG"
    tight = make_instance(**FREE, budget_bytes=Budget(gpu=100, cpu=100, nvme=200))
    assert settled(tight, "NNRRRRG") == "CNRRRRG"


def test_a_thousandth_of_a_second_is_no_tie(make_instance):
    """Links are full: each byte that moves waits, and boundary 0 has one byte more."""
    values = {
        "layers": 2,
        "boundary_bytes": (101, 100, 100),
        "window_write_s": (1.0, 1.0),
        "window_read_s": (1.0, 1.0),
        "mandatory_d2h_bytes": (1000, 1000),
        "mandatory_h2d_bytes": (1000, 1000),
        "bandwidth": Bandwidth(d2h=1000, h2d=1000, nvme_write=1, nvme_read=1),
        "budget_bytes": Budget(gpu=201, cpu=200, nvme=0),
    }
    assert settled(make_instance(**values), "GCG") == "GCG"
    # Of equal size they tie, and the first goes to the slower tier.
    equal = values | {"boundary_bytes": (100, 100, 100)}
    assert settled(make_instance(**equal), "GCG") == "CGG"


def test_a_fixed_set_stays_as_it_is_however_much_room_there_is(make_instance):
    roomy = Budget(gpu=700, cpu=700, nvme=700)
    fixed = make_instance(**FREE, budget_bytes=roomy, fixed=Fixed(gpu=(0, 3, 6)))
    plan = solve(fixed)
    assert [i for i, home in enumerate(plan.homes) if home == Home.GPU] == [0, 3, 6]
    assert Home.CPU in plan.homes
    assert check(plan, fixed).violations == ()
    # Between the other tiers it still prefers the faster one.
    assert settled(fixed, "GNCGRRG") == "GCCGRRG"
