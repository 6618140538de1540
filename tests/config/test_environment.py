from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from streamrec.config.environment import (
    LAUNCHERS,
    Launcher,
    find_launched_rank,
    find_other_processes,
    local_ranks,
    overrides,
)
from streamrec.config.server_settings import ServerSettings
from streamrec.config.validation import Settings
from streamrec.errors import ConfigError
from tests.support import without_launchers

SETTINGS = Path(__file__, "../../../docs/reference/settings.md").resolve()

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": 1, "OMPI_COMM_WORLD_SIZE": 2}
PMI = {"PMI_RANK": 1, "PMI_SIZE": 2}
TASK = {"SLURM_PROCID": 3, "SLURM_STEP_NUM_TASKS": 4}


@pytest.fixture(autouse=True)
def _nothing_around(monkeypatch: pytest.MonkeyPatch) -> None:
    without_launchers(monkeypatch)


def environment(monkeypatch: pytest.MonkeyPatch, **variables: object) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize(
    "launcher", [one for one in LAUNCHERS if one.sizes and one.name != "a TPU pod"]
)
def test_each_launcher_tells_its_rank(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    rank, size = launcher.rank, launcher.sizes[-1]
    environment(monkeypatch, SLURM_STEP_ID="0", **{rank: 2, size: 3})
    assert find_launched_rank() == (2, 3, f"{rank} and {size}")


@pytest.mark.parametrize(
    "variables", [{"SLURM_PROCID": 0, "SLURM_NTASKS": 4}, {}, {"WORLD_SIZE": 1}]
)
def test_one_process_tells_nothing(
    variables: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch script, an empty environment, and a world of one have no rank."""
    environment(monkeypatch, **variables)
    assert find_launched_rank() is None


WORKERS = {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}
ALONE = {"cluster": {"chief": ["a:1"], "ps": ["b:1", "c:1"]}, "task": {"type": "chief"}}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TF_CONFIG", json.dumps({"cluster": WORKERS, "task": {"type": "worker", "index": 0}})),
        ("CLUSTER_SPEC", json.dumps({"cluster": {"workerpool0": ["a"], "workerpool1": ["b"]}})),
        ("SM_HOSTS", '["algo-1", "algo-2"]'),
        ("JOB_COMPLETION_INDEX", "3"),
    ],
)
def test_variables_that_tell_of_other_processes(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(monkeypatch, **{name: value})
    assert find_launched_rank() is None
    assert find_other_processes() == name


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"TF_CONFIG": "", "SM_HOSTS": "[]", "JOB_COMPLETION_INDEX": "0"},
        {"TF_CONFIG": json.dumps(ALONE), "SM_HOSTS": '["algo-1"]'},
        {"TF_CONFIG": "{", "CLUSTER_SPEC": "[1]", "SM_HOSTS": "9"},
        {"TF_CONFIG": '{"cluster": {"worker": 3}}', "CLUSTER_SPEC": '{"cluster": []}'},
        {"TF_CONFIG": "[" * 200_000},
    ],
)
def test_variables_of_one_process(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(monkeypatch, **variables)
    assert find_other_processes() is None


@pytest.mark.parametrize("step", ["4294967291", "4294967290", "batch", "interactive"])
def test_a_shell_of_slurm_is_not_a_step(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch, SLURM_PROCID=0, SLURM_STEP_NUM_TASKS=4, SLURM_STEP_ID=step)
    environment(monkeypatch, SLURM_NTASKS=4, SLURM_TASKS_PER_NODE="4")
    assert find_launched_rank() is None
    assert local_ranks() == 1


@pytest.mark.parametrize(
    "variables",
    [
        {"PMIX_RANK": 1, "OMPI_COMM_WORLD_RANK": 0, "OMPI_COMM_WORLD_SIZE": 1},
        {"PMIX_RANK": 0, "SLURM_PROCID": 0, "SLURM_STEP_NUM_TASKS": 1},
        {"TPU_WORKER_ID": 0, "TPU_WORKER_HOSTNAMES": "localhost"},
        {"TPU_WORKER_ID": 0, "TPU_WORKER_HOSTNAMES": ""},
    ],
)
def test_a_launcher_of_one_rank_tells_nothing(
    variables: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(monkeypatch, **variables)
    assert find_launched_rank() is None


def test_hosts_of_tpus(monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch, TPU_WORKER_ID=1, TPU_WORKER_HOSTNAMES="a,b,c")
    assert find_launched_rank() == (1, 3, "TPU_WORKER_ID and TPU_WORKER_HOSTNAMES")
    environment(monkeypatch, MEGASCALE_NUM_SLICES=2, MEGASCALE_SLICE_ID=1)
    told = find_launched_rank()
    assert told is not None
    assert told[:2] == (4, 6)
    environment(monkeypatch, MEGASCALE_SLICE_ID="second")
    with pytest.raises(ConfigError, match="MEGASCALE_SLICE_ID='second' must be a whole number"):
        find_launched_rank()


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        (
            {"OMPI_COMM_WORLD_RANK": 1},
            "OMPI_COMM_WORLD_RANK='1' and no OMPI_COMM_WORLD_SIZE, so the rank is",
        ),
        (
            {"OMPI_COMM_WORLD_SIZE": 2},
            "OMPI_COMM_WORLD_SIZE='2' and no OMPI_COMM_WORLD_RANK, so the rank is",
        ),
        (
            {"OMPI_COMM_WORLD_LOCAL_RANK": 1},
            "no OMPI_COMM_WORLD_RANK and no OMPI_COMM_WORLD_SIZE, so the rank is",
        ),
        ({"PMI_SIZE": 2}, "no PMI_RANK, so the rank is"),
        ({"PMI_RANK": 0}, "no PMI_SIZE, so the rank is"),
        ({"PALS_RANKID": 0}, "no PALS_SIZE, so the rank is"),
        ({"SLURM_PROCID": 1, "SLURM_NTASKS": 2}, "no SLURM_STEP_NUM_TASKS, so the rank is"),
        ({"SLURM_STEP_NUM_TASKS": 2}, "no SLURM_PROCID, so the rank is"),
        ({"RANK": 0}, "no WORLD_SIZE, so the rank is"),
        ({"PMIX_RANK": 0}, "PMIX_RANK='0': PMIx has started this process"),
        ({"ALPS_APP_PE": 5}, "ALPS_APP_PE='5': ALPS has started this process"),
        ({"PMI_RANK": "one", "PMI_SIZE": 2}, "PMI_RANK='one' and PMI_SIZE='2' must be whole"),
        ({"PMI_RANK": 2, "PMI_SIZE": 2}, "PMI_RANK='2' and PMI_SIZE='2': the rank must be"),
        ({**OPEN_MPI, "PMI_RANK": 0, "PMI_SIZE": 2}, "rank 0 of 2 by PMI_RANK and PMI_SIZE"),
        ({**OPEN_MPI, "RANK": 0, "WORLD_SIZE": 2}, "rank 0 of 2 by RANK and WORLD_SIZE"),
        ({**OPEN_MPI, "RANK": 0, "WORLD_SIZE": 1}, "rank 1 of 2 by OMPI_COMM_WORLD_RANK"),
        ({**TASK, "RANK": 1, "WORLD_SIZE": 2}, "rank 3 of 4 by SLURM_PROCID"),
    ],
)
def test_what_is_not_understood_is_refused(
    variables: dict[str, object], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(monkeypatch, **variables)
    with pytest.raises(ConfigError, match=said) as caught:
        find_launched_rank()
    assert "rank= and world_size=" in str(caught.value)


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({**OPEN_MPI, **PMI, "PMIX_RANK": 1}, (1, 2)),
        ({**OPEN_MPI, "RANK": 5, "WORLD_SIZE": 8}, (5, 8)),
        ({**OPEN_MPI, "SLURM_PROCID": 0, "SLURM_NTASKS": 9}, (1, 2)),
        ({"PMI_RANK": 7, "PMI_SIZE": 8, **TASK}, (7, 8)),
        ({**TASK, "RANK": 0, "WORLD_SIZE": 4, "TORCHELASTIC_RUN_ID": "1"}, (0, 4)),
        ({**OPEN_MPI, "PALS_RANKID": 1, "PMI_SIZE": 2}, (1, 2)),
        ({**PMI, "PALS_RANKID": 1}, (1, 2)),
        ({**TASK, "PMIX_RANK": 3}, (3, 4)),
    ],
)
def test_the_nearest_launcher_decides(
    variables: dict[str, object], rank: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process of another one may have started several ranks; torchrun numbers hosts anew."""
    environment(monkeypatch, **variables)
    told = find_launched_rank()
    assert told is not None
    assert told[:2] == rank


@pytest.mark.parametrize(
    ("variables", "number"),
    [
        ({}, 1),
        ({"LOCAL_WORLD_SIZE": "four"}, 1),
        ({"LOCAL_WORLD_SIZE": 4}, 4),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": 2}, 2),
        ({"MPI_LOCALNRANKS": 3}, 3),
        ({"SLURM_STEP_NUM_TASKS": 7, "SLURM_STEP_TASKS_PER_NODE": "2(x3),1"}, 2),
        ({**TASK, "SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": 3}, 1),
        ({"SLURM_NTASKS": 7, "SLURM_TASKS_PER_NODE": "7"}, 1),
    ],
)
def test_the_ranks_on_this_machine(
    variables: dict[str, object], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment(monkeypatch, **variables)
    assert local_ranks() == number


def test_the_page_has_the_same_table() -> None:
    rows = re.findall(
        r"^\| [^|]+ \| (`[A-Z][A-Z_0-9]+`) \| ([^|]*) \| ([^|]*) \|$",
        SETTINGS.read_text(),
        re.MULTILINE,
    )
    listed = [tuple(tuple(re.findall(r"`(\w+)`", cell)) for cell in row) for row in rows]
    assert listed == [((one.rank,), one.sizes, one.local_sizes) for one in LAUNCHERS]


class Table(Settings):
    cert: str
    size: int = 0


class Server(Settings):
    names: list[str] = Field(default=[])
    tls: Table | None = None
    tables: dict[str, Table] = Field(default={})
    number: float = 1.0
    count: int | None = None
    is_on: bool = False


def changed(values: dict[str, Any], **variables: str) -> Any:
    new, _, faults = overrides(Server, values, variables, "X_")
    assert faults == []
    return new


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("X_NAMES", "a, b", {"names": ["a", "b"]}),
        ("X_NAMES", '["a,b", "c"]', {"names": ["a,b", "c"]}),
        ("X_NAMES", "a", {"names": ["a"]}),
        ("X_NUMBER", "3", {"number": 3}),
        ("X_COUNT", "many", {"count": "many"}),
        ("X_COUNT", "null", {"count": "null"}),
        ("X_IS_ON", "true", {"is_on": True}),
        ("X_TLS", '{"cert": "c"}', {"tls": {"cert": "c"}}),
        ("X_TLS__CERT", "12", {"tls": {"cert": "12"}}),
        ("X_TLS__SIZE", "12", {"tls": {"size": 12}}),
        ("X_TABLES__ONE__SIZE", "12", {"tables": {"one": {"size": 12}}}),
    ],
)
def test_a_variable(variable: str, text: str, value: Any) -> None:
    assert changed({}, **{variable: text}) == value


def test_what_is_not_overridden_stays_and_nothing_is_changed_in_place() -> None:
    values = {"number": 2, "tls": {"cert": "a", "size": 1}}
    assert changed(values, X_TLS__SIZE="2", HOME="/", X="1") == {
        "number": 2,
        "tls": {"cert": "a", "size": 2},
    }
    assert values["tls"] == {"cert": "a", "size": 1}


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("X_NUMBRE", "X_NUMBRE names no setting; did you mean 'X_NUMBER'?"),
        ("X_ZZZZZZ", "there are X_COUNT, X_IS_ON,"),
        ("X_TLS__KEY", "X_TLS__KEY names no setting"),
        ("X_NUMBER__A", "names no setting"),
    ],
)
def test_one_that_names_nothing_is_refused(variable: str, words: str) -> None:
    values, names, (fault,) = overrides(Server, {}, {variable: "1"}, "X_")
    assert (values, names) == ({}, {})
    assert words in fault


@pytest.mark.parametrize(
    "name",
    ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_FEEDER", "PORT", "PORT_7070_TCP_ADDR"],
)
def test_those_of_a_kubernetes_service_are_none(name: str) -> None:
    assert overrides(Server, {}, {f"X_{name}": "1"}, "X_") == ({}, {}, [])


def test_a_table_that_is_none_is_left_to_the_validation() -> None:
    assert overrides(Server, 3, {"X_NUMBER": "1"}, "X_")[0] == 3


def test_every_setting_of_the_server_has_a_variable() -> None:
    variables = {f"S_{name.upper()}": "1" for name in ServerSettings.model_fields}
    _, names, faults = overrides(ServerSettings, {}, variables, "S_")
    assert set(names.values()) == set(variables)
    assert faults == []


@given(st.lists(st.text()), st.floats(allow_nan=False, allow_infinity=False), st.booleans())
def test_json_is_read_back(names: list[str], number: float, is_on: bool) -> None:
    values = {"names": names, "number": number, "is_on": is_on}
    variables = {f"X_{name.upper()}": json.dumps(value) for name, value in values.items()}
    assert changed({}, **variables) == values
