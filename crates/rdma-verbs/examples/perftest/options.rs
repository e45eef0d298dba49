//! The command line.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use lexopt::prelude::*;
use rdma_verbs::iwarp;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// What the client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Test {
    Send,
    Write,
    Read,
}

#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) role: Role,
    pub(crate) test: Test,
    pub(crate) address: SocketAddr,
    pub(crate) count: u32,
    pub(crate) size: u32,
    pub(crate) device: iwarp::Config,
}

impl Options {
    pub(crate) fn from_arguments() -> Result<Self, Box<dyn Error>> {
        let (mut role, mut test, mut address, mut port) = (None, None, None, 18515);
        let (mut count, mut size) = (1000, 65536);
        let mut device = iwarp::Config::default();
        let mut arguments = lexopt::Parser::from_env();
        while let Some(argument) = arguments.next()? {
            match argument {
                Short('s') => role = Some(Role::Server),
                Short('c') => role = Some(Role::Client),
                Short('t') => test = Some(arguments.value()?.parse_with(parse_test)?),
                Short('a') => address = Some(arguments.value()?.parse::<IpAddr>()?),
                Short('p') => port = arguments.value()?.parse()?,
                Short('n') => count = arguments.value()?.parse()?,
                Short('S') => size = arguments.value()?.parse()?,
                Long("crc") => device.crc = true,
                other => return Err(other.unexpected().into()),
            }
        }
        let role = role.ok_or("-s or -c?")?;
        let address = match (role, address) {
            (_, Some(address)) => address,
            (Role::Server, None) => Ipv4Addr::UNSPECIFIED.into(),
            (Role::Client, None) => return Err("-c needs -a ADDRESS".into()),
        };
        if count == 0 || size == 0 {
            return Err("-n and -S are at least 1".into());
        }
        let test = test.ok_or("-t send, write or read?")?;
        Ok(Self { role, test, address: SocketAddr::new(address, port), count, size, device })
    }
}

fn parse_test(name: &str) -> Result<Test, String> {
    match name {
        "send" => Ok(Test::Send),
        "write" => Ok(Test::Write),
        "read" => Ok(Test::Read),
        other => Err(format!("no test {other:?}")),
    }
}
