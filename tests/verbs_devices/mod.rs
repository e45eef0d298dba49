//! The conformance suite: rigs, the drive loop, and the promises by topic.

pub(crate) mod connecting;
mod drive;
pub(crate) mod ending;
mod faults;
pub(crate) mod messages;
pub(crate) mod one_sided;
pub(crate) mod queues;
mod rig;
mod sim_only;
pub(crate) mod streaming;
pub(crate) mod waiting;

pub(crate) use rig::{FaultyRig, IwarpRig, SimRig};
