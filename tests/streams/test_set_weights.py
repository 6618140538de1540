"""Weights of a mix that change while it runs, through every engine, feeders and kills."""

from __future__ import annotations

import json
import os
import signal
from contextlib import ExitStack, closing
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

import streamrec as sr
from streamrec.config import DatasetSettings, validate
from streamrec.errors import (
    ConfigError,
    FeederLost,
    MalformedPosition,
    ObjectNotFound,
    OtherDataset,
    OtherOrder,
)
from streamrec.formats.examples.descriptions import describe
from streamrec.formats.shards.tfrecord import frame
from streamrec.plan.state import resume_point
from streamrec.plan.state.fingerprint import check_agreement
from streamrec.streams import handle
from tests.by_day import at_night, is_day
from tests.feeder.support import serving
from tests.streams.test_stream import ENGINES, engine_processes

if TYPE_CHECKING:
    from pathlib import Path

    from streamrec.streams.stream import Stream

FEATURES = {"id": sr.FixedLenFeature((), "int64")}
PLAIN: dict[str, Any] = {
    "batch_size": 8,
    "lanes": 4,
    "seed": 3,
    "shuffle": True,
    "shuffle_window": 800,
    "epochs": None,
    "memory_budget": "32MiB",
    "max_concurrency": 8,
}
CODE, WEB = {"web": 0, "code": 1}, {"web": 1, "code": 0}
CHANGES = int(os.environ.get("STREAMREC_TEST_CHANGES", "3" if is_day() else "10"))
SEED = int(os.environ.get("STREAMREC_TEST_SEED", "5"))


@pytest.fixture
def components(tmp_path: Path) -> dict[str, str]:
    for number, name in enumerate(["code", "web"]):
        (tmp_path / name).mkdir()
        for shard in range(4):
            first = 1000 * number + 100 * shard
            records = [sr.encode_example({"id": first + i}) for i in range(40)]
            (tmp_path / name / f"{shard}.tfrecord").write_bytes(b"".join(map(frame, records)))
    return {name: f"{tmp_path}/{name}/*.tfrecord" for name in ("code", "web")}


def mix_of(components: dict[str, str], **settings: Any) -> Stream:
    weighted = {name: (source, 0.5) for name, source in components.items()}
    return sr.mix(weighted, FEATURES, **{**PLAIN, "engine": "thread", **settings})


def ids(batches: list[Any]) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def known_before(components: dict[str, str], *calls: tuple[int, Any], most: int = 12) -> Any:
    """Return the ids of a run of one rank that knew the changes before it began."""
    with mix_of(components) as stream:
        for step, weights in calls:
            stream.set_weights(weights, from_step=step)
        return ids(list(sr.take(stream, most)))


@pytest.mark.parametrize("engine", list(ENGINES))
def test_weights_change_between_two_loops(components: dict[str, str], engine: str) -> None:
    settings, take = ENGINES[engine]
    stream = mix_of(components, **settings)
    seen = ids(take(stream, 3))
    stream.set_weights(CODE, from_step=5)
    seen += ids(take(stream, 9))
    assert seen == known_before(components, (5, CODE))
    assert seen[:5] == known_before(components)[:5]
    assert all(row < 1000 for batch in seen[9:] for row in batch)
    stream.close()


def test_weights_change_in_a_loop_before_the_next_step(components: dict[str, str]) -> None:
    seen: list[Any] = []
    with mix_of(components) as stream:
        for batch in sr.take(stream, 12):
            seen += ids([batch])
            if len(seen) == 4:
                stream.set_weights(WEB, from_step=4)
    assert seen == known_before(components, (4, WEB))


@pytest.mark.parametrize("stop", [1, 3, 7])
def test_the_change_is_in_the_state(components: dict[str, str], stop: int) -> None:
    """A resumed program does not repeat the call, and has another number of ranks."""
    with mix_of(components) as stream:
        list(sr.take(stream, 1))
        stream.set_weights(CODE, from_step=4)
        list(sr.take(stream, stop - 1))
        state = json.loads(json.dumps(stream.state_dict()))
    expected = known_before(components, (4, CODE))[stop:]
    with mix_of(components) as resumed:
        resumed.load_state_dict(state)
        assert ids(list(sr.take(resumed, 12 - stop))) == expected


