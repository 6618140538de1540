"""The documents of a TFDS folder: ``dataset_info.json`` and ``features.json``."""
