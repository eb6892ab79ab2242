"""Ledgers that a test changes: without the checksums, as versions before 0.3 wrote them."""

import json
from pathlib import Path


def without_checksum(line: str) -> str:
    """Return a ledger's line without its checksum, if it has one."""
    data = json.loads(line)
    data.pop("crc", None)
    return json.dumps(data)


def drop_checksums(ledger: Path) -> str:
    """Write a ledger again without checksums, so that a change of it is read; return its text."""
    lines = ledger.read_text().splitlines()
    text = "".join(f"{without_checksum(line)}\n" for line in lines)
    ledger.write_text(text)
    return text
