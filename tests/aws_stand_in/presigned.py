"""Addresses of objects that are signed beforehand: whoever has one may do that one thing."""

import time
from calendar import timegm
from collections.abc import Callable

from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from werkzeug.wrappers import Request

from cloudtune.infra.emulator.requests import Ec2Error, Signed


def check_presigned(request: Request, secret_of: Callable[[str, str], str | None]) -> Signed:
    """Return what such an address is for, and whose key signed it.

    Raises:
        Ec2Error: with S3's code: the key is unknown, the time is over, or it was changed.
    """
    given = request.args
    key, _, region, service, _ = given["X-Amz-Credential"].split("/")
    token = given.get("X-Amz-Security-Token", "")
    secret = secret_of(key, token)
    if secret is None:
        raise Ec2Error("InvalidAccessKeyId", "The AWS access key Id does not exist.", 403)
    stamp = given["X-Amz-Date"]
    signed_at = timegm(time.strptime(stamp, "%Y%m%dT%H%M%SZ"))
    if time.time() > signed_at + int(given["X-Amz-Expires"]):
        raise Ec2Error("AccessDenied", "Request has expired", 403)
    address, _, signature = request.environ["REQUEST_URI"].partition("&X-Amz-Signature=")
    auth = S3SigV4QueryAuth(Credentials(key, secret, token or None), service, region)
    asked = AWSRequest(request.method, f"https://{request.headers['Host']}{address}")
    asked.context["timestamp"] = stamp
    text = auth.string_to_sign(asked, auth.canonical_request(asked))
    if auth.signature(text, asked) != signature:
        raise Ec2Error("SignatureDoesNotMatch", "The request signature does not match.", 403)
    return Signed(service, region, key)
