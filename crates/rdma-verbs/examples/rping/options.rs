//! The command line, with rping's own letters where it has them.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use lexopt::prelude::*;
use rdma_verbs::iwarp;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
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
    pub(crate) device: iwarp::Config,
}

impl Options {
    pub(crate) fn from_arguments() -> Result<Self, Box<dyn Error>> {
        let (mut role, mut address, mut port) = (None, None, 7174);
        let mut options = Self {
            role: Role::Server,
            address: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            count: None,
            size: 64,
            verbose: false,
            validate: false,
            greet: false,
            wrong_key: false,
            device: iwarp::Config::default(),
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
                Long("crc") => options.device.crc = true,
                Long("mpa-revision") => options.device.mpa_revision = arguments.value()?.parse()?,
                other => return Err(other.unexpected().into()),
            }
        }
        options.role = role.ok_or("-s or -c?")?;
        let address = match (options.role, address) {
            (_, Some(address)) => address,
            (Role::Server, None) => Ipv4Addr::UNSPECIFIED.into(),
            (Role::Client, None) => return Err("-c needs -a ADDRESS".into()),
        };
        options.address = SocketAddr::new(address, port);
        // As in rdma-core: there is room for the longest number.
        if !(23..=65535).contains(&options.size) {
            return Err(format!("-S {} is outside 23 to 65535", options.size).into());
        }
        Ok(options)
    }
}
