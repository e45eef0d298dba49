//! Byte streams over RDMA devices, with the calls that `std::net` has. Feature `endpoint`.
//!
//! A peer is a program of libfabric that opens `FI_EP_SOCK_STREAM` endpoints of the provider `rstream`, or
//! another program with this module. The embedded device, which every machine has, needs no RDMA hardware; two
//! processes of one host that use it move to shared memory. The feature `ibv` adds the devices of rdma-core.
//!
//! ```
//! use std::io::{Read, Write};
//! use rstream_net::endpoint::{Listener, Stream};
//!
//! # fn main() -> std::io::Result<()> {
//! let listener = Listener::bind("127.0.0.1:0")?;
//! let address = listener.local_addr();
//! let client = std::thread::spawn(move || Stream::connect(address)?.write_all(b"hello"));
//! let (mut stream, _) = listener.accept()?;
//! let mut text = String::new();
//! stream.read_to_string(&mut text)?;
//! assert_eq!(text, "hello");
//! # client.join().unwrap()
//! # }
//! ```
//!
//! [`Options`] has what libfabric has as options: ring sizes and queue depths, connection data, time-outs, and
//! the device. A stream behaves as `fi_rstream(7)` says of endpoints: a killed peer is a
//! [reset](std::io::ErrorKind::ConnectionReset), dropping a stream delivers what was written, and one
//! descriptor tells when a call is worth making.

mod attempt;
mod core;
mod error;
mod listener;
mod options;
mod stream;
#[cfg(feature = "tokio")]
pub mod tokio;

pub use error::Rejected;
pub use listener::{Answer, Listener, Request};
pub use options::Options;
pub use rdma_verbs::{AnyDevice, DeviceInfo, devices};
pub use rstream_session::Statistics;
pub use stream::{Path, Stream};
