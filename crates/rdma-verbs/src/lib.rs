#![doc = include_str!("../README.md")]
//!
//! # The model
//!
//! The traits follow the RDMA verbs as an application knows them, with one difference that Rust requires: **a
//! completion queue owns the queue pairs that report to it**. It is the unit of progress and of exclusion, so
//! nothing inside needs a lock of its own: an application that shares a completion queue between threads puts
//! it behind one lock, which covers everything reached through it. Any number of queue pairs may report to
//! one queue. Its calls are three traits: [`QueuePairs`] creates queue pairs and posts requests,
//! [`Connections`] connects them, and [`CompletionQueue`] reports completions.
//!
//! ```text
//! Device ── alloc_pd ──▶ ProtectionDomain ── register ──▶ MemoryRegion (keys, rights)
//!    ├── create_cq ────▶ CompletionQueue ─── create_qp ─▶ QpId (send, receive, write, read)
//!    └── listen ───────▶ Listener ────────── poll ──────▶ ConnectionRequest (accept or reject)
//! ```
//!
//! All calls return at once. Later calls finish what takes time ([`CompletionQueue::poll`],
//! [`Connections::poll_event`], [`Listener::poll`]). A [`WaitSet`] is the file descriptor that shows when
//! such a call has something to do.

#![deny(unsafe_code)]
// Input of a peer or a consumer never causes a panic: nothing outside tests requests one.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable, clippy::todo)
)]

mod any_device;
mod cause;
mod completion_queue;
mod connection;
#[allow(unsafe_code)]
mod descriptor;
mod device;
mod device_events;
mod error;
#[cfg(feature = "ibv")]
#[allow(unsafe_code)]
pub mod ibv;
pub mod iwarp;
#[allow(unsafe_code)]
pub mod memory;
mod message_queues;
pub mod process;
mod queue_pair;
mod timer;
pub mod typed;
mod wait;
mod work;

pub use any_device::{AnyDevice, DeviceInfo, devices};
pub use cause::{Cause, HandshakeFault};
pub use completion_queue::CompletionQueue;
pub use connection::{
    ConnectOptions, ConnectionEvent, ConnectionRequest, Connections, EventTarget, Listener,
};
pub use device::{
    ANY_DEPTH, Device, DeviceAttributes, MemoryRegion, PrivateDataLimits, ProtectionDomain, RegionName,
    Transport,
};
pub use device_events::{DeviceEvent, DeviceEventSender, DeviceEvents};
pub use error::{BreakReason, ConnectError, Error, Result};
pub use memory::{Memory, Place};
pub use message_queues::{MessageQueues, PeerAccesses, RecvQueue, SrqId};
pub use queue_pair::{QpCapabilities, QpId, QueuePairs};
pub use timer::Timer;
pub use wait::{Interest, Signal, Token, WaitSet};
pub use work::{
    Access, Buffer, Completion, CompletionKind, CompletionStatus, Operation, Payload, RecvRequest,
    RemoteAddress, Segment, SendRequest,
};
