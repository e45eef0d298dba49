//! The typed layer: connections whose types tell what can be done, memory that moves into operations and
//! comes back, and operations as futures and as blocking calls.
//!
//! It needs nothing but the traits at the top of this crate, and works over every device. What it adds to them
//! is that no safe program frees, reads or writes memory that a device uses:
//!
//! ```
//! use rdma_verbs::QpCapabilities;
//! use rdma_verbs::typed::Shard;
//!
//! # fn main() -> Result<(), rdma_verbs::typed::Error> {
//! let shard = Shard::embedded()?;
//! let pool = shard.pool(8, 64)?;
//! let listener = shard.listen(([127, 0, 0, 1], 0).into(), 1)?;
//! let queues =
//!     QpCapabilities { send_depth: 4, recv_depth: 4, inline: 0, initiator_depth: 1, responder_resources: 1 };
//!
//! let server = async {
//!     let endpoint = shard.endpoint(queues)?;
//!     endpoint.post_receives(&pool, 2)?;
//!     let connection = listener.next().await?.accept(endpoint, b"").await?;
//!     let message = connection.recv().await?;
//!     assert_eq!(message[..], *b"hello");
//!     drop(message);
//!     connection.close().await
//! };
//! let client = async {
//!     let endpoint = shard.endpoint(queues)?;
//!     endpoint.post_receives(&pool, 2)?;
//!     let connection = endpoint.connect(listener.local_address(), b"").await?;
//!     let buffer = connection.send(pool.copy_of(b"hello")?).await?;
//!     assert_eq!(buffer[..], *b"hello", "it is back");
//!     connection.close().await
//! };
//! // Both sides in one thread. `Shard::tokio_driver` drives a shard in tokio.
//! let (first, second) = shard.block_on(async { tokio::join!(server, client) });
//! first.and(second)
//! # }
//! ```
//!
//! | type | what it is |
//! |---|---|
//! | [`Shard`] | a protection domain and a completion queue, with all that is made of them |
//! | [`Endpoint`] → [`Connection`] → [`Closing`] | a queue pair before, during and after its connection |
//! | [`SharedReceives`] | receives that connections share |
//! | [`Pool`], [`Buf`] | memory of this side: a `Buf` is a slice of bytes while no operation has it |
//! | [`Region`], [`Piece`], [`Pieces`] | memory with rights for peers, a piece of it, and several of them |
//! | [`Remote`] | memory of a peer, by its name there |
//! | [`Operation`], [`Batch`], [`Recv`], [`Landing`] | futures: await them, or call `wait` |
//! | [`DeviceEvents`] | what happens to the device: its ports, its end |
//! | [`Driver`] | drives a shard in an async runtime |
//! | [`messages::Hub`] | messages of any length as events, with flow control |
//!
//! `docs/verbs/typed.md` of the repository tells what is guaranteed and why it is sound.
//!
//! # What does not compile
//!
//! Using a buffer that an operation has:
//! ```compile_fail,E0382
//! # use rdma_verbs::typed::*;
//! # fn f(connection: &Connection, pool: &Pool) -> Result<()> {
//! let mut buf = pool.take()?;
//! let sending = connection.send(buf);
//! buf[0] = 1;
//! # drop(sending); Ok(()) }
//! ```
//! Keeping a slice of a buffer that an operation gets:
//! ```compile_fail,E0505
//! # use rdma_verbs::typed::*;
//! # fn f(connection: &Connection, pool: &Pool) -> Result<()> {
//! let buf = pool.take()?;
//! let bytes = &buf[..];
//! let sending = connection.send(buf);
//! println!("{bytes:?}");
//! # drop(sending); Ok(()) }
//! ```
//! Keeping the bytes of a message whose buffer is posted again:
//! ```compile_fail,E0505
//! # use rdma_verbs::typed::*;
//! # fn f(connection: &Connection) -> Result<()> {
//! let message = connection.recv().wait()?;
//! let bytes = &message[..];
//! drop(message);
//! println!("{bytes:?}");
//! # Ok(()) }
//! ```
//! Having a buffer twice:
//! ```compile_fail,E0308
//! # use rdma_verbs::typed::*;
//! # fn f(buf: &Buf) -> Buf {
//! buf.clone()
//! # }
//! ```
//! Sending before there is a connection, or after its end has begun:
//! ```compile_fail,E0599
//! # use rdma_verbs::typed::*;
//! # fn f(endpoint: Endpoint, buf: Buf) {
//! endpoint.send(buf);
//! # }
//! ```
//! ```compile_fail,E0599
//! # use rdma_verbs::typed::*;
//! # fn f(closing: Closing, buf: Buf) {
//! closing.send(buf);
//! # }
//! ```
//! Closing a connection while an operation waits for its end:
//! ```compile_fail,E0505
//! # use rdma_verbs::typed::*;
//! # fn f(connection: Connection, buf: Buf) {
//! let sending = connection.send(buf);
//! let closing = connection.close();
//! drop(sending);
//! # }
//! ```
//! Borrowing the bytes of a region, which a peer may change:
//! ```compile_fail,E0608
//! # use rdma_verbs::typed::*;
//! # fn f(region: &Region) -> u8 {
//! region[0]
//! # }
//! ```
//! Taking memory apart as operations do:
//! ```compile_fail,E0061
//! # use rdma_verbs::typed::*;
//! # fn f<M: Lend>(memory: M) {
//! let (span, rest) = memory.lend();
//! # }
//! ```

