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
    has_episodes=st.booleans(),
)


@given(needs)
def test_the_least_budget_can_be_divided_and_is_hardly_more_than_needed(needs: MemoryNeeds) -> None:
    assert needs.divide(needs.least).speculative >= 0
    if needs.least > 8 * MIB:
        with pytest.raises(ConfigError, match="memory_budget"):
            needs.divide(needs.least - 2 * MIB)


@given(needs, st.integers(0, 1 << 30))
def test_pictures_of_episodes_have_a_part_of_what_no_run_needs(
    needs: MemoryNeeds, more: int
) -> None:
    plan = needs.divide(needs.least + more)
    assert plan.episodes == (more // 3 if needs.has_episodes else 0)
    assert plan.total + plan.episodes + needs.packs == needs.least + more
