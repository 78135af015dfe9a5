"""Where the final answer of a solution starts and ends."""

import pytest

from lazytrain.data.answers import extract_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so 3.\nThe answer is: 3", "3"),
        ("The answer is: 1\nno, The answer is: 2", "2"),
        ("... #### 1,234", "1,234"),
        ("#### 5\nand then words", "5"),
        ("the answer is : \\frac{1}{2}.", "\\frac{1}{2}."),
        ("The answer is: 3\n#### 4", "4"),
        ("The answer is:\n  7", "7"),
        ("The answer is 3", None),
        ("The answer is:  ", None),
        ("", None),
    ],
)
def test_extract_answer(text, answer):
    assert extract_answer(text) == answer
