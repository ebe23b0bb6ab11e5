"""Mistakes in a spec file: each is reported with its place, a message and a fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tables import rows

from .writing import problems_of

JOB = '"job": {"script": "t.py"}'
PLAIN = '"job": {"kind": "plain", "script": "t.py"}'
TWO = '"cluster": {"worker": 2}'

# The file with § where the mistake is (⏎ is a line break), and below it the message → the fix.
SHORT = {
    "{… ": "{TWO, JOB, ",
    "TWO": TWO,
    "JOB": JOB,
    "PLAIN": PLAIN,
    "{T, ": '{"script": "t.py", ',
    "⏎": "\n",
}
MARKED = r"""
§[1]
    a spec must be an object → {"cluster"
{"cluster": §{
    never closed → add '}'
{"a": 1⏎ §"b": 2}
    expected ',' or '}' → missing comma
{"a": 1§,}
    unexpected comma before '}' → remove the comma
{⏎§// two workers⏎}
    comments → .jsonc
{§'a': 1}
    "double quotes" → use "double quotes"
{"a": §RING}
    'RING' is not valid JSON → "double quotes"
{"a": §True}
    'True' is not valid JSON → write true
{"a": §NaN}
    'NaN' is not valid JSON → finite number
{"a": §1e999}
    too large → smaller
{"a": §"b⏎}
    never closed → closing
{"a": "C:§\data"}
    \d is not a JSON escape → backslash
{"a": "§\ud800"}
    surrogate → write the character
{"a": "b§\u0000"}
    cannot be passed → remove it
{} §{}
    after the end → remove it
§{"job": {"script": "t.py"}}
    "cluster" is missing → {"worker": 2}
§{"cluster": {"worker": 2}}
    "job" is missing → {"script": "train.py"}
{"cluster": {"worker": 2},⏎ "job": {"script": "t.py"},⏎ §"stratgy": {}}
    unknown key 'stratgy' → did you mean "strategy"?
{… §"max_restarts": 1}
    unknown key 'max_restarts' → it belongs to supervision.max_restarts
{"cluster": {"worker": 1, §"master": 1}, JOB}
    unknown key 'master' in cluster → did you mean "chief"?
{… "runtime": {"roles": {§"data-worker": {}}}}
    unknown key 'data-worker' in runtime.roles → did you mean "data_worker"?
{… "keras": {§"zzz": 1}}
    unknown key 'zzz' in keras → known keys: precision
{TWO, "job": {"script": "t.py"},⏎§"cluster": {"worker": 2}}
    the key 'cluster' is written twice → keep one
{… "runtime": {"interface": §"ib 0"}}
    'ib 0' is not the name of an interface → "10.20.0.0/16"
{… "runtime": {"interface": §"10.20/16"}}
    is not a subnet → "{node}-ib"
{… "runtime": {"interface": §"{node}_"}}
    is not a pattern of host names → "ib0"
{… "runtime": {"ports": §"63000-60001"}}
    is not a range of ports → "60001-63000"
{… "strategy": {"name": §"tpu"}}
    tpu runs with one worker only → "cluster": {"worker": 1}
{… "resources": {"memory": §"2 GB"}}
    '2 GB' is not an amount of memory → "512m" or "8g"
{… "runtime": {"user": §"--privileged"}}
    '--privileged' is not a user → "root" or "1000:1000"
{"cluster": {"worker": [§"local:2222", "gpu2:2222"]}, JOB}
    tfcluster calls this machine 'local' → IP address
{… "runtime": {"backend": "docker", "hosts": {§"127.0.0.1": {}}}}
    no address of the cluster has the host '127.0.0.1' → one of worker-0, worker-1, or "*"
{"version": §2, "nonsense": 1}
    has version 2, but this tfcluster reads version 1
{"version": §"1", "cluster": {"worker": 2}, JOB}
    version: '1' is not 1 → mean 1?
{"version": §0, "cluster": {"worker": 2}, JOB}
    0 is not 1 → 1
{"name": §"a/b", "cluster": {"worker": 2}, JOB}
    'a/b' → letters
{"cluster": §{}, JOB}
    no task that trains → {"worker": 2}
{"cluster": {"worker": §0}, JOB}
    too small → 1
{"cluster": {"worker": §[]}, JOB}
    no worker is listed → addresses
{"cluster": {"worker": §"2"}, JOB}
    a number, or a list → 2, or [
{"cluster": {"worker": [§2222]}, JOB}
    "host:port" → 10.0.0.1:2222
{"cluster": {"chief": §2, "worker": 1}, JOB}
    at most one chief
{"cluster": {"worker": 1, "evaluator": §2}, JOB}
    at most one evaluator → keep one
{"cluster": {"worker": 1, "data_worker": 1, "data_dispatcher": §2}, JOB}
    at most one data_dispatcher → keep one
{"cluster": {"worker": 1, §"data_worker": 2}, JOB}
    a dispatcher and workers: no data_dispatcher → add "data_dispatcher": 1
{"cluster": {"worker": 1, "data_dispatcher": 1, §"data_worker": 2}, PLAIN}
    tasks of the kind plain get no tf.data service → leave data_worker and data_dispatcher out
{"cluster": {"worker": 1, "ps": §1}, JOB}
    need a chief and workers: no chief → "strategy": {"name": "default"}
{"cluster": {"ps": §1}, "job": {"script": "t.py"}, "strategy": {"name": "default"}}
    need a chief and workers: no chief and worker → add chief and worker
{… "runtime": {"hosts": {§"gpu1": {}}}}
    no address of the cluster has the host 'gpu1' → "*"
{TWO, "job": {T, §"module": "t"}}
    both script and module → keep one of
{TWO, "job": §{}}
    nothing to run → "script"
{TWO, "job": {"script": §""}}
    empty string → train
{TWO, "job": {"module": §"a/t.py"}}
    not a module name → .py
{TWO, "job": {T, "args": §"--x"}}
    expected a list, not '--x' → ["--x"]
{TWO, "job": {T, "args": §"--epochs 3 --name 'a b'"}}
    expected a list → ["--epochs", "3", "--name", "a b"]
{TWO, "job": {"command": §"bash run.sh"}}
    expected a list → ["bash", "run.sh"]
{TWO, "job": {T, "args": §"it's"}}
    expected a list → ["it's"]
{TWO, "job": {T, "args": §""}}
    expected a list, not '' → leave it out, or write a list: ["--epochs", "30"]
{TWO, "job": {"command": §" "}}
    expected a list → leave it out, or write a list: ["bash", "train.sh"]
{TWO, "job": {T, "per_task": {§"workers": {}}}}
    'workers' is neither a job nor a task → did you mean "worker"?
{TWO, "job": {T, "per_task": {§"wroker:1": {}}}}
    'wroker:1' is neither a job nor a task → did you mean "worker:1"?
{TWO, "job": {T, "per_task": {§"ps": {"args": []}}}}
    the cluster has no ps → it has worker, worker:0, worker:1
{TWO, "job": {T, "per_task": {§"worker:2": {"args": []}}}}
    the cluster has no worker:2 → it has worker, worker:0, worker:1
{TWO, "job": {T, "per_task": {"worker": {"script": "a.py", §"module": "b"}}}}
    both script and module are given → keep one of script and module
{TWO, "job": {T, "per_task": {"worker": {§"arg": []}}}}
    unknown key 'arg' in job.per_task.worker → did you mean "args"?
{"cluster": {"worker": [{"address": "a:1", "gpus": §[1, 1]}]}, JOB}
    cluster.worker.0.gpus: a GPU is listed twice → list each index once
{… "checkpoints": {"outputs": §"my plots/*"}}
    expected a list → ["my plots/*"]
{TWO, "job": {"script": "t", "env": {"A": §3}}}
    expected a string, not 3 → in quotes: "3"
{TWO, "job": {"script": "t", "env": {§"TF_CONFIG": ""}}}
    TF_CONFIG is set by tfcluster → leave it out
{TWO, "job": {"script": "t", "env": {§"A B": ""}}}
    'A B' is not a variable name → letters
{TWO, "job": {"script": "t", "secrets": [§"K"], "env": {"K": "v"}}}
    the value of the secret K is written → remove it from job.env
{… "strategy": {"communication": §"NCLL"}}
    'NCLL' is not 'AUTO', 'RING' or 'NCCL' → did you mean "NCCL"?
{… "strategy": {"name": §"parameter_server"}}
    needs ps tasks → add "ps"
{… "supervision": {"grace_s": §"soon"}}
    'soon' is not a duration → "90s"
{… "supervision": {"grace_s": §-1}}
    between 0 and → 90s
{… "supervision": {"run_deadline_s": §0}}
    would end every run → leave it out
{… "supervision": {"min_workers": §3}}
    min_workers is 3, but the cluster has 2 → 1 to 2
{… "supervision": {"grow": §"always"}}
    'always' is not 'checkpoint' or 'off' → off
{… "resources": {"pin": §"yes"}}
    expected true or false, not 'yes' → true
{… "resources": {"gpus": §0.5}}
    or "all" → "all"
{… "resources": §null}
    expected an object → {"gpus"
{… "runtime": {"hosts": {"*": {"ssh": §"-oProxyCommand=x"}}}}
    is not a host → user@host
{"cluster": {"worker": [§"10.0.0.1:1"]}, JOB, "runtime": {"backend": "docker"}}
    10.0.0.1:1 is another machine's address → "worker": 1
{TWO, "job": {T, "per_task": {§"worker:x": {}}}}
    'worker:x' is neither a job nor a task → write one of chief, worker, ps, evaluator, or a task
"""


@pytest.mark.parametrize(("marked", "said"), rows(MARKED))
def test_a_mistake_is_reported_with_place_and_fix(marked: str, said: str, tmp_path: Path) -> None:
    for short, whole in SHORT.items():
        marked = marked.replace(short, whole)
    message, _, fix = said.partition(" → ")
    before = marked.partition("§")[0]
    line, column = before.count("\n") + 1, len(before.rpartition("\n")[2]) + 1
    (found,) = problems_of(marked.replace("§", ""), tmp_path)
    assert found.place == f"a.json:{line}:{column}"
    assert message in found.message
    assert fix in found.fix


# (the file, place, a part of the message, a part of the fix)
UNREADABLE = {
    "empty": ("", "a.json", "empty", "tfcluster init"),
    "only space": (" \n\t", "a.json", "empty", "tfcluster init"),
    "a number of many digits": ('{"a": ' + "9" * 5000 + "}", "a.json:1:7", "too many digits", ""),
    "deep": ("[" * 100_000, "a.json:1:66", "nested more than", ""),
    "latin-1": (b'{\n"name": "caf\xe9"}', "a.json:2:13", "0xe9 is not UTF-8", "as UTF-8"),
    "UTF-16": ("{}".encode("utf-16"), "a.json:1:1", "not UTF-8", "as UTF-8"),
    "too large": (
        b" " * 5_000_000,
        "a.json",
        "larger than 4 MiB",
        "this is a spec file",
    ),
}


@pytest.mark.parametrize(("data", "place", "message", "fix"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_is_not_json_is_reported(
    data: str | bytes, place: str, message: str, fix: str, tmp_path: Path
) -> None:
    (found,) = problems_of(data, tmp_path)
    assert found.place == place
    assert message in found.message
    assert fix in found.fix


ADDRESSES = {
    "10.0.0.1": "no port",
    "10.0.0.1:": "'' is not a port",
    ":2222": "no host",
    "10.0.0.1:x": "'x' is not a port",
    "10.0.0.1:-1": "'-1' is not a port",
    "10.0.0.1:65536": "port 65536 is above 65535",
    "10.0.0.1:999999": "is not a port",
    "10.0.0.256:1": "10.0.0.256 is not an IPv4 address",
    "10.0.0:1": "10.0.0 is not an IPv4 address",
    "0.0.0.0:1": "0.0.0.0 cannot be reached",
    "anna@gpu1:2222": "has a user name",
    "grpc://gpu1:2222": "has a scheme",
    "::1:2222": "more than one colon",
    "[::1]": "no port",
    "[::g]:1": "not an IPv6 address",
    "gpu 1:2222": "'gpu 1' is not a host name",
    "-gpu1:2222": "'-gpu1' is not a host name",
    "gpu1:２２": "is not a port",
    "": "no port",
}


@pytest.mark.parametrize(("address", "message"), ADDRESSES.items())
def test_an_address_that_is_not_host_and_port_is_refused(
    address: str, message: str, tmp_path: Path
) -> None:
    text = f'{{"cluster": {{"worker": ["{address}"]}}, {JOB}}}'
    (found,) = problems_of(text, tmp_path)
    assert found.place == "a.json:1:25"
    assert message in found.message
    assert found.fix


# (the workers with § where the mistake is, a part of the message)
BETWEEN = {
    "twice": ('["gpu1:1", "gpu2:1", §"gpu1:1"]', "address of worker:0"),
    "twice, by case": ('["gpu1:1", §"GPU1:1"]', "address of worker:0"),
    "twice, in IPv6": ('["[::1]:1", §"[0::1]:1"]', "address of worker:0"),
    "loopback beside remote": ('["gpu1:1", §"localhost:2"]', "is loopback"),
    "127.x beside remote": ('[§"127.1.2.3:1", "gpu1:2"]', "is loopback"),
    "IPv6 loopback beside remote": ('[§"[::1]:1", "gpu1:2"]', "is loopback"),
    "a number beside addresses": ('["gpu1:1"], "evaluator": §1', "a number has no host"),
}


@pytest.mark.parametrize(("marked", "message"), BETWEEN.values(), ids=BETWEEN)
def test_addresses_that_conflict_are_refused(marked: str, message: str, tmp_path: Path) -> None:
    text = f'{{"cluster": {{"worker": {marked}}}, {JOB}}}'
    (found,) = problems_of(text.replace("§", ""), tmp_path)
    assert found.place == f"a.json:1:{text.index('§') + 1}"
    assert message in found.message
    assert found.fix


def test_all_mistakes_of_a_file_are_reported_in_its_order(tmp_path: Path) -> None:
    text = """{
  "cluster": {"worker": ["a:1", "b:70000"], "workers": 2},
  "job": {"script": 3, "script": "t.py", "argz": []},
  "runtime": {"hosts": {"c": {}}},
  "supervision": {"grace_s": "1 fortnight"},
  "supervisoin": {}
}"""
    found = problems_of(text, tmp_path)
    assert [problem.place for problem in found] == [
        "a.json:2:33", "a.json:2:45", "a.json:3:24", "a.json:3:42", "a.json:5:30", "a.json:6:3",
    ]  # fmt: skip


def test_rules_between_sections_are_checked_despite_other_mistakes(
    tmp_path: Path,
) -> None:
    text = '{"cluster": {"worker": ["a:1"]}, "job": {}, "runtime": {"hosts": {"c": {}}}}'
    found = problems_of(text, tmp_path)
    assert [problem.message for problem in found] == [
        "job: nothing to run: no script, module or command",
        "no address of the cluster has the host 'c'",
    ]


def test_a_newer_version_is_reported_alone_in_one_line(tmp_path: Path) -> None:
    (found,) = problems_of('{"version": 7, "cluster": 3, "cluster": 4}', tmp_path)
    assert "\n" not in str(found)
    assert "pip install --upgrade tfcluster" in str(found)
