"""The check of the files that botocore reads to log in, before it waits for their bytes."""

from __future__ import annotations

from contextlib import suppress

from botocore.exceptions import BotoCoreError
from botocore.session import Session

from streamrec.config.named_files import check_file


def check_login_files(profile: str | None) -> None:
    """Check the files of AWS's configuration, and those that its profile names.

    Args:
        profile: The profile; ``None``: that of the environment.

    Raises:
        ConfigError: One is a FIFO or a device.
    """
    session = Session(profile=profile)
    for name in ("credentials_file", "config_file"):
        check_file(session.get_config_variable(name), f"AWS's {name}")
    with suppress(BotoCoreError):  # s3fs meets and tells it, too
        for name in ("ca_bundle", "web_identity_token_file"):
            if path := session.get_scoped_config().get(name):
                check_file(path, f"{name!r} in AWS's configuration")
