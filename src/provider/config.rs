//! The provider's parameters, which `fi_info -e` lists and the variables `FI_RSTREAM_*` set.

use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use crate::abi::Result;
use crate::abi::params::{Definition, Param};
use rdma_verbs::{ConnectOptions, iwarp};

use super::error::errno_of;

static CONNECT_TIMEOUT_MS: Param<i32> = Param {
    name: c"connect_timeout_ms",
    help: "milliseconds that a connection attempt may take, a peer that stays silent in its handshake included",
    default: 10_000,
};
static KEEPALIVE_S: Param<i32> = Param {
    name: c"keepalive_s",
    help: "seconds of silence after which a peer's host is probed; one that vanished is noticed within \
           twice this time",
    default: 30,
};
static LINGER_MS: Param<i32> = Param {
    name: c"linger_ms",
    help: "milliseconds that fi_close may wait for accepted bytes to reach the peer's host",
    default: 5_000,
};
static SPIN_US: Param<i32> = Param {
    name: c"spin_us",
    help: "microseconds for which a call that finds nothing looks again before its caller sleeps on the \
           endpoint's descriptor, as long as that pays; 0: never",
    default: 20,
};
static DELIVERY: Param<bool> = Param {
    name: c"delivery",
    help: "complete each write of a message endpoint when the peer's memory has it, not when TCP has it: MPICH's \
           one-sided calls between hosts need that",
    default: false,
};
static IWARP_CRC: Param<bool> = Param {
    name: c"iwarp_crc",
    help: "ask for CRC32c on every frame of the embedded iWARP device; a peer that asks gets it anyway",
    default: false,
};
static IWARP_MPA_REVISION: Param<i32> = Param {
    name: c"iwarp_mpa_revision",
    help: "MPA revision that the embedded iWARP device connects with: 1 (RFC 5044) or 2 (RFC 6581); both \
           are answered",
    default: 2,
};

static SHM: Param<bool> = Param {
    name: c"shm",
    help: "let two processes of one host and one user that meet on the embedded device move their bytes \
           through shared memory",
    default: true,
};

static IFACE: Param<&str> = Param {
    name: c"iface",
    help: "the network interface whose addresses fi_getinfo returns if it is asked for none, such as eth0",
    default: "",
};

static PCAP: Param<&str> = Param {
    name: c"pcap",
    help: "write what the embedded device sends and receives into this file, behind whose name the number of the \
           process comes; shared memory is not used then",
    default: "",
};

/// All parameters, in the order in which they are listed.
pub(super) static PARAMS: &[&dyn Definition] = &[
    &CONNECT_TIMEOUT_MS,
    &KEEPALIVE_S,
    &LINGER_MS,
    &SPIN_US,
    &IFACE,
    &SHM,
    &DELIVERY,
    &IWARP_CRC,
    &IWARP_MPA_REVISION,
    &PCAP,
];

/// The values of the parameters in this process.
#[derive(Debug, Clone)]
pub(super) struct Config {
    /// How connections are made and watched.
    pub(super) connect: ConnectOptions,
    /// Longest time that `fi_close` waits.
    pub(super) linger: Duration,
    /// Longest time that a call spins before its caller sleeps.
    pub(super) spin: Duration,
    /// The interface whose addresses are listed; `None`: all.
    pub(super) interface: Option<String>,
    /// Whether memory may be shared with a peer on this host.
    pub(super) shared_memory: bool,
    /// Whether each write completes as with `FI_DELIVERY_COMPLETE`.
    pub(super) delivery: bool,
    iwarp: iwarp::Config,
}

impl Config {
    /// The values. They are read once, on first use after the parameters were defined.
    pub(super) fn get() -> &'static Self {
        static CONFIG: LazyLock<Config> = LazyLock::new(Config::read);
        &CONFIG
    }

    /// The embedded device, configured by the parameters.
    pub(super) fn embedded_device() -> Result<iwarp::Device> {
        iwarp::Device::new(Self::get().iwarp).map_err(errno_of)
    }

    fn read() -> Self {
        let mpa_revision = match IWARP_MPA_REVISION.get() {
            1 => 1,
            2 => 2,
            other => {
                log::warn!(target: "core", "FI_RSTREAM_IWARP_MPA_REVISION={other} is neither 1 nor 2; using 2");
                2
            }
        };
        Self {
            connect: ConnectOptions {
                timeout: Duration::from_millis(number(&CONNECT_TIMEOUT_MS, 1)),
                keepalive: Duration::from_secs(number(&KEEPALIVE_S, 1)),
            },
            linger: Duration::from_millis(number(&LINGER_MS, 0)),
            spin: Duration::from_micros(number(&SPIN_US, 0)),
            interface: Some(IFACE.get()).filter(|name| !name.is_empty()),
            shared_memory: SHM.get() && !capture(&PCAP.get()),
            delivery: DELIVERY.get(),
            iwarp: iwarp::Config { mpa_revision, crc: IWARP_CRC.get(), ..iwarp::Config::default() },
        }
    }
}

/// Begins the capture that is asked for; answers whether one is.
fn capture(name: &str) -> bool {
    let file = format!("{name}.{}", std::process::id());
    if !name.is_empty()
        && let Err(error) = iwarp::capture_to(Path::new(&file))
    {
        log::warn!(target: "core", "FI_RSTREAM_PCAP: {file}: {error}");
    }
    !name.is_empty()
}

/// A parameter that is a number of at least `least`, as its default is.
fn number(param: &Param<i32>, least: i32) -> u64 {
    let (value, default) = (param.get(), param.default);
    let used = if value >= least { value } else { default };
    if used != value {
        let name = param.name.to_string_lossy().to_uppercase();
        log::warn!(target: "core", "FI_RSTREAM_{name}={value} is below {least}; using {default}");
    }
    u64::from(used.unsigned_abs())
}
