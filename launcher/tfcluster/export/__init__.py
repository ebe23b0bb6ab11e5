"""Plans as files of other tools, which then start the tasks: Compose, Slurm, Kubernetes.

A format is a line of `FORMATS`. Its module has `BACKEND`, the backend whose plan it writes, and
`render(subject, request)`, a pure function.
"""

from typing import Final

FORMATS: Final = {
    "compose": "tfcluster.export.compose",
    "sbatch": "tfcluster.export.sbatch",
    "kubernetes": "tfcluster.export.kube_pods",
}
"""The name that users write → the module of the format."""
