from __future__ import annotations

import ast
import gc
import re
import subprocess
import sys
import threading
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

import streamrec
from streamrec import errors
from tests.forked_children import in_forked_child

PUBLIC = [
    "Arrays", "Balance", "Batch", "BytesColumn", "BytesList", "Example", "Feature",
    "FeatureList", "FeatureLists", "Features", "FixedLenFeature", "FixedLenSequenceFeature",
    "FloatList", "Image",
    "Int64List", "Pack", "Ragged", "RaggedFeature", "SequenceExample", "ShapedFeature",
    "ShardedWriter", "Sparse", "SparseFeature", "Stream", "TFDSInfo", "TFRecordWriter",
    "VarLenFeature", "Window", "__version__", "connect", "decode_and_crop_jpeg", "decode_image",
    "decode_jpeg", "decode_png",
    "decode_raw", "encode_example", "encode_examples", "encode_jpeg", "encode_png",
    "encode_sequence_example", "encode_sequence_examples", "escape", "infer_features",
    "labels", "merge_index", "mix", "open", "parse_example", "parse_sequence_example",
    "parse_single_example", "parse_single_sequence_example", "parse_tensor", "rank_of",
    "read_records",
    "serialize_tensor", "shards", "start_engine", "take", "tfds_info", "which",
    *errors.__all__,
]  # fmt: skip


def test_all_is_the_public_face() -> None:
    assert sorted(streamrec.__all__) == sorted(PUBLIC)


def test_every_public_name_is_there() -> None:
    for name in PUBLIC:
        assert getattr(streamrec, name) is getattr(streamrec, name)
    assert set(PUBLIC) <= set(dir(streamrec))


def test_the_type_checker_sees_the_same_names() -> None:
    tree = ast.parse(Path(streamrec.__file__).read_text())
    typed = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
        for name in (
            [alias.asname] if alias.asname else import_module(f"{statement.module}").__all__
        )
    }
    assert typed == set(PUBLIC) - {"__version__"}


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'opne'"):
        _ = streamrec.opne


@pytest.mark.parametrize("name", ["TFRecordDataset", "load", "StreamingDataset"])
def test_names_of_other_libraries_have_a_counterpart(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"{name!r}; streamrec\.open\(source, "):
        getattr(streamrec, name)


def test_counterparts_are_named_in_order_and_exist() -> None:
    table = streamrec._ELSEWHERE
    assert list(table) == sorted(table)
    assert not table.keys() & {*PUBLIC, *streamrec._ROOMS}
    for hint in table.values():
        for path in re.findall(r"streamrec((?:\.\w+)+)", hint):
            attrgetter(path[1:])(streamrec)


def test_adapters_need_no_import_of_their_own() -> None:
    code = "import streamrec as sr; print(sr.adapters.jax.as_arrays.__name__)"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "as_arrays"
    with pytest.raises(AttributeError, match="'mxnet'; there are huggingface, jax, keras"):
        _ = streamrec.adapters.mxnet


def test_importing_loads_nothing_heavy() -> None:
    heavy = (
        "{'numpy', 'aiohttp', 'asyncio', 's3fs', 'gcsfs', 'pydantic', 'google.protobuf', 'uvloop'}"
    )
    code = f"import sys, streamrec; print(sorted({heavy} & sys.modules.keys()))"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("engine", "unneeded"),
    [
        (
            "thread",
            "streamrec.feeder.client.client streamrec.wire google.protobuf "
            "streamrec.feeder.access.access streamrec.formats.tfds.dataset_info "
            "streamrec.formats.shards.key_index streamrec.plan.state.rank_deal",
        ),
        ("process", "streamrec.pipeline.run streamrec.stores streamrec.feeder.client.healing"),
    ],
)
def test_a_first_batch_imports_what_reads_it_alone(
    engine: str, unneeded: str, tmp_path: Path
) -> None:
    """What is imported makes a program wait, whether the program needs it or not."""
    with streamrec.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        writer.write({"x": 1})
    others = (
        "aiohttp botocore fsspec s3fs gcsfs PIL cloudpickle torch streamrec.formats.images.image"
    )
    path = tmp_path / "program.py"
    path.write_text(f"""
import sys
import threading
import streamrec as sr

if __name__ == "__main__":
    features = {{"x": sr.FixedLenFeature((), "int64")}}
    source = {str(tmp_path / "*.tfrecord")!r}
    with sr.open(source, features, batch_size=1, engine={engine!r}) as stream:
        next(iter(stream))
    unneeded = "{unneeded} {others} pydantic streamrec.config.daemon"
    print(sorted({{*unneeded.split()}} & sys.modules.keys()))
""")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", path], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("needed", "unneeded"),
    [
        (
            "streamrec.feeder.engine.engine_process",
            "aiohttp botocore fsspec pydantic rich tomllib streamrec.config.daemon",
        ),
        (
            "streamrec.stores.s3.s3_store",
            "aiobotocore botocore fsspec pydantic s3fs streamrec.stores.s3.s3_sdk",
        ),
        ("streamrec.stores.gcs.gcs_store", "fsspec gcsfs grpc pydantic requests google.auth"),
        ("streamrec.cli.program", "numpy pydantic streamrec.sources streamrec.datasets"),
    ],
)
def test_what_a_start_waits_for_imports_no_more(needed: str, unneeded: str) -> None:
    """What a store needs to sign a first request is held by the tests of its signer."""
    code = f"import sys, {needed}; print(sorted({{*{unneeded.split()}}} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


SLOW = """
import threading

begun, may_end = threading.Event(), threading.Event()
"""
WAITS = """
import {}

{}.begun.set()
{}.may_end.wait()
"""


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_process_forked_during_an_import_collects_garbage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signs, waits = f"signs_{tmp_path.name}", f"waits_{tmp_path.name}"
    (tmp_path / f"{signs}.py").write_text(SLOW)
    (tmp_path / f"{waits}.py").write_text(WAITS.format(signs, signs, signs))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(streamrec._HOME_OF, "begun", waits)
    events = import_module(signs)
    thread = threading.Thread(target=hasattr, args=(streamrec, "begun"))
    thread.start()
    try:
        assert events.begun.wait(60)
        assert not gc.isenabled()
        assert in_forked_child(gc.isenabled)
    finally:
        events.may_end.set()
        thread.join()
    assert gc.isenabled()
    assert in_forked_child(gc.isenabled)
