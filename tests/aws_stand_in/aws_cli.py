"""The one command of the AWS CLI that instances use: `aws s3 cp --only-show-errors URI -`."""

import os
import shutil
import sys
from urllib.parse import urlsplit

import boto3
from botocore.exceptions import BotoCoreError, ClientError


def main(arguments: list[str]) -> int:
    """Write an object to stdout; by itself the CLI finds a region from the instance's metadata."""
    assert arguments[:3] == ["s3", "cp", "--only-show-errors"], arguments
    place = urlsplit(arguments[3])
    try:
        s3 = boto3.client("s3", region_name=os.environ.get("AWS_REGION", "us-east-1"))
        answer = s3.get_object(Bucket=place.netloc, Key=place.path.lstrip("/"))
        shutil.copyfileobj(answer["Body"], sys.stdout.buffer)
    except (BotoCoreError, ClientError) as error:
        sys.stderr.write(f"download failed: {arguments[3]} to - {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
