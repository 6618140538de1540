"""States that were saved once must be saved the same, byte for byte, and be read for ever."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.config import Pack
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.position import Position
from tests.pipeline import user_functions
from tests.pipeline.mixes import mix_of
from tests.pipeline.small_datasets import identities, receive_all, settings_of, write, write_index
from tests.pipeline.test_leaving import FEATURES, tokens

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.config import DatasetSettings

SHARDS = tuple(tuple(20 + 7 * (i * k % 13) for i in range(30)) for k in range(1, 10))
SHUFFLE: dict[str, Any] = {"shuffle": True, "seed": 5, "shuffle_window": 4000}
STATES = {
    "in order": (
        '{"version": 3, "fingerprint": {"names": "1777be5f3727062d", "shards": 9, "order"'
        ': "shard", "lanes": 4, "shuffle": false, "seed": 0, "shuffle_window": 0, "global'
        '_batch": 8}, "rank": 0, "world_size": 1, "step": 9, "run_epoch": 0, "epoch": 0, '
        '"skip": 0, "origin": 0, "packed": "000OA@B{z>5&!@I0003J00001O#nuWcK"}'
    ),
    "one shard open": (
        '{"version": 3, "fingerprint": {"names": "1777be5f3727062d", "shards": 9, "order"'
        ': "shard", "lanes": 9, "shuffle": true, "seed": 5, "shuffle_window": 4000, "glob'
        'al_batch": 8}, "rank": 0, "world_size": 1, "step": 9, "run_epoch": 0, "epoch": 0'
        ', "skip": 0, "origin": 0, "packed": "000RA`U3$30RaO80003900001O$7mHm1@LC0|PJ?E&$'
        'LVLq?J"}'
    ),
    "open shards": (
        '{"version": 3, "fingerprint": {"names": "1777be5f3727062d", "shards": 9, "order"'
        ': "shard, 5 at once", "lanes": 2, "shuffle": true, "seed": 5, "shuffle_window": '
        '4000, "global_batch": 8}, "rank": 0, "world_size": 1, "step": 9, "run_epoch": 0,'
        ' "epoch": 0, "skip": 0, "origin": 0, "components": 5, "packed": "000O80s#^L0R#g9'
        '0ssLd0000000000000002?GBC2Lj^(2Ld7j2?5m!00RLB009R90S5yC0|Nj60Zjk_O#lH+00B(^0ZjnS'
        'XaH~sNCS=l#;ODWiV^"}'
    ),
    "mix": (
        '{"version": 3, "fingerprint": {"names": "3cdc35edbd6a2d36", "shards": 18, "order'
        '": "shard", "lanes": 4, "shuffle": true, "seed": 5, "shuffle_window": 4000, "glo'
        'bal_batch": 8, "mix": "from 0: {\\"a\\": 0.7, \\"b\\": 0.3}; repeat"}, "rank": 0, "w'
        'orld_size": 1, "step": 9, "run_epoch": 0, "epoch": 0, "skip": 0, "origin": 0, "c'
        'omponents": 2, "packed": "000001OW*F0Rsd8009yJ00000015)C0SEz>1OWyD0RsR5O#lH+W(hX'
        '~dEZ@d0)Vp}2VjJN0R"}'
    ),
    "packs": (
        '{"version": 3, "fingerprint": {"names": "c0c2d0440b116d13", "shards": 4, "order"'
        ': "shard", "lanes": 4, "shuffle": false, "seed": 0, "shuffle_window": 0, "global'
        '_batch": 8, "stages": "Pack(length=256, split=False, bins=16, overlong=\'truncate'
        '\', documents=None, padding=0)"}, "rank": 0, "world_size": 1, "step": 9, "run_epo'
        'ch": 0, "epoch": 0, "skip": 0, "origin": 0, "packed": "00002zz_fdAOHXW0003J009C3'
        '0Zj"}'
    ),
    "by record": (
        '{"version": 3, "fingerprint": {"names": "1777be5f3727062d", "shards": 9, "order"'
        ': "record, even windows:8f2beec4f40a4725", "lanes": 4, "shuffle": true, "seed": '
        '5, "shuffle_window": 4000, "global_batch": 8}, "rank": 0, "world_size": 1, "step'
        '": 9, "run_epoch": 0, "epoch": 0, "skip": 0, "since": [0, 0]}'
    ),
    "by record, as kept": (
        '{"version": 3, "fingerprint": {"names": "1777be5f3727062d", "shards": 9, "order"'
        ': "record, as kept:8f2beec4f40a4725", "lanes": 4, "shuffle": true, "seed": 5, "s'
        'huffle_window": 4000, "global_batch": 8, "stages": "filter tests.pipeline.user_f'
        'unctions:is_short"}, "rank": 0, "world_size": 1, "step": 9, "run_epoch": 0, "epo'
        'ch": 0, "skip": 0, "origin": 0, "packed": "1OWyM0>%La0R{m90|Ws9009yJ0003^f(qE}00'
        '1;L15if-3I"}'
    ),
}  # fmt: skip


def settings(kind: str, directory: Path) -> DatasetSettings:
    values: dict[str, Any] = {"batch_size": 8, "lanes": 4, "epochs": None}
    if kind == "mix":
        weights = [(0, {"a": 0.7, "b": 0.3})]
        return mix_of(directory, {"a": SHARDS, "b": SHARDS}, weights, **values, **SHUFFLE)
    if kind == "packs":
        return settings_of(tokens(directory), pack=Pack(256), features=FEATURES, **values)
    source = write(directory, SHARDS)
    if kind.startswith("by record"):
        write_index(source, 100)
    more: dict[str, dict[str, Any]] = {
        "in order": {},
        "one shard open": SHUFFLE | {"lanes": 9},
        "open shards": SHUFFLE | {"lanes": 2},
        "by record": SHUFFLE | {"index": True},
        "by record, as kept": SHUFFLE | {"index": True, "filter": user_functions.is_short},
    }
    return settings_of(source, **{**values, **more[kind]})


@pytest.mark.parametrize("kind", STATES)
def test_a_state_stays_as_it_is(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamrec.pipeline.fetch.range_queue.object_tag", lambda _: 77)
    asyncio.run(check(settings(kind, tmp_path), STATES[kind]))


async def check(values: DatasetSettings, state: str) -> None:
    dataset = await Dataset.open(values)
    batches = await receive_all(dataset, most=13)
    assert json.dumps(batches[8].next_position.to_dict()) == state
    resumed = await receive_all(dataset, position=Position.from_dict(json.loads(state)), most=4)
    await dataset.aclose()
    assert identities(resumed) == identities(batches[9:])
