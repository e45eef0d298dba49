//! `struct fi_ops_atomic`, in `fid_ep.atomic`: atomic operations on remote memory, which this provider does
//! not support. See [`fi_atomic(3)`](https://ofiwg.github.io/libfabric/main/man/fi_atomic.3.html).

use super::Slot;
use crate::abi::sys::fi_ops_atomic;

/// The table. Every slot returns `-FI_ENOSYS`.
pub(in crate::abi) const fn table() -> *const fi_ops_atomic {
    const TABLE: &fi_ops_atomic = &fi_ops_atomic {
        size: size_of::<fi_ops_atomic>(),
        write: Slot::UNSUPPORTED,
        writev: Slot::UNSUPPORTED,
        writemsg: Slot::UNSUPPORTED,
        inject: Slot::UNSUPPORTED,
        readwrite: Slot::UNSUPPORTED,
        readwritev: Slot::UNSUPPORTED,
        readwritemsg: Slot::UNSUPPORTED,
        compwrite: Slot::UNSUPPORTED,
        compwritev: Slot::UNSUPPORTED,
        compwritemsg: Slot::UNSUPPORTED,
        writevalid: Slot::UNSUPPORTED,
        readwritevalid: Slot::UNSUPPORTED,
        compwritevalid: Slot::UNSUPPORTED,
    };
    TABLE
}
