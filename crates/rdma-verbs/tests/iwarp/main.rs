//! Device to device over loopback, and device against a peer that a test plays by hand.

mod closing;
mod connect;
mod data;
mod sharing;
mod support;
mod violations;
