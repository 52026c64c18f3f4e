"""The build backend: setuptools, whose archives are made again so that the same commit gives the same bytes.

Members are sorted and have no owner, their modes do not depend on the umask, and their time is $SOURCE_DATE_EPOCH
(https://reproducible-builds.org).
"""

import gzip
import io
import os
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from setuptools import build_meta  # type: ignore[import-untyped]

build_editable = build_meta.build_editable
get_requires_for_build_wheel = build_meta.get_requires_for_build_wheel
get_requires_for_build_editable = build_meta.get_requires_for_build_editable
get_requires_for_build_sdist = build_meta.get_requires_for_build_sdist
prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    """Make the archive; its name."""
    name: str = build_meta.build_sdist(sdist_directory, config_settings)
    if os.environ.get("SOURCE_DATE_EPOCH"):
        normalize(Path(sdist_directory) / name, int(os.environ["SOURCE_DATE_EPOCH"]))
    return name


def build_wheel(
    wheel_directory: str, config_settings: dict[str, Any] | None = None, metadata_directory: str | None = None
) -> str:
    """Make the wheel; its name."""
    name: str = build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
    if os.environ.get("SOURCE_DATE_EPOCH"):
        normalize_wheel(Path(wheel_directory) / name)
    return name


def normalize_wheel(archive: Path) -> None:
    """Write a wheel anew, with modes of its own. The times are right already, and the order is setuptools'."""
    made = io.BytesIO()
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            mode = 0o755 if member.external_attr >> 16 & 0o100 else 0o644
            member.external_attr = (0o100000 | mode) << 16
            new.writestr(member, old.read(member))
    archive.write_bytes(made.getvalue())


def normalize(archive: Path, seconds: int) -> None:
    """Write an archive anew, with this time everywhere."""
    made = io.BytesIO()
    with tarfile.open(archive) as old, tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = seconds, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    with archive.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=seconds) as packed:
        packed.write(made.getvalue())
