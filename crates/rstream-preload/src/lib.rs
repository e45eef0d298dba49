//! Stands in front of the C library's socket functions, and carries TCP connections through shared memory
//! once both ends are processes of one host that have this library loaded.
//!
//! The application's descriptor stays the kernel's TCP socket. What this library does not know is handed on
//! unchanged, and costs one look into a table. [`rstream_calls`] has what the functions do; here are their
//! names, and those of functions that only matter because a program does not know of it.

// Input of a peer or an application never causes a panic.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable, clippy::todo)
)]

mod calls;
mod checked;
mod direct;
mod execute;
mod makers;
mod process;
mod real;
mod streams;
mod variadic;
