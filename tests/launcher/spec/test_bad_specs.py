"""What a user may get wrong in a file: each with its place, what is wrong and what to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from .writing import problems_of

JOB = '"job": {"script": "t.py"}'
HERE = '"cluster": {"worker": 2}'

# (the file with § where the mistake is, a part of the message, a part of the cure)
MARKED = {
    "a list": ("§[1]", "a spec is a JSON object", '{"cluster"'),
    "not closed": ('{"cluster": §{', "never closed", "add '}'"),
    "no comma": ('{"a": 1\n §"b": 2}', "a ',' or '}' is expected", "comma missing"),
    "comma at the end": ('{"a": 1§,}', "a comma before '}'", "remove the comma"),
    "comment in .json": ("{\n§// two workers\n}", "comments", ".jsonc"),
    "single quotes": ("{§'a': 1}", '"double quotes"', '"double quotes" only'),
    "bare word": ('{"a": §RING}', "'RING' is no value", '"quotes"'),
    "Python's True": ('{"a": §True}', "'True' is no value", "write true"),
    "NaN": ('{"a": §NaN}', "'NaN' is no value", "no such number"),
    "too large a float": ('{"a": §1e999}', "too large", "smaller"),
    "text not closed": ('{"a": §"b\n}', "never closed", "closing"),
    "wrong escape": ('{"a": "C:§\\data"}', "\\d is no escape", "backslash"),
    "half a character": ('{"a": "§\\ud800"}', "surrogate", "write the character"),
    "NUL": ('{"a": "b§\\u0000"}', "cannot be passed", "remove it"),
    "text behind the end": ("{} §{}", "after the end", "remove it"),
    "no cluster": (f"§{{{JOB}}}", '"cluster" is missing', '{"worker": 2}'),
    "no job": (f"§{{{HERE}}}", '"job" is missing', '{"script": "train.py"}'),
    "unknown key": (
        f'{{{HERE},\n {JOB},\n §"stratgy": {{}}}}',
        "unknown key 'stratgy'",
        'did you mean "strategy"?',
    ),
    "key of another section": (
        f'{{{HERE}, {JOB}, §"max_restarts": 1}}',
        "unknown key 'max_restarts'",
        "it belongs to supervision.max_restarts",
    ),
    "key of another tool": (
        f'{{"cluster": {{"worker": 1, §"master": 1}}, {JOB}}}',
        "unknown key 'master' in cluster",
        'did you mean "chief"?',
    ),
    "key like nothing": (
        f'{{{HERE}, {JOB}, "keras": {{§"zzz": 1}}}}',
        "unknown key 'zzz' in keras",
        "known here: precision",
    ),
    "key twice": (f"{{{HERE}, {JOB},\n§{HERE}}}", "the key 'cluster' is written twice", "keep one"),
    "several workers on a TPU": (
        f'{{{HERE}, {JOB}, "strategy": {{"name": §"tpu"}}}}',
        "tpu has no use for several workers",
        '"cluster": {"worker": 1}',
    ),
    "no amount of memory": (
        f'{{{HERE}, {JOB}, "resources": {{"memory": §"2 GB"}}}}',
        "'2 GB' is no amount of memory",
        '"512m" or "8g"',
    ),
    "no user": (
        f'{{{HERE}, {JOB}, "runtime": {{"user": §"--privileged"}}}}',
        "'--privileged' is no user",
        '"root" or "1000:1000"',
    ),
    "another machine for docker": (
        f'{{"cluster": {{"worker": [§"10.0.0.1:1"]}}, {JOB}, "runtime": {{"backend": "docker"}}}}',
        "10.0.0.1:1 is another machine's address",
        '"worker": 1',
    ),
    "loopback as a container": (
        f'{{{HERE}, {JOB}, "runtime": {{"backend": "docker", "hosts": {{§"127.0.0.1": {{}}}}}}}}',
        "no address of the cluster has the host '127.0.0.1'",
        'one of worker-0, worker-1, or "*"',
    ),
    "newer version": (
        '{"version": §2, "nonsense": 1}',
        "has version 2, this tfcluster reads 1",
        "",
    ),
    "version as text": (f'{{"version": §"1", {HERE}, {JOB}}}', "version: '1' is not 1", "mean 1?"),
    "version 0": (f'{{"version": §0, {HERE}, {JOB}}}', "0 is not 1", "1"),
    "impossible name": (f'{{"name": §"a/b", {HERE}, {JOB}}}', "'a/b'", "letters"),
    "no worker": (f'{{"cluster": §{{}}, {JOB}}}', "no task that trains", '{"worker": 2}'),
    "zero workers": (f'{{"cluster": {{"worker": §0}}, {JOB}}}', "too small", "1"),
    "no worker listed": (
        f'{{"cluster": {{"worker": §[]}}, {JOB}}}',
        "no worker is listed",
        "addresses",
    ),
    "workers as text": (
        f'{{"cluster": {{"worker": §"2"}}, {JOB}}}',
        "a number, or a list",
        "2, or [",
    ),
    "a worker that is a number": (
        f'{{"cluster": {{"worker": [§2222]}}, {JOB}}}',
        '"host:port"',
        "10.0.0.1:2222",
    ),
    "two chiefs": (f'{{"cluster": {{"chief": §2, "worker": 1}}, {JOB}}}', "at most one chief", ""),
    "two evaluators": (
        f'{{"cluster": {{"worker": 1, "evaluator": §2}}, {JOB}}}',
        "at most one evaluator",
        "keep one",
    ),
    "ps alone": (
        f'{{"cluster": {{"worker": 1, "ps": §1}}, {JOB}}}',
        "need a chief and workers: no chief",
        '"strategy": {"name": "default"}',
    ),
    "ps without workers": (
        f'{{"cluster": {{"ps": §1}}, {JOB}, "strategy": {{"name": "default"}}}}',
        "need a chief and workers: no chief and worker",
        "add chief and worker",
    ),
    "runtime.hosts of nobody": (
        f'{{{HERE}, {JOB}, "runtime": {{"hosts": {{§"gpu1": {{}}}}}}}}',
        "no address of the cluster has the host 'gpu1'",
        '"*"',
    ),
    "two starts": (
        f'{{{HERE}, "job": {{"script": "t.py", §"module": "t"}}}}',
        "both script and module",
        "keep one of",
    ),
    "no start": (f'{{{HERE}, "job": §{{}}}}', "nothing to run", '"script"'),
    "empty script": (f'{{{HERE}, "job": {{"script": §""}}}}', "empty text", "train"),
    "module as a file": (
        f'{{{HERE}, "job": {{"module": §"a/t.py"}}}}',
        "not the name of a module",
        ".py",
    ),
    "args as one text": (
        f'{{{HERE}, "job": {{"script": "t.py", "args": §"--x"}}}}',
        "a list is expected here, not '--x'",
        '["--x"]',
    ),
    "args as a command line": (
        f'{{{HERE}, "job": {{"script": "t.py", "args": §"--epochs 3 --name \'a b\'"}}}}',
        "a list is expected here",
        '["--epochs", "3", "--name", "a b"]',
    ),
    "a command as a command line": (
        f'{{{HERE}, "job": {{"command": §"bash run.sh"}}}}',
        "a list is expected here",
        '["bash", "run.sh"]',
    ),
    "a quote of a command line that is not closed": (
        f'{{{HERE}, "job": {{"script": "t.py", "args": §"it\'s"}}}}',
        "a list is expected here",
        """["it's"]""",
    ),
    "arguments that are an empty text": (
        f'{{{HERE}, "job": {{"script": "t.py", "args": §""}}}}',
        "a list is expected here, not ''",
        'leave it out, or write a list: ["--epochs", "30"]',
    ),
    "a command of spaces": (
        f'{{{HERE}, "job": {{"command": §" "}}}}',
        "a list is expected here",
        'leave it out, or write a list: ["bash", "train.sh"]',
    ),
    "arguments of no job": (
        f'{{{HERE}, "job": {{"script": "t.py", "per_task": {{§"workers": {{}}}}}}}}',
        "'workers' names no job and no task",
        'did you mean "worker"?',
    ),
    "arguments of a task with a typing error": (
        f'{{{HERE}, "job": {{"script": "t.py", "per_task": {{§"wroker:1": {{}}}}}}}}',
        "'wroker:1' names no job and no task",
        'did you mean "worker:1"?',
    ),
    "arguments of a task that is none": (
        f'{{{HERE}, "job": {{"script": "t.py", "per_task": {{§"worker:x": {{}}}}}}}}',
        "'worker:x' names no job and no task",
        'write one of chief, worker, ps, evaluator, or one task of them: "worker:1"',
    ),
    "arguments of a job that the cluster does not have": (
        f'{{{HERE}, "job": {{"script": "t.py", "per_task": {{§"ps": {{"args": []}}}}}}}}',
        "the cluster has no ps",
        "it has worker, worker:0, worker:1",
    ),
    "arguments of a task that the cluster does not have": (
        f'{{{HERE}, "job": {{"script": "t.py", "per_task": {{§"worker:2": {{"args": []}}}}}}}}',
        "the cluster has no worker:2",
        "it has worker, worker:0, worker:1",
    ),
    "two programs of one task": (
        f'{{{HERE}, "job": {{"script": "t.py", "per_task": {{"worker": {{"script": "a.py", '
        f'§"module": "b"}}}}}}}}',
        "both script and module are given",
        "keep one of script and module",
    ),
    "an unknown key of a task": (
        f'{{{HERE}, "job": {{"script": "t.py", "per_task": {{"worker": {{§"arg": []}}}}}}}}',
        "unknown key 'arg' in job.per_task.worker",
        'did you mean "args"?',
    ),
    "a GPU of a task twice": (
        f'{{"cluster": {{"worker": [{{"address": "a:1", "gpus": §[1, 1]}}]}}, {JOB}}}',
        "cluster.worker.0.gpus: a GPU is listed twice",
        "list each index once",
    ),
    "a glob with a space": (
        f'{{{HERE}, {JOB}, "checkpoints": {{"outputs": §"my plots/*"}}}}',
        "a list is expected here",
        '["my plots/*"]',
    ),
    "a variable that is a number": (
        f'{{{HERE}, "job": {{"script": "t", "env": {{"A": §3}}}}}}',
        "a text is expected here, not 3",
        'in quotes: "3"',
    ),
    "a variable of ours": (
        f'{{{HERE}, "job": {{"script": "t", "env": {{§"TF_CONFIG": ""}}}}}}',
        "TF_CONFIG is set by tfcluster",
        "leave it out",
    ),
    "a variable with a space": (
        f'{{{HERE}, "job": {{"script": "t", "env": {{§"A B": ""}}}}}}',
        "'A B' is not a variable's name",
        "letters",
    ),
    "a secret with its value": (
        f'{{{HERE}, "job": {{"script": "t", "secrets": [§"K"], "env": {{"K": "v"}}}}}}',
        "the value of the secret K is written",
        "leave it out of job.env",
    ),
    "unknown choice": (
        f'{{{HERE}, {JOB}, "strategy": {{"communication": §"NCLL"}}}}',
        "'NCLL' is not 'AUTO', 'RING' or 'NCCL'",
        'did you mean "NCCL"?',
    ),
    "a strategy without its tasks": (
        f'{{{HERE}, {JOB}, "strategy": {{"name": §"parameter_server"}}}}',
        "needs ps tasks",
        'add "ps"',
    ),
    "no duration": (
        f'{{{HERE}, {JOB}, "supervision": {{"grace_s": §"soon"}}}}',
        "'soon' is not a duration",
        '"90s"',
    ),
    "a negative duration": (
        f'{{{HERE}, {JOB}, "supervision": {{"grace_s": §-1}}}}',
        "between 0 and",
        "90s",
    ),
    "a deadline of nothing": (
        f'{{{HERE}, {JOB}, "supervision": {{"run_deadline_s": §0}}}}',
        "would end every run",
        "leave it out",
    ),
    "more needed than there are": (
        f'{{{HERE}, {JOB}, "supervision": {{"min_workers": §3}}}}',
        "min_workers is 3, the cluster has 2",
        "1 to 2",
    ),
    "text for a switch": (
        f'{{{HERE}, {JOB}, "resources": {{"pin": §"yes"}}}}',
        "true or false is expected here, not 'yes'",
        "true",
    ),
    "half a GPU": (f'{{{HERE}, {JOB}, "resources": {{"gpus": §0.5}}}}', 'or "all"', '"all"'),
    "null for a section": (
        f'{{{HERE}, {JOB}, "resources": §null}}',
        "an object is expected",
        '{"gpus"',
    ),
    "ssh option for a host": (
        f'{{{HERE}, {JOB}, "runtime": {{"hosts": {{"*": {{"ssh": §"-oProxyCommand=x"}}}}}}}}',
        "is not a host",
        "user@host",
    ),
}


@pytest.mark.parametrize(("marked", "message", "fix"), MARKED.values(), ids=MARKED)
def test_a_mistake_is_told_with_place_and_cure(
    marked: str, message: str, fix: str, tmp_path: Path
) -> None:
    before = marked.partition("§")[0]
    line, column = before.count("\n") + 1, len(before.rpartition("\n")[2]) + 1
    (found,) = problems_of(marked.replace("§", ""), tmp_path)
    assert found.place == f"a.json:{line}:{column}"
    assert message in found.message
    assert fix in found.fix


# (the file, place, a part of the message, a part of the cure)
UNREADABLE = {
    "empty": ("", "a.json", "empty", "tfcluster init"),
    "only space": (" \n\t", "a.json", "empty", "tfcluster init"),
    "a number of many digits": ('{"a": ' + "9" * 5000 + "}", "a.json:1:7", "too many digits", ""),
    "deep": ("[" * 100_000, "a.json:1:66", "nested more than", ""),
    "latin-1": (b'{\n"name": "caf\xe9"}', "a.json:2:13", "0xe9 is not UTF-8", "as UTF-8"),
    "UTF-16": ("{}".encode("utf-16"), "a.json:1:1", "not UTF-8", "as UTF-8"),
    "too large": (b" " * 5_000_000, "a.json", "larger than 4 MiB", "is this a spec file?"),
}


@pytest.mark.parametrize(("data", "place", "message", "fix"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_is_no_json_at_all_is_told_too(
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
    "0.0.0.0:1": "no address that can be reached",
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
    "a number beside addresses": ('["gpu1:1"], "evaluator": §1', "says no place"),
}


@pytest.mark.parametrize(("marked", "message"), BETWEEN.values(), ids=BETWEEN)
def test_addresses_that_cannot_stand_side_by_side_are_refused(
    marked: str, message: str, tmp_path: Path
) -> None:
    text = f'{{"cluster": {{"worker": {marked}}}, {JOB}}}'
    (found,) = problems_of(text.replace("§", ""), tmp_path)
    assert found.place == f"a.json:1:{text.index('§') + 1}"
    assert message in found.message
    assert found.fix


def test_all_mistakes_of_a_file_are_told_together_in_its_order(tmp_path: Path) -> None:
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


def test_rules_between_sections_are_told_beside_mistakes_in_other_fields(tmp_path: Path) -> None:
    text = '{"cluster": {"worker": ["a:1"]}, "job": {}, "runtime": {"hosts": {"c": {}}}}'
    found = problems_of(text, tmp_path)
    assert [problem.message for problem in found] == [
        "job: nothing to run: no script, module or command",
        "no address of the cluster has the host 'c'",
    ]


def test_a_newer_version_is_told_in_one_line_before_all_else(tmp_path: Path) -> None:
    (found,) = problems_of('{"version": 7, "cluster": 3, "cluster": 4}', tmp_path)
    assert "\n" not in str(found)
    assert "pip install --upgrade tfcluster" in str(found)
