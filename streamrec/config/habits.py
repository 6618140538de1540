"""Names of other libraries for settings and methods, and what stands for each here."""

from __future__ import annotations

_READS_AHEAD = "a stream reads ahead by itself; leave it out"
_ORDER = "the order follows from lanes and never from how many are read at once; leave it out"
_SOURCE = "it is the first argument, the source"
_OF_A_STORE = "it is an option of the store: storage_options={'"
_WINDOW = "give shuffle=True, and shuffle_window in bytes"

HABITS = {
    "Bucket": _SOURCE + ", as in s3://bucket/train-*.tfrecord",
    "Key": _SOURCE + ", as in s3://bucket/train-*.tfrecord",
    "anon": _OF_A_STORE + "anon': True}",
    "aws_access_key_id": _OF_A_STORE + "key': …}",
    "aws_secret_access_key": _OF_A_STORE + "secret': …}",
    "batch": "it is batch_size",
    "block_length": "lanes give one record in turn, and batches mix them; leave it out",
    "bs": "it is batch_size",
    "bsz": "it is batch_size",
    "bucket": _SOURCE + ", as in s3://bucket/train-*.tfrecord",
    "buffer_size": _WINDOW,
    "cache_limit": "it is cache, a size or a folder",
    "chunksize": "it is batch_size",
    "collate_fn": "it is transform, a function from a batch to its columns",
    "compression_type": "it is compression",
    "cycle_length": _ORDER,
    "deterministic": "it is ordered",
    "download_retry": "retries are limited by stall_timeout alone",
    "drop_last": 'it is remainder="drop"',
    "drop_remainder": 'it is remainder="drop"',
    "endpoint_url": _OF_A_STORE + "endpoint_url': …}",
    "file_pattern": _SOURCE,
    "filenames": _SOURCE,
    "files": _SOURCE,
    "interleave": _ORDER,
    "local": "it is cache, a folder for what was read",
    "map_fn": "it is map, a function from columns to columns",
    "nrows": "call streamrec.take(stream, count)",
    "num_canonical_nodes": "it is lanes, which every world size must divide",
    "num_epochs": "it is epochs",
    "num_parallel_calls": _READS_AHEAD,
    "num_parallel_reads": _READS_AHEAD,
    "num_replicas": "it is world_size",
    "num_shards": "it is world_size, and shard_index is rank",
    "num_workers": _READS_AHEAD,
    "path": _SOURCE,
    "paths": _SOURCE,
    "persistent_workers": _READS_AHEAD,
    "pin_memory": "streamrec.adapters.torch.as_loader pins the memory, with device=",
    "predownload": "it is memory_budget, in bytes",
    "prefetch_factor": _READS_AHEAD,
    "profile_name": _OF_A_STORE + "profile': …}",
    "reader_num_threads": _READS_AHEAD,
    "region_name": _OF_A_STORE + "client_kwargs': {'region_name': …}}",
    "remote": _SOURCE,
    "repeat": "it is epochs, and None repeats for ever",
    "sampler": "it is shuffle, or the weights of streamrec.mix",
    "shard_index": "it is rank",
    "shuffle_block_size": _WINDOW,
    "shuffle_buffer": _WINDOW,
    "shuffle_buffer_size": _WINDOW,
    "shuffle_seed": "it is seed",
    "shuffle_size": _WINDOW,
    "transforms": "it is map, a function from columns to columns",
    "url": _SOURCE,
    "urls": _SOURCE,
    "worker_init_fn": _READS_AHEAD,
}
"""By name, half a sentence: what to write instead."""

METHODS = {
    "as_numpy_iterator": "a stream is an iterable, and its columns are NumPy arrays",
    "batch": "give batch_size=",
    "cache": "give cache=",
    "filter": "give filter=, a function from columns to a mask",
    "interleave": "streamrec.open reads shards side by side; give lanes=",
    "map": "give map=, a function from columns to columns",
    "padded_batch": "give batch_size=, and FixedLenSequenceFeature in features",
    "repeat": "give epochs=, where None repeats for ever",
    "shard": "give rank= and world_size=",
    "shuffle": _WINDOW,
    "skip": "call seek(step=...), with an index",
    "take": "call streamrec.take(stream, count)",
}
"""By the name of a method of ``tf.data``, half a sentence: what to write instead."""
