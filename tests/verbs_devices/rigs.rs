//! Rigs of the devices that every machine has.

use std::net::SocketAddr;

use rstream_fi::verbs::faulty::{Faulty, Plan};
use rstream_fi::verbs::iwarp;
use rstream_fi::verbs::sim::{self, Config, Fabric};

use super::suite::rig::Rig;

/// Simulated devices.
#[derive(Debug, Clone)]
pub(crate) struct SimRig(pub(crate) Config);

impl SimRig {
    pub(crate) fn iwarp() -> Self {
        Self(Config::iwarp())
    }

    pub(crate) fn infiniband() -> Self {
        Self(Config::infiniband())
    }

    /// Everything small: no inline data, one message on the wire at a time.
    pub(crate) fn narrow() -> Self {
        Self(Config { inline: 0, wire: 1, immediate: true, arming: true, ..Config::iwarp() })
    }
}

impl Rig for SimRig {
    type Device = sim::Device;

    fn devices(&self) -> (sim::Device, sim::Device) {
        let fabric = Fabric::new();
        (fabric.device(self.0.clone()), fabric.device(self.0.clone()))
    }

    fn private_data_padded(&self) -> bool {
        self.0.private_data_padded
    }
}

/// The embedded iWARP device, over loopback.
#[derive(Debug, Clone)]
pub(crate) struct IwarpRig {
    pub(crate) crc: bool,
}

impl Rig for IwarpRig {
    type Device = iwarp::Device;

    fn devices(&self) -> (iwarp::Device, iwarp::Device) {
        let device =
            || iwarp::Device::new(iwarp::Config { crc: self.crc, ..iwarp::Config::default() }).unwrap();
        (device(), device())
    }
}

/// A rig's devices behind the fault layer, with no faults.
#[derive(Debug, Clone)]
pub(crate) struct FaultyRig<R>(pub(crate) R);

impl<R: Rig> Rig for FaultyRig<R> {
    type Device = Faulty<R::Device>;

    fn devices(&self) -> (Self::Device, Self::Device) {
        let (active, passive) = self.0.devices();
        (Faulty::new(active, Plan::none()), Faulty::new(passive, Plan::none()))
    }

    fn listen_address(&self) -> SocketAddr {
        self.0.listen_address()
    }

    fn private_data_padded(&self) -> bool {
        self.0.private_data_padded()
    }
}
