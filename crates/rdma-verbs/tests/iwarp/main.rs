//! The embedded device over loopback: with another embedded device, and with a peer whose bytes the test
//! writes.

mod closing;
mod connect;
mod data;
mod messages;
mod support;
mod violations;
