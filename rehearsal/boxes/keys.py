"""Key pairs that live as long as one box."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat


def mint(folder: Path) -> None:
    """Write two fresh ed25519 pairs in OpenSSH's formats: `id_ed25519` for the client, `host_ed25519` for the host.

    `folder` is made with mode 0700, the private files with 0600. Minting the host's key on the laptop is what
    makes the first connection as sure as every later one.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("id_ed25519", "host_ed25519"):
        key = Ed25519PrivateKey.generate()
        private = folder / name
        private.touch(mode=0o600)
        private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        (folder / f"{name}.pub").write_bytes(public + b"\n")
