"""`tfcluster import` writes the spec to stdout or a file, and its notes to stderr."""

import json
from pathlib import Path

from click.testing import CliRunner

from tfcluster.cli.main import cli
from tfcluster.errors import SpecError

MANIFEST = """\
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {name: mnist}
spec:
  tfReplicaSpecs:
    Worker:
      replicas: 2
      template:
        spec:
          containers: [{name: tensorflow, image: "tf:1", command: [python, /train.py]}]
"""


def test_the_spec_goes_to_stdout_and_the_notes_to_stderr() -> None:
    result = CliRunner().invoke(cli, ["import", "-"], input=MANIFEST)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["cluster"] == {"worker": 2}
    assert "needed before a start" in result.stderr
    assert "spec.runPolicy.cleanPodPolicy" in result.stderr


def test_the_spec_of_a_file_can_be_planned(tmp_path: Path) -> None:
    manifest, spec = tmp_path / "tfjob.yaml", tmp_path / "train.json"
    manifest.write_text(MANIFEST)
    result = CliRunner().invoke(cli, ["import", str(manifest), "-o", str(spec)])
    assert f"next: tfcluster plan {spec}" in result.stderr
    assert CliRunner().invoke(cli, ["plan", str(spec)]).exit_code == 0


def test_a_manifest_has_the_limits_of_a_spec_file() -> None:
    result = CliRunner().invoke(cli, ["import", "/dev/zero"])
    assert isinstance(result.exception, SpecError)
    assert "larger than 4 MiB" in str(result.exception)
    result = CliRunner().invoke(cli, ["import", "-"], input=b"\xff")
    assert "<stdin>:1:1: byte 0xff is not UTF-8" in str(result.exception)