def test_a_change_on_resume(components: dict[str, str]) -> None:
    with mix_of(components) as stream:
        seen = ids(list(sr.take(stream, 5)))
        state = stream.state_dict()
    with mix_of(components) as resumed:
        resumed.load_state_dict(state)
        resumed.set_weights(CODE, from_step=5)
        assert seen + ids(list(sr.take(resumed, 7))) == known_before(components, (5, CODE))


def test_a_later_call_takes_the_place_of_changes_to_come(components: dict[str, str]) -> None:
    with mix_of(components) as stream:
        stream.set_weights(CODE, from_step=2)
        stream.set_weights(WEB, from_step=8)
        stream.set_weights(WEB, from_step=4)
        assert ids(list(sr.take(stream, 12))) == known_before(components, (2, CODE), (4, WEB))


def test_restart_keeps_the_change_and_rewind_forgets_it(components: dict[str, str]) -> None:
    with mix_of(components) as stream:
        list(sr.take(stream, 3))
        stream.set_weights(CODE, from_step=3)
        list(sr.take(stream, 2))
        stream.restart()
        assert ids(list(sr.take(stream, 12))) == known_before(components, (3, CODE))
        stream.rewind()
        assert ids(list(sr.take(stream, 12))) == known_before(components)


def test_through_a_feeder(components: dict[str, str]) -> None:
    weights = dict.fromkeys(components, 0.5)
    given = {"source": components, "weights": weights, "features": describe(FEATURES), **PLAIN}
    with serving(validate(DatasetSettings, given)) as place:
        with sr.connect(f"{place}/data") as stream:
            seen = ids(list(sr.take(stream, 3)))
            stream.set_weights(CODE, from_step=5)
            seen += ids(list(sr.take(stream, 4)))
            state = json.loads(json.dumps(stream.state_dict()))
        with sr.connect(f"{place}/data") as resumed:
            resumed.load_state_dict(state)
            assert seen + ids(list(sr.take(resumed, 5))) == known_before(components, (5, CODE))
            resumed.set_weights({"web": 1, "books": 1}, from_step=20)
            with pytest.raises(ConfigError, match="names books, web from step 20 on; name every"):
                next(resumed)


def test_replicas_share_a_reading_again(components: dict[str, str]) -> None:
    weights = dict.fromkeys(components, 0.5)
    given = {"source": components, "weights": weights, "features": describe(FEATURES), **PLAIN}
    with serving(validate(DatasetSettings, given)) as place, ExitStack() as stack:
        streams = [
            stack.enter_context(sr.connect(f"{place}/data", replicas=True)) for _ in range(2)
        ]
        seen = [ids(list(sr.take(stream, 3))) for stream in streams]
        for stream in streams:
            stream.set_weights(CODE, from_step=4)
        for own, stream in zip(seen, streams, strict=True):
            own += ids(list(sr.take(stream, 9)))
        assert seen == [known_before(components, (4, CODE))] * 2


def test_a_state_before_the_call_has_the_change(components: dict[str, str]) -> None:
    """A loader that has looked ahead saves the place of an earlier batch."""
    with mix_of(components) as stream:
        list(sr.take(stream, 1))
        ahead = handle.of(stream)
        mark = ahead.mark()
        list(sr.take(stream, 2))
        stream.set_weights(CODE, from_step=4)
        state = ahead.state_at(mark)
    with mix_of(components) as resumed:
        resumed.load_state_dict(state)
        assert ids(list(sr.take(resumed, 11))) == known_before(components, (4, CODE))[1:]


