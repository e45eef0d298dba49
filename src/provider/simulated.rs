//! The provider over simulated devices with faults, for tests.

use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr};

use super::devices::Offered;
use super::fabric::Fabric;
use super::message::info::{Offer, describe};
use super::route::Route;
use crate::abi::{Errno, Info, NewFabric, Result};
use rdma_testkit::faulty::Faulty;
use rdma_testkit::sim;
use rdma_verbs::Device as _;

/// A simulated device with faults.
pub(crate) type Device = Faulty<sim::Device>;

thread_local! {
    static DEVICES: RefCell<Vec<Device>> = const { RefCell::new(Vec::new()) };
}

/// A fabric whose domains "0", "1" and so on are these devices, when this thread opens them.
pub(crate) fn fabric(devices: Vec<Device>) -> NewFabric {
    DEVICES.set(devices);
    NewFabric::fabric(Fabric::new(|domain| {
        let number: usize = domain.parse().map_err(|_| Errno::ENODATA)?;
        DEVICES.with_borrow(|devices| devices.get(number).cloned()).ok_or(Errno::ENODATA)
    }))
}

/// The info of message endpoints of the domain with this number, which is this device, as hints with these
/// depths of the queues get it.
pub(crate) fn info(number: usize, device: &Device, tx: usize, rx: usize) -> Result<Info> {
    let mut hints = Info::new()?;
    hints.tx_attr().set_size(tx);
    hints.rx_attr().set_size(rx);
    let offered = Offered {
        fabric: "simulated",
        attributes: device.attributes(),
        local_keys: Device::LOCAL_KEYS,
        interfaces: Vec::new(),
        domain: None,
    };
    let offer = Offer::of(API, Some(hints.as_ref()), &offered).ok_or(Errno::ENODATA)?;
    let source = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    let route = Route { source, destination: None, domain: number.to_string(), network: None };
    let mut info = describe(&offer, &route, offered.fabric)?;
    info.set_src_addr(route.source)?;
    Ok(info)
}

/// `FI_VERSION(1, 17)`.
const API: u32 = 1 << 16 | 17;
