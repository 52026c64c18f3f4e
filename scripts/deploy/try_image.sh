#!/usr/bin/env bash
# Follow the steps of the Dockerfile in a folder, with debootstrap and chroot instead of Docker, and try what comes of it. As root:
#   scripts/deploy/try_image.sh FOLDER
# It prints the size of the image's files, and runs perfwatch in there as the image's user. The folder is left for a look.
set -euo pipefail
folder=${1:?usage: try_image.sh FOLDER}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
debootstrap=${DEBOOTSTRAP:-debootstrap}

mkdir -p "$folder"
[ -e "$folder/base/usr/bin/apt" ] || $debootstrap --variant=minbase --include=ca-certificates bookworm "$folder/base" "$mirror"
cp -f /etc/resolv.conf "$folder/base/etc/" || true
for name in build image; do
    rm -rf "${folder:?}/$name"
    cp -a "$folder/base" "$folder/$name"
done
quiet() { chroot "$folder/$1" env DEBIAN_FRONTEND=noninteractive apt-get -qq "${@:2}" >/dev/null; }

# FROM debian:bookworm-slim AS build
quiet build update
quiet build install -y --no-install-recommends python3-venv
mkdir -p "$folder/build/src"
(cd "$root" && cp -a --parents pyproject.toml README.md LICENSE launcher probes scripts/packaging "$folder/build/src/")
cat >"$folder/build/install" <<'STEPS'
set -e
cd /src
python3 -m venv --without-pip /opt/perfwatch
python3 -m venv /tmp/pip
/tmp/pip/bin/pip --python /opt/perfwatch/bin/python install -q --no-cache-dir --no-compile '.[metrics]'
STEPS
mkdir -p "$folder/build/etc/ssl/certs" # a site may have a certificate authority of its own
cp /etc/ssl/certs/ca-certificates.crt "$folder/build/etc/ssl/certs/"
chroot "$folder/build" env ${PIP_INDEX_URL:+"PIP_INDEX_URL=$PIP_INDEX_URL"} PIP_CERT=/etc/ssl/certs/ca-certificates.crt sh /install

# FROM debian:bookworm-slim
quiet image update
quiet image install -y --no-install-recommends python3
rm -rf "$folder"/image/var/lib/apt/lists/* "$folder"/image/var/cache/apt/*
rm -rf "$folder"/image/usr/share/{doc,man,locale,info}/* # as debian:bookworm-slim has it
cp -a "$folder/build/opt/perfwatch" "$folder/image/opt/"
mkdir -p "$folder/image/usr/local/lib/perfwatch"
cp -a "$here/actions" "$folder/image/usr/local/lib/perfwatch/"
chroot "$folder/image" useradd --uid 65532 --no-create-home --home-dir /nonexistent perfwatch

echo "image: $(du -sm --apparent-size "$folder/image" | cut -f1) MB, of which perfwatch and its packages $(du -sm --apparent-size "$folder/image/opt/perfwatch" | cut -f1) MB"
mkdir -p "$folder/image/proc"
try() { unshare --mount sh -c 'mount -t proc proc "$0/proc" && exec chroot --userspec=65532:65532 "$0" env -i PATH=/opt/perfwatch/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 "$@"' "$folder/image" "$@"; }
try perfwatch version
try perfwatch ps
try perfwatch doctor | tail -n 1
try python3 -c 'import os; print("as uid", os.getuid())'
