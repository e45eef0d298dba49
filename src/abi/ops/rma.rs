//! `struct fi_ops_rma`, in `fid_ep.rma`: remote memory access, which this provider does not support. See
//! [`fi_rma(3)`](https://ofiwg.github.io/libfabric/main/man/fi_rma.3.html).

use super::Slot;
use crate::abi::sys::fi_ops_rma;

/// The table. Every slot returns `-FI_ENOSYS`.
pub(in crate::abi) const fn table() -> *const fi_ops_rma {
    const TABLE: &fi_ops_rma = &fi_ops_rma {
        size: size_of::<fi_ops_rma>(),
        read: Slot::UNSUPPORTED,
        readv: Slot::UNSUPPORTED,
        readmsg: Slot::UNSUPPORTED,
        write: Slot::UNSUPPORTED,
        writev: Slot::UNSUPPORTED,
        writemsg: Slot::UNSUPPORTED,
        inject: Slot::UNSUPPORTED,
        writedata: Slot::UNSUPPORTED,
        injectdata: Slot::UNSUPPORTED,
    };
    TABLE
}
