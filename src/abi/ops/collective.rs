//! `struct fi_ops_collective`, in `fid_ep.collective`: collective operations, which this provider does not
//! support. See [`fi_collective(3)`](https://ofiwg.github.io/libfabric/main/man/fi_collective.3.html).

use super::Slot;
use crate::abi::sys::fi_ops_collective;

/// The table. Every slot returns `-FI_ENOSYS`.
pub(in crate::abi) const fn table() -> *const fi_ops_collective {
    const TABLE: &fi_ops_collective = &fi_ops_collective {
        size: size_of::<fi_ops_collective>(),
        barrier: Slot::UNSUPPORTED,
        broadcast: Slot::UNSUPPORTED,
        alltoall: Slot::UNSUPPORTED,
        allreduce: Slot::UNSUPPORTED,
        allgather: Slot::UNSUPPORTED,
        reduce_scatter: Slot::UNSUPPORTED,
        reduce: Slot::UNSUPPORTED,
        scatter: Slot::UNSUPPORTED,
        gather: Slot::UNSUPPORTED,
        msg: Slot::UNSUPPORTED,
        barrier2: Slot::UNSUPPORTED,
    };
    TABLE
}
