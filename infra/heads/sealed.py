"""Values for a head, sealed: the sealed text is in the storage, its key in the head's user data.

Neither place alone has a value. The head removes the sealed text once it has read it.
"""

import hashlib
import json
import secrets
from collections.abc import Mapping
from typing import Final

from cloudtune.errors import CloudtuneError

# In the environment of a head's first process: the key, in hexadecimal.
KEY_VARIABLE: Final = "CLOUDTUNE_KEY"
_KEY_BYTES = 32
_DIGEST_BYTES = 32


def seal(values: Mapping[str, str]) -> tuple[bytes, str]:
    """Return values sealed by a new key, and that key; each key seals once."""
    key = secrets.token_bytes(_KEY_BYTES)
    text = json.dumps(dict(values)).encode()
    return _mix(hashlib.sha256(key + text).digest() + text, key), key.hex()


def unseal(sealed: bytes, key: str) -> dict[str, str]:
    """Return the values that were sealed by a key.

    Raises:
        CloudtuneError: they were sealed by another key, or are damaged.
    """
    try:
        plain = bytes.fromhex(key)
    except ValueError:
        plain = b""
    data = _mix(sealed, plain)
    digest, text = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if not secrets.compare_digest(digest, hashlib.sha256(plain + text).digest()):
        raise CloudtuneError("the variables that the head was sent are damaged")
    values: dict[str, str] = json.loads(text)
    return values


def _mix(data: bytes, key: bytes) -> bytes:
    """Return data combined with as many bytes drawn from the key; twice is the data again."""
    stream = hashlib.shake_256(key).digest(len(data))
    mixed = int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")
    return mixed.to_bytes(len(data), "big")
