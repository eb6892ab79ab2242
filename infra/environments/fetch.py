"""Brings an environment to an instance: from the bucket, by the instance's own role, unpacked.

This file travels in the user data, and runs by whatever Python the image has: 3.7 or later, with
nothing but its standard library. It is given one argument, JSON:

    uri     s3://BUCKET/KEY, or the path of a file
    sha256  of the pack, and
    bytes   how long it is
    into    the folder that it is unpacked into, whole or not at all

The bucket is asked by ranges, several at a time, and what comes goes straight through zstd or gzip
into tar: the pack itself is never on the disk.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TypeVar

    T = TypeVar("T")

METADATA = "http://169.254.169.254"
PART = 16 << 20
AT_ONCE = 8
PATIENCE = 120.0
COMPLETE = ".complete"
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def metadata(path: str) -> str:
    """Return an item of the instance metadata service (IMDSv2)."""
    root = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or METADATA
    root = root.rstrip("/")
    asked = urllib.request.Request(
        root + "/latest/api/token",
        method="PUT",
        headers={"X-aws-ec2-metadata-token-ttl-seconds": "300"},
    )
    with DIRECT.open(asked, timeout=10) as answer:
        token = answer.read().decode()
    asked = urllib.request.Request(
        root + "/latest/" + path, headers={"X-aws-ec2-metadata-token": token}
    )
    with DIRECT.open(asked, timeout=10) as answer:
        return str(answer.read().decode())


def patiently(work: Callable[[], T], what: str) -> T:
    """Return what `work` does, asked again for two minutes while it fails."""
    give_up, pause = time.monotonic() + PATIENCE, 0.5
    while True:
        try:
            return work()
        except (OSError, ValueError, KeyError) as error:
            if getattr(error, "code", 0) == 404:
                raise OSError("the instance has no role: name an instance profile") from None
            if time.monotonic() + pause > give_up:
                raise OSError(f"{what}: {error}") from None
        time.sleep(pause)
        pause = min(2 * pause, 8.0)


def role() -> dict[str, str]:
    """Return the credentials of the instance's role."""
    path = "meta-data/iam/security-credentials/"
    found: dict[str, str] = json.loads(metadata(path + metadata(path).split()[0]))
    return found


