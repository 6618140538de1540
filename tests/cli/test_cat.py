from __future__ import annotations

import base64
import os
import uuid
from typing import TYPE_CHECKING, Any

import botocore.session
import numpy as np
import pytest

from streamrec import kernel
from streamrec.devstore import DevStore, FaultRule
from streamrec.formats.examples.example import encode_example
from streamrec.formats.shards.tfrecord import frame
from tests.cli.support import DATA, assert_one_sentence, storage_options, streamrec
from tests.data.expected import SHARDS, decode_feature, shard_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.both_kernels

KINDS, NUMBERS, SIZES = "kinds.tfrecord", "numbers-00000-of-00003.tfrecord", "sizes.tfrecord"
EXAMPLES = [name for name in SHARDS if SHARDS[name] and "features" in SHARDS[name][0]]
CEPH = os.environ.get("STREAMREC_TEST_S3_ENDPOINT")


def assert_record(printed: dict[str, Any], expected: dict[str, Any]) -> None:
    """Check that a line of JSON holds all that TensorFlow read, bit by bit."""
    features = expected["features"]
    assert printed.keys() == features.keys()
    for name, feature in features.items():
        if feature is None:
            assert printed[name] is None
            continue
        values = decode_feature(feature)
        if isinstance(values, list):
            assert [as_bytes(value) for value in printed[name]] == values
        else:
            assert np.array(printed[name], values.dtype).tobytes() == values.tobytes()


def as_bytes(value: str | dict[str, str]) -> bytes:
    return value.encode() if isinstance(value, str) else base64.b64decode(value["base64"])


def assert_records(printed: list[Any], expected: list[Any]) -> None:
    for line, record in zip(printed, expected, strict=True):
        assert_record(line, record)


class TestWhatTensorFlowReads:
    @pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "pictures.tfrecord"])
    def test_whole_shards(self, name: str) -> None:
        outcome = streamrec("cat", DATA / name)
        assert (outcome.code, outcome.err) == (0, "")
        assert_records(outcome.objects, SHARDS[name])

    def test_pictures(self) -> None:
        outcome = streamrec("cat", DATA / "pictures.tfrecord")
        expected = SHARDS["pictures.tfrecord"]
        assert [line["id"] for line in outcome.objects] == [
            record["features"]["id"]["int64_list"] for record in expected
        ]
        jpegs = [base64.b64decode(line["image"][0]["base64"]) for line in outcome.objects]
        assert all(jpeg.startswith(b"\xff\xd8\xff") for jpeg in jpegs)

    def test_three_records_of_a_file(self) -> None:
        assert_records(streamrec("cat", DATA / KINDS, "-n", 3).objects, SHARDS[KINDS][:3])

    def test_three_records_over_http(self, store: DevStore) -> None:
        outcome = streamrec("cat", store.url(f"data/{KINDS}"), "-n", 3)
        assert_records(outcome.objects, SHARDS[KINDS][:3])

    def test_three_records_from_s3(self, store: DevStore, credentials: list[str]) -> None:
        outcome = streamrec("cat", f"s3://data/{KINDS}", "-n", 3, *credentials)
        assert_records(outcome.objects, SHARDS[KINDS][:3])
        assert {record.signed for record in store.statistics.records} == {"query"}

    def test_a_glob_is_read_in_the_order_of_names(self, credentials: list[str]) -> None:
        outcome = streamrec("cat", "s3://data/numbers-*", *credentials)
        assert [line["id"] for line in outcome.objects] == [[i] for i in range(60)]


@pytest.mark.ceph
@pytest.mark.skipif(not CEPH, reason="STREAMREC_TEST_S3_ENDPOINT is not set; see .ci/ceph.sh")
class TestOnCeph:
    @pytest.fixture
    def options(self) -> dict[str, Any]:
        return {"key": "test", "secret": "testsecret", "endpoint_url": CEPH}

    @pytest.fixture
    def bucket(self, options: dict[str, Any]) -> Iterator[str]:
        name = f"streamrec-cli-{uuid.uuid4().hex[:12]}"
        client = botocore.session.Session().create_client(
            "s3",
            endpoint_url=CEPH,
            region_name="us-east-1",
            aws_access_key_id=options["key"],
            aws_secret_access_key=options["secret"],
        )
        client.create_bucket(Bucket=name)
        client.put_object(Bucket=name, Key=KINDS, Body=shard_bytes(KINDS))
        yield name
        client.delete_object(Bucket=name, Key=KINDS)
        client.delete_bucket(Bucket=name)
        client.close()

    def test_three_records(self, bucket: str, options: dict[str, Any]) -> None:
        outcome = streamrec("cat", f"s3://{bucket}/{KINDS}", "-n", 3, *storage_options(options))
        assert_records(outcome.objects, SHARDS[KINDS][:3])

    def test_a_missing_object(self, bucket: str, options: dict[str, Any]) -> None:
        outcome = streamrec("cat", f"s3://{bucket}/nothing", *storage_options(options))
        assert_one_sentence(outcome, 1, f"s3://{bucket}/nothing")

    def test_a_wrong_secret(self, bucket: str, options: dict[str, Any]) -> None:
        wrong = storage_options({**options, "secret": "wrong"})
        assert_one_sentence(streamrec("cat", f"s3://{bucket}/{KINDS}", *wrong), 1, bucket)


