"""Whether the daemon has an image, and where it comes from if it does not."""

from __future__ import annotations

from tfcluster.backends.base import Tell
from tfcluster.backends.docker_client import DockerError, ask
from tfcluster.errors import SurroundingsError
from tfcluster.spec.images import DEFAULT_IMAGE

_PULL_S = 3600.0
_OURS = DEFAULT_IMAGE.partition(":")[0]


async def find_image(image: str, tell: Tell) -> str:
    """Return the user that the image names, which may be none; pull what the daemon does not have,
    unless only `tfcluster build` makes it. Raises SurroundingsError."""
    inspect = ("image", "inspect", "--format", "{{.Config.User}}", image)
    found = await ask(*inspect)
    if found.is_good:
        return found.out
    if "No such image" not in found.said:
        raise DockerError("docker does not answer", found.said)
    name, _, tag = image.partition(":")
    if name == _OURS:
        version = f" --tensorflow {tag[2:]}" if tag.startswith("tf") else ""
        raise SurroundingsError(
            f"docker has no image {image}", cure=f"`tfcluster build{version}` makes it"
        )
    tell(f"docker pulls {image}, which it does not have")
    answer = await ask("pull", "--quiet", image, patience_s=_PULL_S)
    if not answer.is_good:
        raise DockerError(f"docker has no image {image}, and cannot pull it", answer.said)
    return (await ask(*inspect)).out
