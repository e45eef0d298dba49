//! `struct fi_ops_tagged`, in `fid_ep.tagged`: tagged messages, which this provider does not support. See
//! [`fi_tagged(3)`](https://ofiwg.github.io/libfabric/main/man/fi_tagged.3.html).

use super::Slot;
use crate::abi::sys::fi_ops_tagged;

/// The table. Every slot returns `-FI_ENOSYS`.
pub(in crate::abi) const fn table() -> *const fi_ops_tagged {
    const TABLE: &fi_ops_tagged = &fi_ops_tagged {
        size: size_of::<fi_ops_tagged>(),
        recv: Slot::UNSUPPORTED,
        recvv: Slot::UNSUPPORTED,
        recvmsg: Slot::UNSUPPORTED,
        send: Slot::UNSUPPORTED,
        sendv: Slot::UNSUPPORTED,
        sendmsg: Slot::UNSUPPORTED,
        inject: Slot::UNSUPPORTED,
        senddata: Slot::UNSUPPORTED,
        injectdata: Slot::UNSUPPORTED,
    };
    TABLE
}