class TestSelection:
    def test_raw(self) -> None:
        outcome = streamrec("cat", "--raw", DATA / SIZES)
        payloads = [base64.b64decode(line) for line in outcome.objects]
        assert [len(payload) for payload in payloads] == [r["length"] for r in SHARDS[SIZES]]

    def test_features(self) -> None:
        outcome = streamrec("cat", DATA / NUMBERS, "--features", "name,id", "-n", 1)
        assert outcome.out == '{"name": ["record 0 of shard 0"], "id": [0]}\n'

    def test_a_feature_that_some_records_lack(self) -> None:
        outcome = streamrec("cat", DATA / KINDS, "--features", "pair")
        assert outcome.code == 0
        assert outcome.objects[-1] == {}

    def test_from_a_record_on(self) -> None:
        outcome = streamrec("cat", DATA / NUMBERS, "--record", 17)
        assert_records(outcome.objects, SHARDS[NUMBERS][17:])

    def test_from_a_record_of_a_later_shard_on(self) -> None:
        outcome = streamrec("cat", f"{DATA}/numbers-*", "--record", 38, "-n", 4)
        assert [line["id"] for line in outcome.objects] == [[38], [39], [40], [41]]

    @pytest.mark.parametrize("record", [20, 21, 1000])
    def test_a_record_behind_the_last(self, record: int) -> None:
        outcome = streamrec("cat", DATA / NUMBERS, "--record", record)
        assert_one_sentence(outcome, 1, NUMBERS, f"no record {record}", "there are 20 records")

    def test_from_an_offset_on(self) -> None:
        offset = sum(record["length"] + 16 for record in SHARDS[NUMBERS][:5])
        outcome = streamrec("cat", DATA / NUMBERS, "--offset", offset, "-n", 2)
        assert_records(outcome.objects, SHARDS[NUMBERS][5:7])

    def test_more_than_there_are(self) -> None:
        assert len(streamrec("cat", DATA / NUMBERS, "-n", 1000).objects) == 20

    def test_no_records(self) -> None:
        outcome = streamrec("cat", DATA / "empty.tfrecord", "--features", "any")
        assert outcome == (0, "", "")

    def test_only_what_is_needed_is_read(self, store: DevStore) -> None:
        store.put("data/large.tfrecord", frame(b"\n\0") * 2_000_000)  # 36 MB of small records
        assert streamrec("cat", store.url("data/large.tfrecord"), "-n", 2).out == "{}\n{}\n"
        assert store.statistics.bytes_sent < 8 << 20  # the memory budget of a few records


