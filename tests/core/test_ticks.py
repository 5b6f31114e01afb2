"""Moments as people read them."""

import time

from hypothesis import given
from hypothesis import strategies as st

from millpond.core.ticks import in_utc


@given(st.floats(min_value=0, max_value=2.5e11))
def test_a_moment_is_shown_as_the_standard_library_shows_it(moment: float) -> None:
    """Leap years and centuries included."""
    utc = time.gmtime(moment // 1)
    date = f"{utc.tm_year:04}-{utc.tm_mon:02}-{utc.tm_mday:02}"
    assert f"{date} {utc.tm_hour:02}:{utc.tm_min:02}:{utc.tm_sec:02} UTC" == in_utc(moment)
