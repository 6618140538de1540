from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import ConfigError
from streamrec.pipeline.terms.memory_needs import MemoryNeeds

MIB = 1 << 20

needs = st.builds(
    MemoryNeeds,
    lanes=st.integers(1, 500),
    sublanes=st.integers(1, 500),
    packs=st.integers(0, 1 << 30),
    windows=st.integers(0, 1 << 30),
    near=st.booleans(),
)


@given(needs)
def test_the_least_budget_can_be_divided_and_is_hardly_more_than_needed(needs: MemoryNeeds) -> None:
    assert needs.divide(needs.least).speculative >= 0
    if needs.least > 8 * MIB:
        with pytest.raises(ConfigError, match="memory_budget"):
            needs.divide(needs.least - 2 * MIB)
