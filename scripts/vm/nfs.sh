# NFS over RDMA, for what runs inside the virtual machine: a server and its client in one kernel. Needs what
# scripts/vm/nfs-tools.sh unpacks.

# serve_nfs: exports /export on port 20049 of every RDMA device.
serve_nfs() {
    local tools=$PWD/target/vm/tools
    export PATH=$tools/sbin:$tools/usr/sbin:$PATH
    export LD_LIBRARY_PATH=$tools/lib/x86_64-linux-gnu:$tools/usr/lib/x86_64-linux-gnu
    modprobe -a rpcrdma nfsd nfs nfsv4 || return
    mkdir -p /export /var/lib/nfs
    mount -t nfsd nfsd /proc/fs/nfsd
    mount -t tmpfs none /export
    mount -t tmpfs none /var/lib/nfs
    mkdir -p /var/lib/nfs/{v4recovery,rpc_pipefs}
    touch /etc/exports /var/lib/nfs/{etab,rmtab}
    mount -t rpc_pipefs rpc_pipefs /var/lib/nfs/rpc_pipefs
    # A client that comes back has so long to claim what it had.
    echo 10 >/proc/fs/nfsd/nfsv4leasetime
    echo 10 >/proc/fs/nfsd/nfsv4gracetime
    exportfs -o rw,no_root_squash,insecure,fsid=0,no_subtree_check '*:/export' || return
    rpc.mountd -N 3 && rpc.nfsd -N 3 4 || return
    echo "rdma 20049" >/proc/fs/nfsd/portlist || return
    sleep 11
}

# use_nfs KIND: reads a file, writes one and lists a folder, over the devices of a kind.
use_nfs() {
    local server client
    server=$(address 4 "$1" 1) client=$(address 4 "$1" 0)
    mkdir -p /mnt/nfs
    mount -i -t nfs4 -o "vers=4.2,proto=rdma,port=20049,addr=$server,clientaddr=$client,sec=sys" "$server:/" /mnt/nfs
    cmp /mnt/nfs/license /export/license
    head -c 9001 LICENSE-APACHE >/mnt/nfs/written
    sync /mnt/nfs/written
    cmp /mnt/nfs/written /export/written
    find /mnt/nfs | wc -l
    umount /mnt/nfs
}
