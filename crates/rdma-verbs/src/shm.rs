//! Memory shared by two processes of one host, beside a connection that both of them hold.
//!
//! The connection goes on to exist: it tells of the peer's end, and carries what shared memory does
//! not. Messages between the two take a [`Channel`] when both sides have one, in the order in which
//! they were posted, whichever way each goes.
//!
//! | module | what |
//! |---|---|
//! | `message`, `lane` | one direction: a ring of messages |
//! | `notifier`, `waking` | a socket by which two processes notify each other, and when they do |
//! | `segment` | the file that both map: lanes, and the memory that each side lets the other write |
//! | `conditions` | what the system and the peer's user have to be |
//! | `meeting` | how two processes that hold a connection come to share a segment |
//! | `channel` | both lanes, the peer's memory, and the notifications |
//!
//! **How two processes meet.** The active side listens on a Unix socket and puts an [`Invitation`]
//! into the data that it connects with: the socket's name and a secret. The passive side, before it
//! answers, makes a segment and hands it over there; its answer says that it did. The active side
//! checks that the visitor knows the secret, has the same user, and names the very addresses of the
//! connection; only then it writes to the segment that it has joined, and only from then on the
//! passive side uses it. The Unix socket between them stays, and notifies both. Whoever of the two finds
//! anything in the way leaves it, and the connection goes on without.
//!
//! **Trust.** Each side writes in the other's region and in its own lane as it likes, and that is
//! all: positions are counted on each side for itself, what a lane says is checked like anything that
//! comes from a peer, the size of the segment is sealed, and no call on what a peer handed over waits.

mod channel;
mod conditions;
mod lane;
mod meeting;
mod message;
mod notifier;
mod segment;
mod sync;
mod waking;

pub use channel::{Channel, Next};
pub use lane::SLOTS;
pub use meeting::{Invitation, Meeting, Target};
pub use message::{Garbage, Message};
