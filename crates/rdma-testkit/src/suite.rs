//! The conformance suite: tests of what [`rdma_verbs`] promises, by topic.
//!
//! To run it, a device needs a [`Rig`](rig::Rig) and one [`conformance!`](crate::conformance) line in a test.

mod conformance;
pub mod rig;

#[expect(missing_docs, reason = "the name of each test says what it shows")]
pub mod connecting;
#[expect(missing_docs, reason = "the name of each test says what it shows")]
pub mod ending;
#[expect(missing_docs, reason = "the name of each test says what it shows")]
pub mod message_queues;
#[expect(missing_docs, reason = "the name of each test says what it shows")]
pub mod messages;
#[expect(missing_docs, reason = "the name of each test says what it shows")]
pub mod one_sided;
#[expect(missing_docs, reason = "the name of each test says what it shows")]
pub mod queues;
#[expect(missing_docs, reason = "the name of each test says what it shows")]
pub mod shared_receives;
pub mod streaming;
#[expect(missing_docs, reason = "the name of each test says what it shows")]
pub mod waiting;
