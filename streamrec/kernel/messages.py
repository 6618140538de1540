"""The protobuf messages of ``tf.train.Example`` and ``SequenceExample``.

Sources: tensorflow/core/example/feature.proto and example.proto.
"""

from __future__ import annotations

from streamrec.values.message_schema import Field, Messages

MESSAGES = Messages(
    "tensorflow",
    {
        "BytesList": (Field("repeated bytes", "value", 1),),
        "FloatList": (Field("repeated float", "value", 1),),
        "Int64List": (Field("repeated int64", "value", 1),),
        "Feature": (
            Field("BytesList", "bytes_list", 1, oneof="kind"),
            Field("FloatList", "float_list", 2, oneof="kind"),
            Field("Int64List", "int64_list", 3, oneof="kind"),
        ),
        "Features": (Field("map<string, Feature>", "feature", 1),),
        "FeatureList": (Field("repeated Feature", "feature", 1),),
        "FeatureLists": (Field("map<string, FeatureList>", "feature_list", 1),),
        "Example": (Field("Features", "features", 1),),
        "SequenceExample": (
            Field("Features", "context", 1),
            Field("FeatureLists", "feature_lists", 2),
        ),
    },
)
"""The message classes by name."""
