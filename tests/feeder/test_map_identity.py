from __future__ import annotations

from typing import Any

from streamrec.config import DatasetSettings, validate
from streamrec.feeder.map_identity import with_identity
from streamrec.feeder.sent_functions import identity_of


def doubled(columns: Any) -> Any:
    return {"x": columns["x"] * 2}


def settings(**values: Any) -> DatasetSettings:
    return validate(DatasetSettings, {"source": "x", **values})


def test_a_cache_of_mapped_records_gets_the_digest_of_the_map() -> None:
    for given in (doubled, f"{__name__}:doubled"):
        found = with_identity(settings(map=given, cache={"of": "mapped", "size": "1GiB"}))
        assert found.cache is not None
        assert (found.cache.key, found.cache.size) == (identity_of(doubled), 1 << 30)


def test_all_else_stays_as_it_is() -> None:
    for values in (
        {"map": doubled, "cache": {"of": "mapped", "key": "own"}},
        {"map": doubled, "cache": {"of": "ranges"}},
        {"map": doubled},
    ):
        given = settings(**values)
        assert with_identity(given) is given
