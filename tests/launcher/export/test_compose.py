"""A Compose file has a service for each task, which starts as `up --backend docker` starts it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.documentation import unprinted

from tfcluster.errors import SetupError, SpecError, UsageError
from tfcluster.spec import PlanOptions

from .conftest import SCRIPT, Compose

Composer = Callable[..., Compose]
PLAIN = {"job": SCRIPT | {"hooks": "off"}}
BOOT = "/opt/tfcluster/workers/tfcluster_workers/boot.py"


def test_services_have_the_names_of_the_tasks_and_find_each_other_by_them(
    compose: Composer,
) -> None:
    storage = {"checkpoints": {"dir": "/srv/ck"}}
    with pytest.raises(SetupError, match="copies the chief's checkpoints to the evaluator"):
        compose({"cluster": {"worker": 1, "evaluator": 1}})
    made = compose({"cluster": {"worker": ["127.0.0.1:2222", "localhost:7777"]}})
    assert made.cluster() == {"worker": ["worker-0:2222", "worker-1:7777"]}, "its ports are kept"
    made = compose({"cluster": {"worker": 2, "evaluator": 1}} | storage)
    assert list(made.file["services"]) == ["worker-0", "worker-1", "evaluator-0"]
    assert made.cluster() == {"worker": ["worker-0:2222", "worker-1:2222"]}
    assert made.cluster("evaluator-0")["evaluator"] == ["evaluator-0:2222"]
    assert made.service("worker-1")["hostname"] == "worker-1"
    assert made.env("worker-1")["TFCLUSTER_TASK"] == "worker:1"
    assert "ports" not in made.service()


def test_without_hooks_the_file_is_complete_without_tfcluster(compose: Composer) -> None:
    made = compose(
        PLAIN | {"runtime": {"image": "lab/tf:2.21"}}, options=PlanOptions(args=("--epochs", "3"))
    )
    assert made.exported.needs == ()
    service = made.service()
    assert service["image"] == "lab/tf:2.21"
    assert service["entrypoint"] == ["python3", "/code/train.py", "--epochs", "3"]
    assert service["working_dir"] == "/code"
    assert "/opt/tfcluster" not in made.text
    assert not {"TFCLUSTER_SETTINGS", "PYTHONPATH", "TF_GRPC_REUSE_PORT"} & {*made.env()}


def test_with_hooks_tasks_start_through_boot_in_the_image_that_has_it(compose: Composer) -> None:
    made = compose()
    assert made.service()["entrypoint"] == ["python3", BOOT, "script", "/code/train.py"]
    assert made.service()["image"] == "tfcluster-join:latest"
    (need,) = made.exported.needs
    assert need == "the image tfcluster-join:latest, which `tfcluster build --join` makes"
    assert f"# - {need}" in made.text


@pytest.mark.parametrize(
    ("tag", "options"),
    [("tf2.15.1", "--tensorflow 2.15.1"), ("tf2.21.0-gpu", "--tensorflow 2.21.0 --gpu")],
)
def test_the_tag_of_our_own_image_is_kept(compose: Composer, tag: str, options: str) -> None:
    made = compose({"runtime": {"image": f"tfcluster-worker:{tag}"}})
    assert made.service()["image"] == f"tfcluster-join:{tag}"
    assert made.exported.needs[0].endswith(f"`tfcluster build --join {options}` makes")


def test_another_image_with_hooks_must_have_our_package(compose: Composer) -> None:
    made = compose({"runtime": {"image": "lab/tf:2.21"}})
    (need,) = made.exported.needs
    assert need.startswith("tfcluster_workers in the image lab/tf:2.21")
    assert need.endswith("--set job.hooks=off")


def test_a_script_that_imports_our_package_gets_an_image_with_it(
    compose: Composer, tmp_path: Path
) -> None:
    (tmp_path / "batch.py").write_text("import tfcluster_workers.context\n")
    made = compose({"job": {"script": "batch.py", "hooks": "off"}})
    assert made.service()["image"] == "tfcluster-join:latest"
    assert made.service()["entrypoint"] == ["python3", "/code/batch.py"]


def test_prepare_runs_before_the_task_without_the_cluster(compose: Composer) -> None:
    made = compose({"job": PLAIN["job"] | {"prepare": {"script": "train.py", "args": ["a b"]}}})
    shell, option, line = made.service()["entrypoint"]
    assert (shell, option) == ("/bin/sh", "-c")
    assert line == ("env -u TF_CONFIG python3 /code/train.py 'a b' && exec python3 /code/train.py")


def test_resources_become_limits(compose: Composer) -> None:
    made = compose({"resources": {"cpus": 2, "memory": "3G", "gpus": 2}})
    service = made.service("worker-1")
    assert (service["cpus"], service["mem_limit"], service["memswap_limit"]) == (2, "3g", "3g")
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "device_ids": ["2", "3"], "capabilities": ["gpu"]}
    assert service["shm_size"] == "1g"
    assert made.env("worker-1")["CUDA_VISIBLE_DEVICES"] == "0,1"
    (device,) = compose({"resources": {"gpus": "all"}}).service()["deploy"]["resources"][
        "reservations"
    ]["devices"]
    assert device["count"] == "all"


def test_the_file_is_the_same_on_every_machine(compose: Composer) -> None:
    """The cores and GPUs of the machine where the file is written mean nothing elsewhere."""
    made = compose()
    assert not {"OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"} & {*made.env()}
    assert not {"cpuset", "deploy", "cpus"} & {*made.service()}
    assert "no GPU: write resources.gpus" in made.text
    assert "no GPU" not in compose({"resources": {"gpus": 0}}).text


def test_nothing_restarts_and_nobody_becomes_root(compose: Composer) -> None:
    service = compose({"supervision": {"grace_s": 45}}).service()
    assert service["restart"] == "no"
    assert service["stop_grace_period"] == "45s"
    assert service["init"] is True
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"] == "1234:1234"
    assert service["environment"]["HOME"] == "/tmp"
    made = compose({"runtime": {"user": "root", "network": "private"}})
    assert (made.service()["user"], "HOME" in made.env()) == ("root", False)
    assert made.file["networks"] == {"default": {"internal": True}}
    assert "networks" not in compose().file


def test_the_code_is_mounted_relative_to_the_file_of_its_project(
    compose: Composer, tmp_path: Path
) -> None:
    sources = {
        tmp_path: ".",
        tmp_path / "deploy": "..",
        tmp_path.parent: f"./{tmp_path.name}",
        Path("/srv"): str(tmp_path),
    }
    for folder, source in sources.items():
        (code,) = compose(folder=folder).service()["volumes"]
        assert code == {"type": "bind", "source": source, "target": "/code", "read_only": True}


def test_data_is_mounted_read_only_and_shared_storage_is_not(
    compose: Composer, tmp_path: Path
) -> None:
    made = compose(
        {"runtime": {"hosts": {"*": {"data_dir": "/srv/data"}}}, "checkpoints": {"dir": "/srv/ck"}}
    )
    _, data, shared = made.service()["volumes"]
    assert (data["source"], data["target"], data["read_only"]) == ("/srv/data", "/srv/data", True)
    assert shared == {"type": "bind", "source": "/srv/ck", "target": "/srv/ck"}
    assert made.env()["TFDS_DATA_DIR"] == "/srv/data"
    assert made.env()["TFCLUSTER_CHECKPOINT_DIR"] == "/srv/ck"
    assert "It gathers checkpoints" not in made.text
    assert "It gathers checkpoints" in compose().text


@pytest.mark.parametrize(
    "value",
    [
        *("$HOME ${HOME} $$", "no", "NULL", "~", "1:30", "0o17", "1e3", "it's", '"', "", " a "),
        *("two\nlines\n", "\t", "\x7f", "日本", "🙂", "a: b", "- a", "# a", "{}", "\u2028", "*x"),
    ],
)
def test_every_value_arrives_unchanged(compose: Composer, value: str) -> None:
    made = compose({"job": SCRIPT | {"env": {"VALUE": value, "NO": "1"}, "args": [value]}})
    assert made.env()["VALUE"] == value
    assert made.env()["NO"] == "1"
    assert made.service()["entrypoint"][-1].replace("$$", "$") == value


def test_secrets_are_references_and_need_not_be_known(compose: Composer) -> None:
    job = SCRIPT | {"secrets": ["PIN"], "env": {"WANDB_API_KEY": None, "DB_PASSWORD": "hunter22"}}
    made = compose({"job": job})
    env = made.service()["environment"]
    for name in ("PIN", "WANDB_API_KEY", "DB_PASSWORD"):
        assert env[name].startswith(f"${{{name}:?")
        assert f"the variable {name}, a secret, set where Compose runs" in made.exported.needs
    assert "hunter22" not in made.text


def test_a_secret_that_is_also_an_argument_is_refused(compose: Composer) -> None:
    job = SCRIPT | {"env": {"DB_PASSWORD": "hunter22"}, "args": ["--password=hunter22"]}
    with pytest.raises(UsageError, match="value of a secret is also in an argument"):
        compose({"job": job})


def test_parameter_servers_end_with_the_chief(compose: Composer) -> None:
    sections: dict[str, Any] = {"cluster": {"chief": 1, "worker": 1, "ps": 1}}
    with pytest.raises(SetupError, match="needs storage that all its tasks share"):
        compose(sections)
    made = compose(sections | {"checkpoints": {"dir": "/srv/ck"}})
    assert "compose.yaml up --exit-code-from chief-0" in made.text
    assert "--exit-code-from" not in compose().text


def test_tasks_of_other_machines_cannot_be_exported(compose: Composer) -> None:
    with pytest.raises(SpecError, match="docker runs all tasks on one machine"):
        compose({"cluster": {"worker": ["10.0.0.1:2222"]}})


def test_what_differs_between_the_tasks_is_all_that_a_service_repeats(compose: Composer) -> None:
    made = compose({"cluster": {"worker": 4}})
    assert made.text.count("no-new-privileges") == 1
    assert made.text.count("TFCLUSTER_RUN_ID") == 1
    tail = made.text.partition("  worker-3:\n")[2]
    assert tail.splitlines()[:4] == [
        "    <<: *task",
        "    hostname: worker-3",
        "    environment:",
        "      <<: *environment",
    ]


def test_the_guide_shows_what_is_written(compose: Composer) -> None:
    written = compose(PLAIN).text
    assert unprinted("guides/export.md", "services:", written) == []


def test_without_hooks_the_spec_keeps_its_own_import_path(compose: Composer) -> None:
    job = PLAIN["job"] | {"env": {"PYTHONPATH": "/code/lib"}}
    assert compose({"job": job}).env()["PYTHONPATH"] == "/code/lib"
