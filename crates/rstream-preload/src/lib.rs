//! Stands in front of the C library's socket functions, and carries TCP connections through shared memory
//! once both ends are processes of one host that have this library loaded.
//!
//! The application's descriptor stays the kernel's TCP socket. What this library does not know is handed on
//! unchanged, and costs one look into a table.
#![allow(clippy::missing_safety_doc, reason = "the functions here are the C library's")]

mod connection;
mod descriptor;
mod errno;
mod execute;
mod guard;
mod inside;
mod log;
mod many;
mod poll;
mod process;
mod real;
mod receive;
mod select;
mod send;
mod set;
mod settings;
mod sleep;
mod table;
mod variadic;
