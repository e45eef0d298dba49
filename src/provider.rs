//! libfabric's objects, built on the stream protocol and the verbs core.
//!
//! There is one file for each object: discovery, which `fi_getinfo` needs ([`info`], [`devices`], [`route`],
//! [`address`], [`config`]), then the objects that an application opens: fabric, domain, passive endpoint,
//! endpoint, event queue. An endpoint is generic over its device, so each device has its own tables, and the
//! data path does not test which device it uses.

mod address;
mod children;
mod config;
mod devices;
mod domain;
mod endpoint;
mod error;
mod event_queue;
mod fabric;
mod info;
mod message;
mod options;
mod passive_endpoint;
mod reason;
mod request;
mod route;
#[cfg(test)]
pub(crate) mod simulated;
mod stats;
mod wait;

use crate::abi::{FabricAttr, InfoList, InfoRef, NewFabric, Provider, Result, params};
use rdma_verbs::process;

/// The provider that libfabric loads.
pub(crate) struct Rstream;

impl Provider for Rstream {
    fn init(&self) {
        if let Err(error) = params::define(config::PARAMS) {
            log::warn!(target: "core", "parameters cannot be defined: {error}");
        }
    }

    fn forked(&self) {
        process::forked();
    }

    fn getinfo(
        &self,
        version: u32,
        node: Option<&str>,
        service: Option<&str>,
        flags: u64,
        hints: Option<InfoRef<'_>>,
    ) -> Result<InfoList> {
        info::getinfo(&info::Query { version, node, service, flags, hints })
    }

    fn fabric(&self, attributes: FabricAttr<'_>) -> Result<NewFabric> {
        devices::open(attributes.name()?.unwrap_or_default())
    }
}
