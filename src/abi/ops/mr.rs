//! `struct fi_ops_mr`, in `fid_domain.mr`: memory registration, which this provider does not support. See
//! [`fi_mr(3)`](https://ofiwg.github.io/libfabric/main/man/fi_mr.3.html).

use super::Slot;
use crate::abi::sys::fi_ops_mr;

/// The table. Every slot returns `-FI_ENOSYS`.
pub(in crate::abi) const fn table() -> *const fi_ops_mr {
    const TABLE: &fi_ops_mr = &fi_ops_mr {
        size: size_of::<fi_ops_mr>(),
        reg: Slot::UNSUPPORTED,
        regv: Slot::UNSUPPORTED,
        regattr: Slot::UNSUPPORTED,
    };
    TABLE
}
