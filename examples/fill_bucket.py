"""Write a few shards into a bucket of S3, or of a store that speaks S3.

``python examples/fill_bucket.py --endpoint-url http://127.0.0.1:9000 s3://bucket/train``

Credentials come from the environment (``AWS_ACCESS_KEY_ID`` and ``AWS_SECRET_ACCESS_KEY``) or from
another place where s3fs finds them. The bucket is made if it does not exist.
"""

from __future__ import annotations

import argparse

import fsspec

import streamrec as sr

SHARDS, RECORDS = 4, 256


def main() -> None:
    parser = argparse.ArgumentParser(description="Write shards of numbers into a bucket.")
    parser.add_argument("url", help="prefix of the shards' names: s3://bucket/train")
    parser.add_argument("--endpoint-url", help="URL of the store, if it is not AWS")
    given = parser.parse_args()

    options = {"endpoint_url": given.endpoint_url} if given.endpoint_url else {}
    filesystem, path = fsspec.url_to_fs(given.url, **options)
    filesystem.makedirs(path.split("/")[0], exist_ok=True)
    for shard in range(SHARDS):
        url = f"{given.url}-{shard:05}-of-{SHARDS:05}.tfrecord"
        with sr.TFRecordWriter(url, storage_options=options) as writer:
            for number in range(shard * RECORDS, (shard + 1) * RECORDS):
                writer.write({"id": number, "text": f"number {number}"})
        print(f"wrote {url}: {writer.records} records, {writer.nbytes} bytes")


if __name__ == "__main__":
    main()
