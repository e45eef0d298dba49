//! Terminate messages: the headers that this side's repeat of the peer's segment, and those that the peer's repeat.

use iwarp_wire::ddp::Header;
use iwarp_wire::rdmap::{About, Terminate};

use super::header::split_head;
use super::{Effect, Receiver};

impl Receiver {
    /// The headers of the current segment that `terminate` includes. A header that DDP cannot parse is not
    /// included [RFC 5040 4.8-4, 4.8-5, 4.8-8, 4.8-9, 4.8-10, 7.1-3, 7.1-4] [RFC 5041 7.1-15]
    /// [RFC 7306 8.1-2].
    pub(in super::super) fn about(&self, terminate: &Terminate) -> About<'_> {
        let head = self.head.bytes();
        if !terminate.is_about_segment() || Header::parse(split_head(head).1).is_err() {
            return About::default();
        }
        let is_request = matches!(self.effect, Effect::ReadRequest) && terminate.is_of_rdmap();
        About { head, request: self.body.bytes().first_chunk().filter(|_| is_request) }
    }

    /// The header that the peer's Terminate repeats of the segment that it is about, if it does [RFC 5040 4.8-8].
    pub(in super::super) fn terminated_header(&self) -> Option<Header> {
        if !matches!(self.effect, Effect::Terminate) {
            return None;
        }
        Header::parse(split_head(About::parse(self.body.bytes()).head).1).ok()
    }
}
