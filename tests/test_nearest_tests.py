from __future__ import annotations

import pytest

from tests.nearest_tests import IN_ONE_WORKER, ROOT, nearest_tests

pytestmark = pytest.mark.xdist_group(IN_ONE_WORKER)


def test_the_mirror_comes_first_and_then_the_folder() -> None:
    tests = nearest_tests(ROOT / "streamrec/plan/order/shard_order.py")
    assert tests[0] == "tests/plan/order/test_shard_order.py"
    assert tests[1].startswith("tests/plan/order/")
    assert tests.index("tests/plan/test_evenness.py") < tests.index(
        "tests/feeder/client/test_client.py"
    )


def test_a_file_to_which_no_import_leads_has_the_tests_of_its_room() -> None:
    tests = nearest_tests(ROOT / "streamrec/sources/bert.py")
    assert tests[0] == "tests/sources/test_bert.py"
    assert "tests/sources/test_bert_records.py" in tests


def test_a_folder_without_tests_of_its_own_has_those_of_its_room() -> None:
    tests = nearest_tests(ROOT / "streamrec/adapters/torch/loader.py")
    assert tests[0] == "tests/adapters/test_torch_loader.py"
    assert "tests/adapters/test_torch_training.py" in tests


def test_a_module_that_nothing_imports_has_its_mirror() -> None:
    assert nearest_tests(ROOT / "streamrec/__main__.py")[0] == "tests/test_main.py"


def test_one_of_the_same_name_may_hold_both_kernels() -> None:
    tests = nearest_tests(ROOT / "streamrec/kernel/native/records.py")
    assert tests[0] == "tests/kernel/test_records.py"


def test_the_tests_of_pages_come_last() -> None:
    tests = nearest_tests(ROOT / "streamrec/plan/order/shard_order.py")
    assert tests.index("tests/test_docs.py") > tests.index("tests/feeder/client/test_client.py")
    assert nearest_tests(ROOT / "streamrec/masking.py")[0] == "tests/test_masking.py"