class Bucket:
    """One object of a bucket, read by ranges; requests are signed (AWS Signature Version 4)."""

    def __init__(self, uri: str) -> None:
        place = urllib.parse.urlsplit(uri)
        self.bucket, self.key = place.netloc, place.path.lstrip("/")
        self.keys = patiently(role, "the role's credentials")
        known = os.environ.get("AWS_REGION")
        self.region = known or patiently(lambda: metadata("meta-data/placement/region"), "region")

    def url(self) -> str:
        """Return where the object is, in the region that the bucket is thought to be in."""
        given = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        key = urllib.parse.quote(self.key, safe="/-_.~")
        if given:
            return "{}/{}/{}".format(given.rstrip("/"), self.bucket, key)
        tail = "amazonaws.com.cn" if self.region.startswith("cn-") else "amazonaws.com"
        if "." in self.bucket:  # no certificate covers it as a name of a host
            return f"https://s3.{self.region}.{tail}/{self.bucket}/{key}"
        return f"https://{self.bucket}.s3.{self.region}.{tail}/{key}"

    def signed(self, first: int, last: int) -> urllib.request.Request:
        """Return the request for bytes `first` to `last`."""
        url = self.url()
        host, path = urllib.parse.urlsplit(url).netloc, urllib.parse.urlsplit(url).path
        now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")  # noqa: UP017  old Pythons
        empty = hashlib.sha256(b"").hexdigest()
        headers = {
            "host": host,
            "range": f"bytes={first}-{last}",
            "x-amz-content-sha256": empty,
            "x-amz-date": now,
            "x-amz-security-token": self.keys["Token"],
        }
        names = ";".join(sorted(headers))
        told = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        scope = f"{now[:8]}/{self.region}/s3/aws4_request"
        canonical = f"GET\n{path}\n\n{told}\n{names}\n{empty}"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        key = ("AWS4" + self.keys["SecretAccessKey"]).encode()
        for each in scope.split("/"):
            key = hmac.new(key, each.encode(), hashlib.sha256).digest()
        text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{digest}"
        proof = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        headers["Authorization"] = "AWS4-HMAC-SHA256 Credential={}/{}, SignedHeaders={}".format(
            self.keys["AccessKeyId"], scope, names + ", Signature=" + proof
        )
        return urllib.request.Request(url, headers=headers)

    def part(self, span: tuple[int, int]) -> bytes:
        """Return the bytes of a range, asked for again where that fails."""
        first, last = span
        why = ""
        for pause in (0.3, 0.6, 1.2, 2.4, 4.8, 0.0):
            try:
                with urllib.request.urlopen(self.signed(first, last), timeout=60) as answer:
                    data = bytes(answer.read())
                if len(data) == last - first + 1:
                    return data
                why = f"{len(data)} bytes instead of {last - first + 1}"
            except urllib.error.HTTPError as error:
                region = error.headers.get("x-amz-bucket-region")
                if region and region != self.region:
                    self.region = region
                    continue
                why = f"{error.code} {error.read(300).decode(errors='replace')}"
                if error.code in (401, 403, 404):
                    break  # no use to ask again
            except OSError as error:
                why = str(error)
            time.sleep(pause)
        raise OSError(" ".join(why.split()))

    def parts(self, size: int) -> Iterator[bytes]:
        """Yield the whole object in order, a few ranges ahead."""
        spans = [(at, min(at + PART, size) - 1) for at in range(0, size, PART)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            coming = [pool.submit(self.part, span) for span in spans[:AT_ONCE]]
            for number in range(len(spans)):
                yield coming.pop(0).result()
                if number + AT_ONCE < len(spans):
                    coming.append(pool.submit(self.part, spans[number + AT_ONCE]))


def file_parts(path: str) -> Iterator[bytes]:
    """Yield a file of this machine."""
    with Path(path).open("rb") as file:
        yield from iter(lambda: file.read(PART), b"")


def decompressor(uri: str) -> list[str]:
    """Return the program that unpacks such a pack; zstd is installed where an image lacks it."""
    if not uri.endswith(".zst"):
        return ["gzip", "-dc"]
    if shutil.which("zstd") is None:
        for manager in ("apt-get", "dnf", "yum"):
            if shutil.which(manager):
                subprocess.call([manager, "install", "-y", "zstd"], stdin=subprocess.DEVNULL)
                break
    if shutil.which("zstd") is None:
        raise OSError("the pack is zstd's, and this image has no zstd")
    return ["zstd", "-dc"]


def unpack(parts: Iterator[bytes], given: dict[str, Any]) -> None:
    """Unpack what comes; the folder is there once all of it is, and is what was packed."""
    into = Path(given["into"])
    fresh = into.with_name(into.name + ".part")
    shutil.rmtree(str(fresh), ignore_errors=True)
    fresh.mkdir(parents=True)
    data, digest = next(parts, b""), hashlib.sha256()
    pipe = subprocess.PIPE
    opened = subprocess.Popen(decompressor(given["uri"]), stdin=pipe, stdout=pipe)
    assert opened.stdin is not None and opened.stdout is not None
    untar = ["tar", "-xf", "-", "--no-same-owner", "-C", str(fresh)]
    tar = subprocess.Popen(untar, stdin=opened.stdout)
    opened.stdout.close()
    try:
        while data:
            digest.update(data)
            opened.stdin.write(data)
            data = next(parts, b"")
        opened.stdin.close()
        done = [opened.wait(), tar.wait()]
    except BrokenPipeError:  # one of them has said why
        raise OSError("it can't be unpacked: is the disk full?") from None
    finally:
        for each in (opened, tar):
            each.kill()
            each.wait()
    if digest.hexdigest() != given["sha256"]:
        raise OSError("its SHA-256 isn't what it was when it was packed")
    if done != [0, 0]:
        raise OSError("it can't be unpacked: is the disk full?")
    fresh.rename(into)


def main(given: dict[str, Any]) -> str:
    """Fetch an environment, and return what that took."""
    began = time.monotonic()
    into, uri = given["into"], given["uri"]
    if Path(into, COMPLETE).exists():
        return "is there already"
    shutil.rmtree(into, ignore_errors=True)
    remote = uri.startswith("s3://")
    unpack(Bucket(uri).parts(given["bytes"]) if remote else file_parts(uri), given)
    seconds = time.monotonic() - began
    return f"{given['bytes'] / 1e6:.0f} MB fetched and unpacked in {seconds:.1f} s"


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    name = "cloudtune-node: environment " + Path(told["into"]).name
    try:
        print(name, main(told), flush=True)  # noqa: T201
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"{name} can't be fetched from {told['uri']}: {error}")
