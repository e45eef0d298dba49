//! The provider from the side of an application, over simulated devices.

mod application;
mod arena;
mod message_orders;
