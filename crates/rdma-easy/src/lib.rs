#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable, clippy::todo)
)]

mod connection;
mod domain;
mod error;
mod events;
#[allow(unsafe_code)]
mod ffi;
mod handle;
mod listener;
mod queue;
mod region;
mod transfer;
