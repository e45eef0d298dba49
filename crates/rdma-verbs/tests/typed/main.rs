//! The typed layer, over devices in memory with seeded faults and over the embedded device.

mod attacks;
mod drops;
mod errors;
mod hub;
mod hub_attacks;
mod isolation;
mod messages;
mod readiness;
mod regions;
mod shared;
mod support;
