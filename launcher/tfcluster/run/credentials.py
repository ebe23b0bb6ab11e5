"""Which files of a workdir are credentials by their names: they are not sent to other machines."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final

_FILES: Final = (
    # environments and passwords of tools
    *(".env", ".env.*", ".envrc", ".netrc", "_netrc", ".git-credentials", ".pgpass", ".my.cnf"),
    *(".htpasswd", ".vault-token", "secrets.toml"),
    # tokens of package indexes and registries
    *(".pypirc", ".npmrc", ".yarnrc", ".yarnrc.yml", ".dockercfg"),
    # private keys, and stores that hold them
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.ppk", "*.jks", "*.keystore", "*.kdbx"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*"),
    # clouds, clusters and data services
    *("kubeconfig", "*.kubeconfig", ".boto", ".s3cfg", "kaggle.json", "credentials.json"),
    *("client_secret*.json", "application_default_credentials.json"),
    *("service-account*.json", "service_account*.json"),
)
_FOLDERS: Final = (".ssh", ".gnupg", ".aws", ".azure", ".kube", ".kaggle", ".password-store")
_PATHS: Final = (".docker/config.json", ".config/gcloud/*", ".huggingface/token*")
"""Of folders that hold other things, too."""
_HARMLESS: Final = ("*.pub", ".env.example", ".env.sample", ".env.template", ".env.dist")


def is_credential(path: str) -> bool:
    """Whether `path`, below the workdir and with slashes, is named like a credential."""
    *folders, name = path.split("/")
    if not set(_FOLDERS).isdisjoint(folders):
        return True
    if any(fnmatchcase(name, pattern) for pattern in _HARMLESS):
        return False
    return any(fnmatchcase(name.lower(), pattern) for pattern in _FILES) or any(
        fnmatchcase(f"/{path}", f"*/{pattern}") for pattern in _PATHS
    )