class TestJoining:
    """A third component joins a mix of two."""

    ALL: ClassVar = {"web": 0.2, "code": 0.2, "books": 0.6}

    @pytest.fixture
    def books(self, tmp_path: Path) -> str:
        """Write fewer shards than there are lanes, whose name comes before the others'."""
        for shard in range(2):
            records = [sr.encode_example({"id": 2000 + 100 * shard + i}) for i in range(40)]
            (tmp_path / f"books-{shard}.tfrecord").write_bytes(b"".join(map(frame, records)))
        return f"{tmp_path}/books-*.tfrecord"

    def of_three(self, components: dict[str, str], books: str, **settings: Any) -> Stream:
        weighted = {name: (source, 0.5) for name, source in components.items()}
        given = {**PLAIN, "engine": "thread", **settings}
        return sr.mix({**weighted, "books": (books, 0)}, FEATURES, **given)

    def known_before(self, components: dict[str, str], books: str) -> Any:
        with self.of_three(components, books) as stream:
            stream.set_weights(self.ALL, from_step=5)
            return ids(list(sr.take(stream, 16)))

    @pytest.mark.parametrize("lanes", ["auto", 4])
    def test_a_component_without_weight_changes_nothing(
        self, components: dict[str, str], books: str, lanes: Any
    ) -> None:
        with self.of_three(components, books, lanes=lanes) as stream:
            seen = ids(list(sr.take(stream, 12)))
        with mix_of(components, lanes=lanes) as stream:
            assert seen == ids(list(sr.take(stream, 12)))

    @pytest.mark.parametrize("engine", ENGINES)
    def test_it_is_named_in_the_call(
        self, components: dict[str, str], books: str, engine: str
    ) -> None:
        settings, take = ENGINES[engine]
        stream = mix_of(components, **settings)
        seen = ids(take(stream, 3))
        stream.set_weights(self.ALL, from_step=5, sources={"books": books})
        seen += ids(take(stream, 7))
        state = json.loads(json.dumps(stream.state_dict()))
        stream.close()
        with self.of_three(components, books) as resumed:
            resumed.load_state_dict(state)
            seen += ids(list(sr.take(resumed, 6)))
        assert seen == self.known_before(components, books)
        assert any(row >= 2000 for batch in seen for row in batch)

    @pytest.mark.parametrize("engine", ENGINES)
    def test_it_is_named_at_the_resume(
        self, components: dict[str, str], books: str, engine: str
    ) -> None:
        states, seen = [], []
        for rank in range(2):
            with mix_of(components, rank=rank, world_size=2, batch_size=4) as stream:
                seen.append(ids(list(sr.take(stream, 4))))
                states.append(stream.state_dict())
        before = [sorted(a + b) for a, b in zip(*seen, strict=True)]
        settings, take = ENGINES[engine]
        resumed = self.of_three(components, books, **settings)
        resumed.load_state_dict(states)
        resumed.set_weights(self.ALL, from_step=5)
        after = [sorted(batch) for batch in ids(take(resumed, 12))]
        resumed.close()
        expected = [sorted(batch) for batch in self.known_before(components, books)]
        assert before + after == expected

    def test_through_a_feeder_that_has_it(self, components: dict[str, str], books: str) -> None:
        with mix_of(components) as stream:
            seen = ids(list(sr.take(stream, 4)))
            state = stream.state_dict()
        sources, weights = {**components, "books": books}, {"web": 0.5, "code": 0.5, "books": 0}
        given = {"source": sources, "weights": weights, "features": describe(FEATURES), **PLAIN}
        with serving(validate(DatasetSettings, given)) as place:
            with sr.connect(f"{place}/data") as resumed:
                resumed.load_state_dict(state)
                resumed.set_weights(self.ALL, from_step=5)
                seen += ids(list(sr.take(resumed, 12)))
                with pytest.raises(ConfigError, match="name it in the feeder's configuration"):
                    resumed.set_weights(self.ALL, from_step=90, sources={"more": books})
        assert seen == self.known_before(components, books)

    def test_its_source_is_needed_then(self, components: dict[str, str], books: str) -> None:
        with self.of_three(components, books) as stream:
            list(sr.take(stream, 2))
            state = stream.state_dict()
        with mix_of(components) as resumed:
            resumed.load_state_dict(state)
            with pytest.raises(OtherDataset, match=r"components books, .* {'books': \(url, 0"):
                next(resumed)

    def test_other_shards_are_refused(self, components: dict[str, str], books: str) -> None:
        with mix_of(components) as stream:
            list(sr.take(stream, 2))
            state = stream.state_dict()
        with self.of_three({**components, "web": books}, books) as other:
            other.load_state_dict(state)
            with pytest.raises(OtherDataset, match="shards other than"):
                next(other)

    def test_a_name_that_is_there(self, components: dict[str, str], books: str) -> None:
        with (
            mix_of(components) as stream,
            pytest.raises(ConfigError, match="has a source for web already"),
        ):
            stream.set_weights(CODE, from_step=4, sources={"web": books})

    @pytest.mark.parametrize(
        ("sources", "message"),
        [
            (["books"], "sources is .'books'.; give a mapping from names to URLs"),
            ({"books": []}, "the setting 'source' names no shard; [^;]*$"),
            ({"books": "", "": "x"}, "the setting 'source' names no shard; [^;]*$"),
            ({"books": 5}, "the source is an int, which cannot name shards"),
        ],
    )
    def test_sources_that_are_wrong(
        self, components: dict[str, str], sources: Any, message: str
    ) -> None:
        with mix_of(components) as stream:
            with pytest.raises(ConfigError, match=message):
                stream.set_weights(self.ALL, from_step=2, sources=sources)
            assert len(list(sr.take(stream, 3))) == 3

    def test_a_source_that_is_not_found_can_be_given_again(
        self, components: dict[str, str], books: str
    ) -> None:
        with mix_of(components) as stream:
            seen = ids(list(sr.take(stream, 3)))
            stream.set_weights(self.ALL, from_step=5, sources={"books": f"{books}-not-there"})
            with pytest.raises(ObjectNotFound, match="-not-there"):
                next(stream)
            for _ in range(2):
                stream.set_weights(self.ALL, from_step=5, sources={"books": books})
            seen += ids(list(sr.take(stream, 13)))
        assert seen == self.known_before(components, books)

    def test_a_call_that_is_refused_adds_nothing(
        self, components: dict[str, str], books: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(resume_point, "MOST_CHANGES", 1)
        with mix_of(components) as stream:
            stream.set_weights(CODE, from_step=1)
            with pytest.raises(MalformedPosition, match="have changed 1 times"):
                stream.set_weights(self.ALL, from_step=2, sources={"books": books})
            with pytest.raises(ConfigError, match="name every component: code, web"):
                stream.set_weights(self.ALL, from_step=1)


class TestRanks:
    def test_ranks_that_differ_are_told_before_the_first_batch(
        self, components: dict[str, str]
    ) -> None:
        with ExitStack() as stack:
            streams = [mix_of(components, rank=r, world_size=2, batch_size=4) for r in (0, 1)]
            streams[1].set_weights(CODE, from_step=7)
            summaries = [handle.of(stack.enter_context(stream)).summary() for stream in streams]
        message = r"""changes of weights is '' in process 0 and '\[\[7, {"code": 1.0, "web": 0"""
        with pytest.raises(ConfigError, match=message):
            check_agreement(summaries)

    def test_states_of_ranks_that_differ_are_not_merged(self, components: dict[str, str]) -> None:
        states = []
        for rank in range(2):
            with mix_of(components, rank=rank, world_size=2, batch_size=4) as stream:
                list(sr.take(stream, 2))
                if rank:
                    stream.set_weights(CODE, from_step=7)
                states.append(stream.state_dict())
        with mix_of(components) as merged:
            merged.load_state_dict(states)
            with pytest.raises(OtherOrder, match=r"other changes of the weights .* on all ranks"):
                next(merged)


class TestRefusals:
    @pytest.mark.parametrize("step", [True, 1 << 48])
    def test_what_is_not_a_step(self, components: dict[str, str], step: int) -> None:
        stream = mix_of(components)
        with pytest.raises(ConfigError, match=r"from_step is .*; give a number from 0 to 2814749"):
            stream.set_weights(CODE, from_step=step)

    def test_a_step_that_was_taken(self, components: dict[str, str]) -> None:
        with mix_of(components) as stream:
            list(sr.take(stream, 3))
            with pytest.raises(ConfigError, match=r"step 2 was taken .* can change is 3"):
                stream.set_weights(CODE, from_step=2)

    @pytest.mark.parametrize(
        ("weights", "message"),
        [
            ({"web": 1}, "names web from step 4 on; name every component: code, web"),
            ({"web": 0, "code": 0}, "which cannot be divided"),
            ({"web": -1, "code": 2}, "which cannot be divided"),
            ({"web": "1", "code": 2}, "give a mapping from names to numbers"),
            ([1, 2], "give a mapping from names to numbers"),
        ],
    )
    def test_weights_of_no_mix(
        self, components: dict[str, str], weights: Any, message: str
    ) -> None:
        stream = mix_of(components)
        with pytest.raises(ConfigError, match=message):
            stream.set_weights(weights, from_step=4)

    def test_a_stream_of_one_source(self, components: dict[str, str]) -> None:
        stream = sr.open(components["web"], batch_size=2)
        with pytest.raises(ConfigError, match=r"one source only; open several with streamrec\.mix"):
            stream.set_weights({"web": 1}, from_step=4)


class Job:
    """Ranks that train, change weights at given steps, save, are killed, and begin again."""

    def __init__(self, components: dict[str, str], calls: dict[int, Any], engine: str) -> None:
        self.components, self.calls, self.engine = components, calls, engine
        self.seen: dict[int, list[int]] = {}
        self.states: list[Any] = []
        self.streams: list[Stream] = []
        self.step = 0

    def begin(self, world_size: int) -> None:
        """Drop all ranks, and begin as many from the states that were saved last."""
        self.end()
        where: dict[str, Any] = {"world_size": world_size, "batch_size": 8 // world_size}
        self.streams = [
            mix_of(self.components, rank=rank, engine=self.engine, **where)
            for rank in range(world_size)
        ]
        for stream in self.streams if self.states else []:
            stream.load_state_dict(json.loads(json.dumps(self.states)))
        self.step = self.states[0]["step"] if self.states else 0

    def end(self) -> None:
        for stream in self.streams:
            stream.close()

    def train(self) -> None:
        """Take a step of all ranks, and compare it with what came before in its place."""
        if self.step in self.calls:
            for stream in self.streams:
                from_step, weights = self.calls[self.step]
                stream.set_weights(weights, from_step=from_step)
        parts = [ids([self._next(stream)])[0] for stream in self.streams]
        rows = sorted(row for part in parts for row in part)
        assert self.seen.setdefault(self.step, rows) == rows
        self.step += 1

    def save(self) -> None:
        self.states = [stream.state_dict() for stream in self.streams]

    @staticmethod
    def _next(stream: Stream) -> Any:
        while True:
            try:
                return next(stream)
            except FeederLost:
                stream.close()


@pytest.mark.timeout(60 + 8 * CHANGES)  # an engine process starts after each kill
@pytest.mark.parametrize("engine", ["thread", at_night("process")])
def test_changes_kills_and_resumes_of_four_ranks(components: dict[str, str], engine: str) -> None:
    random, steps = Random(SEED), 4 * CHANGES
    calls: dict[int, Any] = {
        step: (step + random.randrange(5), {"web": random.random(), "code": random.random()})
        for step in random.sample(range(steps), CHANGES)
    }
    job = Job(components, calls, engine)
    with closing(ExitStack()) as stack:
        stack.callback(job.end)
        job.begin(4)
        while job.step < steps:
            job.train()
            chance = random.random()
            running = sorted(engine_processes()) if engine == "process" else []
            if chance < 0.2:
                job.save()
            elif chance < 0.3:
                job.begin(random.choice([4, 4, 2, 1]))
            elif chance < 0.5 and running:
                os.kill(random.choice(running), signal.SIGKILL)
    ordered = [calls[step] for step in sorted(calls)]
    whole = known_before(components, *ordered, most=steps)
    assert [job.seen[step] for step in range(steps)] == [sorted(batch) for batch in whole]
