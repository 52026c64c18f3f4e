#!/usr/bin/env bash
# Build the Dockerfile with buildah, which needs neither a daemon nor a registry, and try what comes of it. As root:
#   scripts/deploy/try_image.sh FOLDER
# debootstrap makes the base image. It prints the size and runs perfwatch as the image's user. The folder is left for a look: it holds the
# images (buildah --root FOLDER/images images) and image.tar for docker load.
set -euo pipefail
folder=$(mkdir -p "${1:?usage: try_image.sh FOLDER}" && cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
base=docker.io/library/debian:bookworm-slim
builder() { buildah --root "$folder/images" --runroot "$folder/run" --storage-driver vfs "$@"; }

if ! builder inspect --type image "$base" >/dev/null 2>&1; then
    [ -e "$folder/base/usr/bin/apt" ] || debootstrap --variant=minbase bookworm "$folder/base" "$mirror" >"$folder/debootstrap.log"
    rm -rf "$folder"/base/usr/share/{doc,man,locale,info}/* "$folder"/base/var/{cache/apt,lib/apt/lists}/* # as the slim image
    printf 'path-exclude /usr/share/%s/*\n' doc man locale info >"$folder/base/etc/dpkg/dpkg.cfg.d/slim"
    # A site may have a certificate authority of its own: pip in the image trusts what this machine trusts.
    mkdir -p "$folder/base/etc/ssl/certs"
    cp /etc/ssl/certs/ca-certificates.crt "$folder/base/etc/ssl/certs/site.crt"
    printf '[global]\ncert = /etc/ssl/certs/site.crt\n%s' "${PIP_INDEX_URL:+index-url = $PIP_INDEX_URL$'\n'}" >"$folder/base/etc/pip.conf"
    made=$(builder from scratch)
    builder add "$made" "$folder/base" / >/dev/null
    builder commit --quiet "$made" "$base" >/dev/null
    builder rm "$made" >/dev/null
fi
builder bud --pull-never --isolation chroot --network host --format docker --file "$root/scripts/deploy/Dockerfile" --tag perfwatch:test "$root" \
    >"$folder/build.log" 2>&1 || { tail -n 20 "$folder/build.log" >&2; exit 1; }
made=$(builder from --pull-never localhost/perfwatch:test)
mounted=$(builder mount "$made")
echo "image: $(du -sm --apparent-size "$mounted" | cut -f1) MB, of which perfwatch and its packages $(du -sm --apparent-size "$mounted/opt/perfwatch" | cut -f1) MB"
builder umount "$made" >/dev/null
try() { builder run --isolation chroot "$made" -- "$@"; }
try perfwatch version
try perfwatch ps
try perfwatch doctor | tail -n 1
try python3 -c 'import os; print("as uid", os.getuid())'
builder rm "$made" >/dev/null
rm -f "$folder/image.tar"
builder push --quiet --format docker perfwatch:test "docker-archive:$folder/image.tar:perfwatch:test"
echo "compressed: $(gzip -c "$folder/image.tar" | wc -c | awk '{printf "%.0f", $1 / 1e6}') MB"
