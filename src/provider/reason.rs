//! Why a connection attempt failed, for `fi_eq_readerr` and `fi_eq_strerror`: an errno for the kind of
//! failure, and a code with a text for the failure itself.

use std::ffi::CStr;

use crate::abi::Errno;
use rdma_verbs::ConnectError;
use rstream_protocol::RefusalReason;

/// First code of `prov_errno`. The codes do not overlap with errno.
const FIRST: i32 = 0x5200;

macro_rules! reasons {
    ($($name:ident: $errno:ident, $text:expr;)*) => {
        /// A failure that this provider reports.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Reason { $($name),* }

        const ALL: &[(Reason, Errno, &CStr)] = &[$((Reason::$name, Errno::$errno, $text)),*];
    };
}

reasons! {
    NobodyListens: ECONNREFUSED, c"connection refused: nobody is listening there";
    Rejected: ECONNREFUSED, c"connection rejected by the peer's application";
    RejectedKind: ECONNREFUSED, c"connection rejected: what listens there is for endpoints of another kind";
    RejectedVersion: ECONNREFUSED, c"connection rejected: the peer speaks another version of the stream protocol";
    RejectedParameters: ECONNREFUSED, c"connection rejected: the peer does not accept this side's ring or queue sizes";
    RejectedResources: ECONNREFUSED, c"connection rejected: the peer has no room for another connection";
    TimedOut: ETIMEDOUT, c"no answer from the peer within the connection time-out";
    BadHandshake: EPROTO, c"the peer answered with something else than the handshake of its transport";
    BadOffer: EPROTO, c"the peer's connection data is not that of an endpoint of this kind";
    ClosedEarly: ECONNRESET, c"the peer closed the connection during the handshake";
    NetworkUnreachable: ENETUNREACH, c"no route to the peer's network";
    HostUnreachable: EHOSTUNREACH, c"no route to the peer's host";
    AddressInUse: EADDRINUSE, c"the local address is in use";
    AddressNotHere: EADDRNOTAVAIL, c"the local address is not one of this host";
    NotPermitted: EACCES, c"the system does not permit the connection";
    DeviceGone: ENODEV, c"the RDMA device is gone";
    SystemError: EIO, c"the system could not make the connection";
}

impl Reason {
    /// The errno and the `prov_errno` of this reason.
    pub(super) fn codes(self) -> (Errno, i32) {
        let index = self as usize;
        (ALL[index].1, FIRST + index as i32)
    }

    /// The reason for a refusal by the peer.
    pub(super) fn of_refusal(reason: RefusalReason) -> Self {
        match reason {
            RefusalReason::Application => Self::Rejected,
            RefusalReason::Version => Self::RejectedVersion,
            RefusalReason::Parameters => Self::RejectedParameters,
            RefusalReason::Resources => Self::RejectedResources,
        }
    }
}

/// The errno and the `prov_errno` of a failed attempt.
pub(super) fn codes(error: &ConnectError) -> (Errno, i32) {
    match error {
        ConnectError::Refused => Reason::NobodyListens.codes(),
        ConnectError::System(number) => {
            let errno = Errno::new(*number);
            let known = ALL.iter().rev().find(|(_, of, _)| *of == errno);
            (errno, known.map_or(Reason::SystemError, |&(reason, _, _)| reason).codes().1)
        }
        ConnectError::TimedOut(_) => Reason::TimedOut.codes(),
        ConnectError::Protocol(_) => Reason::BadHandshake.codes(),
        ConnectError::Closed => Reason::ClosedEarly.codes(),
        _ => Reason::SystemError.codes(),
    }
}

/// The text of a `prov_errno`.
pub(super) fn text(prov_errno: i32) -> &'static CStr {
    let own = prov_errno.checked_sub(FIRST).and_then(|index| ALL.get(usize::try_from(index).ok()?));
    own.map_or(c"not an error of this provider", |&(_, _, text)| text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_text() {
        for &(reason, errno, expected) in ALL {
            let (code_errno, code) = reason.codes();
            assert_eq!((code_errno, text(code)), (errno, expected), "{reason:?}");
        }
    }

    #[test]
    fn what_the_system_says_keeps_its_errno() {
        let unreachable = Errno::ENETUNREACH;
        let (errno, code) = codes(&ConnectError::System(unreachable.number()));
        assert_eq!((errno, text(code)), (unreachable, c"no route to the peer's network"));
        let (errno, code) = codes(&ConnectError::System(Errno::ENOMEM.number()));
        assert_eq!((errno, text(code)), (Errno::ENOMEM, c"the system could not make the connection"));
    }

    #[test]
    fn other_numbers_have_no_text() {
        for number in [i32::MIN, -1, 0, FIRST - 1, FIRST + ALL.len() as i32, i32::MAX] {
            assert_eq!(text(number), c"not an error of this provider");
        }
    }
}
