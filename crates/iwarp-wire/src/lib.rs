#![doc = include_str!("../README.md")]
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod ddp;
pub mod mpa;
pub mod rdmap;
