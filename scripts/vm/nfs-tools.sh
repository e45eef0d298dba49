#!/usr/bin/env bash
# Unpacks the programs of an NFS server into target/vm/tools, for scripts/vm/nfs.sh: they need not be installed.
set -euo pipefail
folder=$(realpath "$(dirname "$0")")/../../target/vm/tools
mkdir -p "$folder/packages"
cd "$folder/packages"
apt-get download -qq -o APT::Sandbox::User=root nfs-kernel-server nfs-common libtirpc3 libtirpc-common \
    libnfsidmap1 libevent-core-2.1-7 libkeyutils1 libwrap0
for package in *.deb; do
    dpkg -x "$package" ..
done
rm -r "$folder/packages"