mod block;
#[allow(unsafe_code)]
mod buf;
mod connection;
mod core;
mod device_events;
mod driver;
mod endpoint;
mod error;
mod landing;
mod listener;
pub mod messages;
mod queue_pair;
mod receive;
mod region;
mod registration;
#[cfg(any(feature = "async-io", feature = "tokio"))]
mod runtimes;
mod shard;
mod shared;
mod slots;
#[allow(unsafe_code)]
mod trusted;
mod waiters;
mod work;

pub use buf::{Buf, Pool};
pub use connection::{Closing, Connection, Ended};
pub use device_events::{DeviceEvents, NextDeviceEvent};
pub use driver::{Descriptor, Driver, Readiness};
pub use endpoint::{Connecting, Endpoint};
pub use error::{End, Error, Failed, Result};
pub use landing::{Landed, Landing};
pub use listener::{Incoming, Listener, Next};
pub use receive::{Received, Recv};
pub use region::{Piece, Pieces, Region, Remote};
#[cfg(any(feature = "async-io", feature = "tokio"))]
pub use runtimes::*;
pub use shard::Shard;
pub use shared::{Fewer, SharedReceives};
pub use trusted::TrustedDevice;
pub use work::{Batch, Lend, Operation, Work};

use error::out_of_range;

/// The examples run as tests.
#[cfg(doctest)]
mod examples {
    #[doc = concat!("```\n", include_str!("../examples/hello.rs"), "```")]
    struct Hello;
    #[doc = concat!("```\n", include_str!("../examples/advertise.rs"), "```")]
    struct Advertise;
    #[doc = concat!("```\n", include_str!("../examples/kv.rs"), "```")]
    struct Kv;
    #[doc = concat!("```\n", include_str!("../examples/echo_tokio.rs"), "```")]
    struct EchoTokio;
    #[doc = concat!("```\n", include_str!("../examples/echo_std.rs"), "```")]
    struct EchoStd;
    #[doc = concat!("```\n", include_str!("../examples/devinfo.rs"), "```")]
    struct Devinfo;
    #[doc = concat!("```\n", include_str!("../examples/copy.rs"), "```")]
    struct Copy;
    #[doc = concat!("```\n", include_str!("../examples/many.rs"), "```")]
    struct Many;
    #[doc = concat!("```\n", include_str!("../examples/messages.rs"), "```")]
    struct Messages;
    #[doc = concat!("```\n", include_str!("../examples/tested.rs"), "```")]
    struct Tested;
}
