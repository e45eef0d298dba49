//! Stands in front of the C library's socket functions, and carries TCP connections through shared memory
//! once both ends are processes of one host that have this library loaded.
//!
//! The application's descriptor stays the kernel's TCP socket. What this library does not know is handed on
//! unchanged, and costs one look into a table. [`rstream_calls`] has what the functions do; here are their
//! names, and those of functions that only matter because a program does not know of it.

mod calls;
mod checked;
mod direct;
mod execute;
mod makers;
mod process;
mod real;
mod streams;
mod variadic;
