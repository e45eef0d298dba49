//! The conformance suite: the drive loop, and the promises by topic.

#[macro_use]
mod conformance;
pub(crate) mod connecting;
pub(crate) mod drive;
pub(crate) mod ending;
pub(crate) mod messages;
pub(crate) mod one_sided;
pub(crate) mod queues;
pub(crate) mod rig;
pub(crate) mod streaming;
pub(crate) mod waiting;
