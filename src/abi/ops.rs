//! One file for each C op struct: a trait whose methods return `-FI_ENOSYS` by default, a
//! shim for each slot with a trait method, and the table. No slot is ever null, because
//! libfabric's inline functions call most slots without a check.
//!
//! A slot that no object supports has no trait method: `Slot::UNSUPPORTED` is a function of
//! the slot's C signature that returns `-FI_ENOSYS`.

use std::ffi::c_int;
use std::time::Duration;

use super::Errno;

pub(super) mod atomic;
pub(super) mod cm;
pub(super) mod cntr;
pub(super) mod collective;
pub(super) mod cq;
pub(super) mod domain;
pub(super) mod endpoint;
pub(super) mod eq;
pub(super) mod fabric;
pub(super) mod fid;
pub(super) mod message;
pub(super) mod mr;
pub(super) mod payload_places;
pub(super) mod rma;
pub(super) mod stats;
pub(super) mod stream;
pub(super) mod tagged;

pub use cm::CmOps;
pub use cntr::{CntrAttr, CntrOps};
pub use cq::{CqAttr, CqOps};
pub use domain::DomainOps;
pub use endpoint::EndpointOps;
pub use eq::{EqOps, USER_EVENT_LIMIT};
pub use fabric::{EqAttr, FabricOps};
pub use fid::{Control, Fid};
pub use message::{MessageOps, MessageReceive, MessageSend};
pub use mr::{MemoryPiece, Registration};
pub use payload_places::PayloadPlaces;
pub use rma::{RemotePiece, RmaCall, RmaOps};
pub use stats::StatsOps;
pub use stream::{IOV_LIMIT, StreamOps};
pub use tagged::{TaggedOps, Tags};

/// The timeout of a call that waits. A negative number waits forever.
fn timeout(milliseconds: c_int) -> Option<Duration> {
    u64::try_from(milliseconds).ok().map(Duration::from_millis)
}

/// A slot of an op table.
pub(super) trait Slot {
    /// A function of the slot's signature that returns `-FI_ENOSYS`.
    const UNSUPPORTED: Self;
}

/// The result of an unsupported slot.
trait Unsupported {
    const RESULT: Self;
}

impl Unsupported for c_int {
    const RESULT: Self = -Errno::ENOSYS.number();
}

impl Unsupported for isize {
    const RESULT: Self = -(Errno::ENOSYS.number() as isize);
}

macro_rules! slots {
    ($($argument:ident)+) => {
        impl<R: Unsupported, $($argument),+> Slot for Option<unsafe extern "C" fn($($argument),+) -> R> {
            const UNSUPPORTED: Self = {
                unsafe extern "C" fn unsupported<R: Unsupported, $($argument),+>($(_: $argument),+) -> R {
                    R::RESULT
                }
                Some(unsupported::<R, $($argument),+>)
            };
        }
    };
}

// `fi_ops_atomic.compwritev` has the most arguments, sixteen.
slots!(A);
slots!(A B);
slots!(A B C);
slots!(A B C D);
slots!(A B C D E);
slots!(A B C D E F);
slots!(A B C D E F G);
slots!(A B C D E F G H);
slots!(A B C D E F G H I);
slots!(A B C D E F G H I J);
slots!(A B C D E F G H I J K);
slots!(A B C D E F G H I J K L);
slots!(A B C D E F G H I J K L M);
slots!(A B C D E F G H I J K L M N);
slots!(A B C D E F G H I J K L M N O);
slots!(A B C D E F G H I J K L M N O P);
