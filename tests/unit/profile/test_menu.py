"""The save levels that a layer profile measures."""

import pytest

from lazytrain.errors import InvalidInput
from lazytrain.profile.menu import MENU, menu_of


def test_levels_come_cheapest_first_and_the_usual_ones_unless_named():
    assert menu_of([]) == MENU
    assert menu_of(["all", "inputs"]) == ("inputs", "all")


@pytest.mark.parametrize("names", [["keep-0.7", "inputs"], ["all"]])
def test_an_unknown_level_or_a_menu_without_inputs_is_refused(names):
    with pytest.raises(InvalidInput, match="level"):
        menu_of(names)
