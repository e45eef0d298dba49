//! Rigs for the devices that need no hardware and no setup.

use std::net::SocketAddr;

use crate::faulty::{Faulty, Plan};
use crate::sim::{self, Config, Fabric};
use rdma_verbs::iwarp;

use crate::suite::rig::Rig;

/// Simulated devices.
#[derive(Debug, Clone)]
pub struct SimRig(
    /// The configuration of both devices.
    pub Config,
);

impl SimRig {
    /// Devices that follow iWARP's rules.
    pub fn iwarp() -> Self {
        Self(Config::iwarp())
    }

    /// Devices that follow InfiniBand's rules.
    pub fn infiniband() -> Self {
        Self(Config::infiniband())
    }

    /// iWARP devices without inline data and with one message on the wire at a time, but with immediate data
    /// and arming.
    pub fn narrow() -> Self {
        Self(Config { inline: 0, wire: 1, immediate: 64, arming: true, ..Config::iwarp() })
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
#[derive(Debug, Clone, Default)]
pub struct IwarpRig(
    /// The configuration of both devices.
    pub iwarp::Config,
);

impl Rig for IwarpRig {
    type Device = iwarp::Device;

    fn devices(&self) -> (iwarp::Device, iwarp::Device) {
        let device = || iwarp::Device::new(self.0).unwrap();
        (device(), device())
    }
}

/// A rig's devices, wrapped in the fault layer without faults.
#[derive(Debug, Clone)]
pub struct FaultyRig<R>(
    /// The rig that makes the wrapped devices.
    pub R,
);

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
