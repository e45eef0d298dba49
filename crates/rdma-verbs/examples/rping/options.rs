//! The command line, with rping's own letters where it has them.

use std::env;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use lexopt::prelude::*;
use rdma_verbs::typed::{Remote, Shard};
use rdma_verbs::{devices, iwarp};

use super::Result;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
    Both,
}

#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) role: Role,
    pub(crate) address: SocketAddr,
    /// Pings; the server takes as many as come if there is none.
    pub(crate) count: Option<u64>,
    /// Bytes of a ping, the NUL at its end included.
    pub(crate) size: u32,
    pub(crate) verbose: bool,
    pub(crate) validate: bool,
    /// A word there and a word back instead of pings.
    pub(crate) greet: bool,
    /// The server reads, and the client offers, memory by a key that names nothing.
    pub(crate) wrong_key: bool,
    /// The name of a device; if there is none, it is the embedded one.
    device: Option<String>,
    embedded: iwarp::Config,
}

impl Options {
    pub(crate) fn from_arguments() -> Result<Self> {
        let (mut role, mut address, mut port) = (None, None, 7174);
        let mut options = Self {
            role: Role::Both,
            address: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            count: None,
            size: 64,
            verbose: false,
            validate: false,
            greet: false,
            wrong_key: false,
            device: None,
            embedded: iwarp::Config::default(),
        };
        let mut arguments = lexopt::Parser::from_env();
        while let Some(argument) = arguments.next()? {
            match argument {
                Short('s') => role = Some(Role::Server),
                Short('c') => role = Some(Role::Client),
                Short('a') => address = Some(arguments.value()?.parse::<IpAddr>()?),
                Short('p') => port = arguments.value()?.parse()?,
                Short('C') => options.count = Some(arguments.value()?.parse()?),
                Short('S') => options.size = arguments.value()?.parse()?,
                Short('v') => options.verbose = true,
                Short('V') => options.validate = true,
                Long("greet") => options.greet = true,
                Long("wrong-key") => options.wrong_key = true,
                Long("device") => options.device = Some(arguments.value()?.string()?),
                Long("crc") => options.embedded.crc = true,
                Long("mpa-revision") => options.embedded.mpa_revision = arguments.value()?.parse()?,
                other => return Err(other.unexpected().into()),
            }
        }
        if env::args().len() == 1 {
            options.address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            (options.count, options.verbose, options.validate) = (Some(3), true, true);
            return Ok(options);
        }
        options.role = role.ok_or("-s or -c?")?;
        let address = match (options.role, address) {
            (_, Some(address)) => address,
            (Role::Client, None) => return Err("-c needs -a ADDRESS".into()),
            (_, None) => Ipv4Addr::UNSPECIFIED.into(),
        };
        options.address = SocketAddr::new(address, port);
        // As in rdma-core: there is room for the longest number.
        if !(23..=65535).contains(&options.size) {
            return Err(format!("-S {} is outside 23 to 65535", options.size).into());
        }
        Ok(options)
    }

    /// Opens the device.
    pub(crate) fn shard(&self) -> Result<Shard> {
        let Some(name) = &self.device else {
            return Ok(Shard::new(iwarp::Device::new(self.embedded)?.into())?);
        };
        let device = devices().into_iter().find(|device| device.name() == name);
        Ok(Shard::open(&device.ok_or("this machine has no such device")?)?)
    }

    /// The memory, or the same place by a key that names nothing.
    pub(crate) fn name(&self, memory: Remote) -> Remote {
        if self.wrong_key { Remote { key: memory.key ^ 0x100, ..memory } } else { memory }
    }
}