class TestRefusals:
    """Each of them in one sentence, with its exit code."""

    @pytest.fixture
    def shard(self, tmp_path: Path) -> Path:
        path = tmp_path / "shard.tfrecord"
        path.write_bytes(shard_bytes(NUMBERS))
        return path

    def damage(self, shard: Path, at: int) -> None:
        data = bytearray(shard.read_bytes())
        data[at] ^= 1
        shard.write_bytes(data)

    def second_record(self) -> int:
        return int(SHARDS[NUMBERS][0]["length"]) + 16

    def test_a_flipped_bit_of_a_payload(self, shard: Path) -> None:
        offset = self.second_record()
        self.damage(shard, offset + 20)
        outcome = streamrec("cat", shard)
        words = (str(shard), f"offset {offset}", "record 1", "CRC32C of the record's")
        assert_one_sentence(outcome, 1, *words)
        assert_records(outcome.objects, SHARDS[NUMBERS][:1])

    def test_a_flipped_bit_of_a_length(self, shard: Path) -> None:
        offset = self.second_record()
        self.damage(shard, offset)
        words = (str(shard), f"offset {offset}", "CRC32C of the record's length")
        assert_one_sentence(streamrec("cat", shard), 1, *words)

    def test_a_shard_that_is_cut_short(self, shard: Path) -> None:
        shard.write_bytes(shard.read_bytes()[:-3])
        outcome = streamrec("cat", shard)
        assert_one_sentence(outcome, 1, str(shard), "offset", "cut short")
        assert len(outcome.objects) == 19

    def test_a_length_of_2_to_the_63(self, shard: Path) -> None:
        with shard.open("ab") as file:
            file.write((1 << 63).to_bytes(8, "little") + b"\0" * 8)
        assert_one_sentence(
            streamrec("cat", shard), 1, "offset 2188", "CRC32C of the record's length"
        )

    def test_a_length_of_2_to_the_63_with_its_right_crc(self, shard: Path) -> None:
        length = (1 << 63).to_bytes(8, "little")
        with shard.open("ab") as file:
            file.write(length + kernel.masked_crc32c(length).to_bytes(4, "little"))
        words = ("offset 2188", "length matches its CRC32C", str(1 << 63))
        assert_one_sentence(streamrec("cat", shard), 1, *words)

    def test_a_bit_that_flips_on_the_way(self, store: DevStore) -> None:
        store.faults = [FaultRule(flip_object_at=20)]
        outcome = streamrec("cat", store.url(f"data/{NUMBERS}"))
        assert_one_sentence(outcome, 1, store.url(f"data/{NUMBERS}"), "offset 0", "CRC32C")

    def test_unchecked(self, shard: Path) -> None:
        self.damage(shard, self.second_record() - 1)
        assert streamrec("cat", shard).code == 1
        assert_records(streamrec("cat", shard, "--no-check-crc").objects, SHARDS[NUMBERS])

    def test_a_missing_file(self, tmp_path: Path) -> None:
        assert_one_sentence(streamrec("cat", tmp_path / "none"), 1, str(tmp_path / "none"))

    def test_a_missing_object(self, credentials: list[str]) -> None:
        outcome = streamrec("cat", "s3://data/none", *credentials)
        assert_one_sentence(outcome, 1, "s3://data/none", "no such object")

    def test_a_pattern_without_match(self, credentials: list[str]) -> None:
        outcome = streamrec("cat", "s3://data/none-*", *credentials)
        assert_one_sentence(outcome, 1, "s3://data/none-*", "no object matches")

    def test_a_denied_bucket(self, store: DevStore) -> None:
        wrong = storage_options({**store.storage_options, "key": "wrong"})
        assert_one_sentence(streamrec("cat", f"s3://data/{NUMBERS}", *wrong), 1, "s3://data/")

    def test_an_unknown_scheme(self) -> None:
        assert_one_sentence(streamrec("cat", "s4://data/x"), 2, "'s4'", "did you mean 's3'")

    def test_a_wrong_feature_name(self) -> None:
        outcome = streamrec("cat", DATA / NUMBERS, "--features", "id,nam", "-n", 1)
        assert_one_sentence(outcome, 1, "feature nam", "did you mean 'name'?")

    def test_a_wrong_feature_name_that_is_like_no_other(self) -> None:
        outcome = streamrec("cat", DATA / NUMBERS, "--features", "xyz", "-n", 1)
        assert_one_sentence(outcome, 1, "feature xyz", "there are 'divisors', 'id', 'name'")

    def test_records_that_are_no_examples(self) -> None:
        outcome = streamrec("cat", DATA / SIZES)
        assert_one_sentence(outcome, 1, SIZES, "record 1", "--raw")
        assert outcome.out == "{}\n"

    def test_an_offset_into_several_shards(self) -> None:
        assert_one_sentence(streamrec("cat", f"{DATA}/numbers-*", "--offset", 9), 2, "offset", "3")

    def test_an_offset_that_is_none(self) -> None:
        assert_one_sentence(
            streamrec("cat", DATA / NUMBERS, "--offset", 9), 1, "offset 9", "CRC32C"
        )

    @pytest.mark.parametrize(
        "arguments", [("--raw", "--features=a"), ("--offset=1", "--record=1"), ("-n", "0")]
    )
    def test_contradictions(self, arguments: tuple[str, ...]) -> None:
        assert_one_sentence(streamrec("cat", DATA / NUMBERS, *arguments), 2, "streamrec cat --help")


def test_records_behind_damage_have_the_numbers_of_a_batch(
    tmp_path: Path,
) -> None:
    frames = [bytearray(frame(encode_example({"id": n}))) for n in range(4)]
    frames[1][-1] ^= 1
    shard = tmp_path / "damaged.tfrecord"
    shard.write_bytes(b"".join(frames))
    outcome = streamrec("cat", shard, "--skip-corrupt", "--record", 2, "-n", 1)
    assert outcome.out == '{"id": [2]}\n'
    assert streamrec("cat", shard, "--skip-corrupt", "--no-check-crc").code == 2
    outcome = streamrec("cat", shard, "--skip-corrupt", "--record", 1, "-n", 1)
    assert (outcome.code, outcome.out) == (1, ""), "another record is not the one asked for"
    assert "record 1 is damaged and left out; the next intact one is record 2" in outcome.err
