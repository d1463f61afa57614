import pytest

from gradwire.trainer.config import Measured, Range


@pytest.mark.parametrize(
    ("limits", "value", "inside"),
    [
        (Range(ge=1), 1, True),
        (Range(ge=1), 0, False),
        (Range(gt=0), 0, False),
        (Range(le=2), 2, True),
        (Range(lt=2), 2, False),
        (Range(gt=0, lt=1), 0.5, True),
        (Range(ge=0), float("nan"), False),
        (Range(ge=1), None, True),
        (Range(ge=1), "x", True),
    ],
)
def test_range_accepts_what_lies_within(limits: Range, value: object, inside: bool) -> None:
    assert (limits.complaint(value) is None) == inside


def test_range_says_what_it_wants_and_what_it_found() -> None:
    assert Range(gt=0, le=8).complaint(9) == "must be more than 0 and at most 8, found 9"


def test_measured_tells_training_from_wall_clock() -> None:
    assert Measured("progress").complaint("updates") is None
    assert Measured("wall-clock").complaint("minutes") is None
    assert "found minutes" in str(Measured("progress").complaint("minutes"))
    assert "found %" in str(Measured("wall-clock").complaint("%"))
