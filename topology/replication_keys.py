"""The keys by which clusters that replicate to each other prove themselves.

Either all clusters share one secret, or a directory has keys of its own for each other cluster: the
file ``CLUSTER``, or the files in the directory ``CLUSTER``. Each proof and each check reads the
files again, so keys are replaced without a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from velaray.topology.auth import MOST_PROOFS, check_replicator_proof, replicator_proof
from velaray.topology.config import ClusterConfig
from velaray.topology.key_files import KeyFileError, read_secret

logger = logging.getLogger("velaray")

MOST_KEYS = MOST_PROOFS
"""The keys of one cluster that are in use at a time: the first ones by name."""


def replicator_proofs(config: ClusterConfig, target: str) -> str:
    """The proofs that this cluster's replicators show to ``target``, one for each key; "" without
    a key. They reveal no key. Blocks to read key files."""
    keys = _keys(config, target)
    made = (replicator_proof(key, config.name, target, config.data_id) for key in keys)
    return ",".join(made)


def check_replicator(config: ClusterConfig, source: str, data_id: str, proofs: str) -> None:
    """Check that a replicator is that of cluster ``source``, whose data has this id.

    ``proofs`` are those of `replicator_proofs`. Blocks to read key files. Raises
    `AuthenticationFailed`.
    """
    check_replicator_proof(_keys(config, source), source, config.name, data_id, proofs)


def key_names(config: ClusterConfig, cluster: str) -> list[str]:
    """The names of the files with keys for another cluster; the keys themselves are shown nowhere.
    Blocks."""
    return list(_usable(_files(Path(config.replication_keys), cluster)))


def check_replication_keys(folder: Path) -> None:
    """Raise `KeyFileError` or `OSError` if a file in the directory has no usable key, or if a
    cluster has more than `MOST_KEYS`. A directory without files is valid: keys may follow."""
    for each in _visible(folder):
        files = _files(folder, each.name)
        if len(files) > MOST_KEYS:
            raise KeyFileError(
                f"{each} has {len(files)} keys, and a cluster may have {MOST_KEYS}: remove old ones"
            )
        for file in files:
            read_secret(file)


def _keys(config: ClusterConfig, cluster: str) -> Sequence[bytes]:
    if not config.replication_keys:
        return [config.replication_secret] if config.replication_secret else []
    return list(_usable(_files(Path(config.replication_keys), cluster)[:MOST_KEYS]).values())


def _usable(files: Sequence[Path]) -> Mapping[str, bytes]:
    found: dict[str, bytes] = {}
    for file in files:
        try:
            found[file.name] = read_secret(file)
        except (KeyFileError, OSError) as error:
            logger.error("keys of replication: %s isn't in use: %s", file, error)
    return found


def _files(folder: Path, cluster: str) -> list[Path]:
    """The files with keys for a cluster. Its name may be any text that a client has sent, so it is
    compared with what the directory has, and is never a part of a path."""
    for each in _visible(folder):
        if each.name == cluster:
            return [file for file in _visible(each) if file.is_file()] if each.is_dir() else [each]
    return []


def _visible(folder: Path) -> list[Path]:
    """Hidden files don't count: Kubernetes keeps the versions of a secret in some."""
    try:
        found = sorted(folder.iterdir())
    except OSError:
        return []
    return [each for each in found if not each.name.startswith(".")]
