#!/usr/bin/env bash
# Makes what the virtual machine boots from, in target/vm: Debian's kernel, unpacked and not installed;
# siw as a module of it, which Debian's kernel leaves out; an initial file system that finds the rest.
# Running it again changes nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=$PWD/target/vm
root=$folder/root
packages=(qemu-system-x86 busybox-static kmod cpio make gcc-12 apt iproute2)
commands=(qemu-system-x86_64 busybox modprobe cpio make gcc-12 apt-get rdma)

# One at a time; what has been made stays until this folder changes.
mkdir -p target
exec {lock}>"$folder.lock"
flock "$lock"
stamp=$folder/stamp
made=$({ cat scripts/vm/prepare.sh scripts/vm/init; pwd; } | sha256sum)
[[ -f $stamp && $(<"$stamp") == "$made" ]] && exit 0

PATH=$PATH:/usr/sbin:/sbin
for command in "${commands[@]}"; do
    command -v "$command" >/dev/null || {
        echo "vm: no $command here: install the Debian packages ${packages[*]}" >&2
        exit 1
    }
done

rm -rf "$folder"
mkdir -p "$root" "$folder/packages"

# ---- kernel ---------------------------------------------------------------------------------

version=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: linux-image-//p')
[[ -n $version ]] || { echo "vm: apt does not know linux-image-amd64 (apt-get update?)" >&2; exit 1; }
headers=linux-headers-$version
common=linux-headers-${version%-amd64}-common
series=$(cut -d. -f1,2 <<<"$version")
echo "vm: fetching and unpacking Linux $version"
(
    cd "$folder/packages"
    apt-get download -qq -o APT::Sandbox::User=root \
        "linux-image-$version" "$headers" "$common" "linux-kbuild-$series" "linux-source-$series"
) || { echo "vm: the kernel's packages cannot be fetched (apt-get update?)" >&2; exit 1; }
for package in "$folder"/packages/linux-{image,headers,kbuild}-*.deb; do
    dpkg -x "$package" "$root"
done
modules=$root/lib/modules/$version
# The kernel without the program that unpacks it, which takes seconds of each start in the emulation.
image=$root/boot/vmlinuz-$version
IFS=: read -r start _ < <(LC_ALL=C grep -aboP '\xfd7zXZ\x00' "$image")
xz -dc --single-stream < <(tail -c "+$((start + 1))" "$image") >"$folder/vmlinux"

# ---- siw ------------------------------------------------------------------------------------
# Its sources call the settings of its MPA handshake module parameters, but have them as constants:
# here they are parameters, so that tests can ask for each.

echo "vm: building siw"
siw=$folder/siw
mkdir "$siw"
dpkg --fsys-tarfile "$folder"/packages/linux-source-*.deb |
    tar -xO "./usr/src/linux-source-$series.tar.xz" |
    tar -xJ -C "$siw" --strip-components=5 "linux-source-$series/drivers/infiniband/sw/siw"
sed -i 's/\$(CONFIG_RDMA_SIW)/m/' "$siw/Makefile"
for parameter in mpa_crc_required mpa_crc_strict peer_to_peer; do
    sed -i "s/^const bool $parameter;/bool $parameter; module_param($parameter, bool, 0644);/" "$siw/siw_main.c"
    sed -i "s/^extern const bool $parameter;/extern bool $parameter;/" "$siw/siw.h"
    grep -q "module_param($parameter," "$siw/siw_main.c"
done
sed -i 's/^u_char mpa_version = .*/&\nmodule_param(mpa_version, byte, 0644);/' "$siw/siw_main.c"
grep -q 'module_param(mpa_version,' "$siw/siw_main.c"
# siw of Linux 6.1.192 asks TCP by a flag to take pages without a copy, and that TCP does not know the flag and
# copies. Here siw makes the call of Linux 6.1.0 instead, by which TCP takes the pages.
sed -i -e 's/tcp_sendmsg_locked(sk, &msg, bytes);/do_tcp_sendpages(sk, page[i], offset, bytes, msg.msg_flags \& ~MSG_SPLICE_PAGES);/' \
    -e 's/^\t*bytes -= rv;/&\n offset += rv;/' "$siw/siw_qp_tx.c"
grep -q 'do_tcp_sendpages(' "$siw/siw_qp_tx.c"
# The headers stand elsewhere than in an installed system.
echo "include $root/usr/src/$common/Makefile" >"$root/usr/src/$headers/Makefile"
make -s -C "$root/usr/src/$headers" M="$siw" modules >"$folder/siw.log" 2>&1 ||
    { cat "$folder/siw.log" >&2; exit 1; }
install -D -m 644 "$siw/siw.ko" "$modules/updates/siw.ko"
depmod -b "$root" "$version"
echo "$version" >"$folder/version"

# ---- initial file system --------------------------------------------------------------------

initrd=$folder/initrd
mkdir -p "$initrd"/{bin,modules,dev,proc,sys,lower,upper,new}
install -m 755 /bin/busybox "$initrd/bin/busybox"
install -m 755 scripts/vm/init "$initrd/init"
number=100
modprobe -d "$root" -S "$version" -a --show-depends virtio_pci virtio_console 9pnet_virtio 9p overlay |
    awk '$1 == "insmod" && !seen[$2]++ { print $2 }' |
    while read -r module; do
        cp "$module" "$initrd/modules/$((number++))-${module##*/}"
    done
(cd "$initrd" && find . | cpio -o -H newc --quiet) | gzip -1 >"$folder/initrd.gz"

rm -rf "$folder/packages" "$initrd" "$siw"
echo "$made" >"$stamp"
