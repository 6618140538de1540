"""Names of other libraries for settings and methods, and what stands for each here."""

from __future__ import annotations

_READS_AHEAD = "a stream reads ahead by itself; leave it out"
_LANES = "it is lanes, which give one record in turn; how many requests are sent does not follow"
_KEEPS = "it is cache, a folder for what was read"
_RANKS = "each rank reads its own part: give rank and world_size"
_TRANSFORM = "it is map, a function from columns to columns"
_SOURCE = "it is the first argument, the source"
_OF_A_STORE = "it is an option of the store: storage_options={'"
_WINDOW = "give shuffle=True, and shuffle_window in bytes"

OF_A_CLIENT = {
    "audit": "the log has what a training loop takes; give audit to streamrec.connect",
}
"""Settings of streams that a feeder does not have, and the reason."""

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
    "cache_dir": _KEEPS,
    "cache_limit": "it is cache, a size or a folder",
    "chunksize": "it is batch_size",
    "collate_fn": "it is transform, a function from a batch to its columns",
    "compression_type": "it is compression",
    "cycle_length": _LANES,
    "deterministic": "for deterministic=False use ordered=False",
    "download_retry": "retries are limited by stall_timeout alone",
    "download_timeout": "it is stall_timeout, in seconds",
    "drop_last": 'it is remainder="drop"',
    "drop_remainder": 'it is remainder="drop"',
    "endpoint_url": _OF_A_STORE + "endpoint_url': …}",
    "epoch_size": "it is steps_per_epoch, in batches",
    "file_pattern": _SOURCE,
    "filenames": _SOURCE,
    "files": _SOURCE,
    "handler": 'it is on_corrupt="skip", with corrupt_budget',
    "interleave": _LANES,
    "keep_zip": "the cache holds ranges as they are stored; leave it out",
    "length_struct": "it is pack=streamrec.Pack(lengths)",
    "local": _KEEPS,
    "map_fn": _TRANSFORM,
    "nodesplitter": _RANKS,
    "nrows": "call streamrec.take(stream, count)",
    "num_canonical_nodes": "it is lanes, which every world size must divide",
    "num_epochs": "it is epochs",
    "num_packing_bins": "it is bins in pack=streamrec.Pack(lengths, bins=…)",
    "num_parallel_calls": _READS_AHEAD,
    "num_parallel_reads": _LANES,
    "num_replicas": "it is world_size",
    "num_shards": "it is world_size, and shard_index is rank",
    "num_workers": _READS_AHEAD,
    "partial": 'for partial=False use remainder="drop"',
    "path": _SOURCE,
    "paths": _SOURCE,
    "persistent_workers": _READS_AHEAD,
    "pin_memory": "streamrec.adapters.torch.as_loader pins the memory, with device=",
    "predownload": "it is memory_budget, in bytes",
    "prefetch_factor": _READS_AHEAD,
    "profile_name": _OF_A_STORE + "profile': …}",
    "read_options": _READS_AHEAD,
    "reader_num_threads": _READS_AHEAD,
    "region_name": _OF_A_STORE + "client_kwargs': {'region_name': …}}",
    "remote": _SOURCE,
    "repeat": "it is epochs, and None repeats for ever",
    "replication": "give the ranks of one data-parallel group the same rank",
    "resampled": "give shuffle=True and epochs=None, which draw without replacement",
    "sampler": "it is shuffle, or the weights of streamrec.mix",
    "shard_index": "it is rank",
    "shardshuffle": "give shuffle=True; the window is shuffle_window, in bytes",
    "shuffle_block_size": _WINDOW,
    "shuffle_buffer": _WINDOW,
    "shuffle_buffer_size": _WINDOW,
    "shuffle_seed": "it is seed",
    "shuffle_size": _WINDOW,
    "streams": "call streamrec.mix, which takes sources and their weights",
    "transforms": _TRANSFORM,
    "url": _SOURCE,
    "urls": _SOURCE,
    "validate_hash": "it is check_crc, which is True unless you say False",
    "window_size": _WINDOW,
    "worker_count": _READS_AHEAD,
    "worker_init_fn": _READS_AHEAD,
    "workersplitter": _RANKS,
}
"""By name, half a sentence: what to write instead."""

METHODS = {
    "as_numpy_iterator": "a stream is an iterable, and its columns are NumPy arrays",
    "batch": "give batch_size=",
    "batched": "give batch_size=",
    "bucket_by_sequence_length": "give length_buckets=, with batch_size=",
    "cache": "give cache=",
    "filter": "give filter=, a function from columns to a mask",
    "get_state": "call state_dict()",
    "interleave": "streamrec.open reads shards side by side; give lanes=",
    "map": "give map=, a function from columns to columns",
    "mp_prefetch": "a stream reads ahead by itself; leave it out",
    "padded_batch": "give batch_size=, and FixedLenSequenceFeature in features",
    "ragged_batch": "give batch_size=",
    "random_map": "give map=, a function with a second parameter rng",
    "repeat": "give epochs=, where None repeats for ever",
    "select": "give filter=, a function from columns to a mask",
    "set_state": "call load_state_dict(state)",
    "shard": "give rank= and world_size=",
    "shuffle": _WINDOW,
    "slice": "call streamrec.take(stream, count)",
    "take": "call streamrec.take(stream, count)",
    "to_iter_dataset": "a stream is an iterable, and reads ahead by itself; leave it out",
    "to_tuple": "name the features, and take them from each row",
    "with_epoch": "give steps_per_epoch=",
    "with_options": "give ordered=False for deterministic = False; leave it out elsewhere",
}
"""By the name of a method of ``tf.data``, WebDataset or Grain: what to write instead."""
