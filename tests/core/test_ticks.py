"""Moments as people read them."""

import time

from hypothesis import given
from hypothesis import strategies as st

from millpond.core.ticks import in_utc


@given(st.floats(min_value=0, max_value=2.5e11))
def test_a_moment_is_shown_as_the_standard_library_shows_it(moment: float) -> None:
    """Leap years and centuries included."""
    told = time.gmtime(moment // 1)
    date = f"{told.tm_year:04}-{told.tm_mon:02}-{told.tm_mday:02}"
    assert f"{date} {told.tm_hour:02}:{told.tm_min:02}:{told.tm_sec:02} UTC" == in_utc(moment)
