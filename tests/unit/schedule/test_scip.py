"""What the solver is told, and what is done where its tolerance overfills a tier."""

from __future__ import annotations

from pyscipopt import Model

from lazytrain.schedule import milp, scip
from lazytrain.schedule.instance import Budget
from lazytrain.schedule.plan import Home
from lazytrain.schedule.solve import solve


def test_limits_seed_and_tolerances_reach_the_solver():
    model = Model()
    scip.configure(model, 7.0, 0.25, 3)
    names = ("limits/time", "limits/gap", "randomization/randomseedshift")
    assert [model.getParam(name) for name in names] == [7.0, 0.25, 3]
    for name in ("numerics/feastol", "numerics/dualfeastol"):
        assert model.getParam(name) == 1e-9
    assert not model.getParam("misc/catchctrlc")


def test_a_tier_that_the_program_lets_overflow_is_cut_off_to_the_byte(make_instance):
    """As a tolerance would, the program has one byte more than there is."""
    exact = make_instance(
        boundary_bytes=(100, 101, 102, 103, 104, 105, 106),
        rho_s=(9.0, 1.0, 1.0, 9.0, 1.0, 1.0),
        budget_bytes=Budget(gpu=410, cpu=0, nvme=0),
    )
    loose = exact.model_copy(update={"budget_bytes": Budget(gpu=411, cpu=0, nvme=0)})
    # Boundaries 1 and 4 are the dearest: with both ends they make 411 bytes.
    assert [i for i, home in enumerate(solve(loose).homes) if home == Home.GPU] == [
        *(0, 1, 4, 6)
    ]
    program = milp.build(loose)
    program.model.hideOutput()
    homes, status = scip.optimize(exact, program, "milp")
    assert status == "optimal"
    kept = [i for i, home in enumerate(homes) if home == Home.GPU]
    assert sum(exact.boundary_bytes[i] for i in kept) <= 410
    # Nothing that fits was cut off: what is kept costs as little as can be.
    best = solve(exact).homes
    omitted = {i for i in range(7) if i not in kept}
    assert sum(exact.rho_s[i - 1] for i in omitted) == sum(
        exact.rho_s[i - 1] for i, home in enumerate(best) if home == Home.RECOMPUTE
    )
