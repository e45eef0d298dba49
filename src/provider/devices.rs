//! The devices that the provider offers, in two fabrics: every RDMA device of the host, and the
//! embedded one.
//!
//! | device | fabric | domain |
//! |---|---|---|
//! | RDMA devices | `ibv` | the device's name, as in `mlx5_0` |
//! | embedded iWARP | `iwarp` | the network interface, or `any` |
//!
//! For message endpoints the name of the fabric also has the network of the local address, as in
//! `iwarp-192.0.2.0/24`: MPI libraries take addresses of one fabric to be equally good ways to every peer.

use crate::abi::{Errno, NewFabric, Result};
use rdma_verbs::{Device, DeviceAttributes, ibv, iwarp};

use super::address::{self, Interface};
use super::config::Config;
use super::error::errno_of;
use super::fabric::Fabric;

/// Name of the fabric of the embedded iWARP device.
const IWARP_FABRIC: &str = "iwarp";

/// Name of the fabric of all RDMA devices.
const IBV_FABRIC: &str = "ibv";

/// Stands between a fabric's name and the network of message endpoints.
const NETWORK_FOLLOWS: char = '-';

/// A device, for discovery.
pub(super) struct Offered {
    /// Name of its fabric.
    pub(super) fabric: &'static str,
    pub(super) attributes: DeviceAttributes,
    /// [`Device::LOCAL_KEYS`].
    pub(super) local_keys: bool,
    /// Its local addresses, each with the name of its domain.
    pub(super) interfaces: Vec<Interface>,
    /// Its only domain, if it has just one: then it has no other addresses than those.
    pub(super) domain: Option<String>,
}

impl Offered {
    /// Name of the fabric of message endpoints whose local addresses are in this network. Whoever names the fabric
    /// of all networks gets that name: libfabric 2 removes infos of other names.
    pub(super) fn fabric_of_messages(&self, asked: Option<&str>, network: Option<&str>) -> String {
        match network {
            Some(network) if asked != Some(self.fabric) => {
                format!("{}{NETWORK_FOLLOWS}{network}", self.fabric)
            }
            _ => self.fabric.to_owned(),
        }
    }
}

/// The name without a network.
fn without_network(fabric: &str) -> &str {
    fabric.split_once(NETWORK_FOLLOWS).map_or(fabric, |(name, _)| name)
}

/// Every usable device, RDMA devices first. If the name of a fabric is given, only its devices.
pub(super) fn offered(fabric: Option<&str>) -> Result<Vec<Offered>> {
    let wanted = |name: &str| fabric.is_none_or(|fabric| without_network(fabric) == name);
    let interfaces = address::interfaces(Config::get().interface.as_deref())?;
    let mut offered = Vec::new();
    if wanted(IBV_FABRIC) {
        offered.extend(rdma_devices(&interfaces));
    }
    if wanted(IWARP_FABRIC) {
        offered.push(Offered {
            fabric: IWARP_FABRIC,
            attributes: Config::embedded_device()?.attributes(),
            local_keys: iwarp::Device::LOCAL_KEYS,
            interfaces,
            domain: None,
        });
    }
    Ok(offered)
}

/// The RDMA devices that have an address.
fn rdma_devices(interfaces: &[Interface]) -> Vec<Offered> {
    let names = ibv::Device::names();
    if names.is_empty() {
        return Vec::new();
    }
    let mut owned: Vec<Interface> = interfaces
        .iter()
        .filter_map(|one| Some(Interface { name: ibv::Device::name_of(one.address)?, ..one.clone() }))
        .collect();
    let offer = |name: String| {
        let own: Vec<Interface> = owned.extract_if(.., |one| one.name == name).collect();
        if own.is_empty() {
            log::info!(target: "core", "RDMA device {name} has no address");
            return None;
        }
        let device = ibv::Device::open(&name)
            .inspect_err(|error| log::warn!(target: "core", "RDMA device {name} cannot be used: {error}"));
        Some(Offered {
            fabric: IBV_FABRIC,
            attributes: device.ok()?.attributes(),
            local_keys: ibv::Device::LOCAL_KEYS,
            interfaces: own,
            domain: Some(name),
        })
    };
    names.into_iter().filter_map(offer).collect()
}

/// Opens the fabric of this name.
pub(super) fn open(fabric: &str) -> Result<NewFabric> {
    match without_network(fabric) {
        IBV_FABRIC => {
            Ok(NewFabric::fabric(Fabric::new(|domain| ibv::Device::open(domain).map_err(errno_of))))
        }
        IWARP_FABRIC => Ok(NewFabric::fabric(Fabric::new(|_| Config::embedded_device()))),
        _ => Err(Errno::ENODATA),
    }
}
