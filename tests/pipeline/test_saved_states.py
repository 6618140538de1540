"""States that were saved once must be saved the same, byte for byte, and be read for ever."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from streamrec.config import Pack
from streamrec.pipeline.dataset import Dataset
from streamrec.plan.state.position import Position
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
        '"skip": 0, "origin": 0, "packed": "000OA@B{z>5+DTW@C_OO000000TKWJ2Lh%D07i^=vte@>'
        'HNjPl00000))&3q02S2_"}'
    ),
    "one shard open": (
        '{"version": 3, "fingerprint": {"names": "1777be5f3727062d", "shards": 9, "order"'
        ': "shard", "lanes": 9, "shuffle": true, "seed": 5, "shuffle_window": 4000, "glob'
        'al_batch": 8}, "rank": 0, "world_size": 1, "step": 9, "run_epoch": 0, "epoch": 0'
        ', "skip": 0, "origin": 0, "packed": "000RA`U3$3AOyU;vIhYH0|Nj60SEv92Lh%D1p#Q4YQ#'
        'qa127gY0000005FZW+9`Y%;2F<-sWy<ok~qWk`17Z|;qLy}qxL1mncg5nMv_#(@2>JUjc@"}'
    ),
    "open shards": (
        '{"version": 3, "fingerprint": {"names": "1777be5f3727062d", "shards": 9, "order"'
        ': "shard, 5 at once", "lanes": 2, "shuffle": true, "seed": 5, "shuffle_window": '
        '4000, "global_batch": 8}, "rank": 0, "world_size": 1, "step": 9, "run_epoch": 0,'
        ' "epoch": 0, "skip": 0, "origin": 0, "components": 5, "packed": "000O80s#^L00035'
        '0|5d60VDtb0000000000000RB{{aUA;{gW(A_55k)d>It0S5p92LS;G0|5gA03Zasys`%#1dFUnMIQua'
        '@s~>;1bfkgULXJm0;UKC0_6w?0?-Hp0_+F{0{RF5&1e8{2uK5t0LH2W0E!X-0000??<B(j004kU`#-zM'
        '#$5&g00000002G)&-%v0Q#=3w000#L-~j5u0R"}'
    ),
    "mix": (
        '{"version": 3, "fingerprint": {"names": "3cdc35edbd6a2d36", "shards": 18, "order'
        '": "shard", "lanes": 4, "shuffle": true, "seed": 5, "shuffle_window": 4000, "glo'
        'bal_batch": 8, "mix": "from 0: {\\"a\\": 0.7, \\"b\\": 0.3}; repeat"}, "rank": 0, "w'
        'orld_size": 1, "step": 9, "run_epoch": 0, "epoch": 0, "skip": 0, "origin": 0, "c'
        'omponents": 2, "packed": "000001OW*E009951ONa55&!@I0000A0;&NB0hR;-1_A*CAOy61G8iB'
        'P-WS(z2LjLt2LjLtW(hX~dEZ@d0)Vp}2VjJN0RR91@Q!kPXp$N~h@M{wD%y@}0ssI2(Dip;C`xMW(xe&'
        'z73v58"}'
    ),
    "packs": (
        '{"version": 3, "fingerprint": {"names": "c0c2d0440b116d13", "shards": 4, "order"'
        ': "shard", "lanes": 4, "shuffle": false, "seed": 0, "shuffle_window": 0, "global'
        '_batch": 8, "stages": "Pack(length=256, split=False, bins=16, overlong=\'truncate'
        '\', documents=None, padding=0)"}, "rank": 0, "world_size": 1, "step": 9, "run_epo'
        'ch": 0, "epoch": 0, "skip": 0, "origin": 0, "packed": "00002zz_fdAOHl8aH9|a00000'
        '0TKWK0ssR{o&f"}'
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
        'ch": 0, "skip": 0, "origin": 0, "packed": "1OWyM0>%La0R|uhM)BG_0RaO90RaF35&!@O0_'
        '6yT3fS!c05moOP|PUQGB`8YXaE2J0N*_2lt%)306z`"}'
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
def test_a_state_stays_as_it_is(kind: str, tmp_path: Path) -> None:
    asyncio.run(check(settings(kind, tmp_path), STATES[kind]))


async def check(values: DatasetSettings, state: str) -> None:
    dataset = await Dataset.open(values)
    batches = await receive_all(dataset, most=13)
    saved = batches[8].next_position.to_dict()
    # Later than the others, and ignored by what reads on: the states above have none.
    assert json.loads(saved.pop("ends")) == {"epochs": None}
    assert json.dumps(saved) == state
    resumed = await receive_all(dataset, position=Position.from_dict(json.loads(state)), most=4)
    await dataset.aclose()
    assert identities(resumed) == identities(batches[9:])
