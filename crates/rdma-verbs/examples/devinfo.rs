//! The devices of this machine, their transports, limits and addresses. The embedded device is always there,
//! those of rdma-core are listed with the feature `ibv`.
//!
//! ```text
//! cargo run --example devinfo [--features ibv]
//! ```

use std::error::Error;
use std::net::IpAddr;

use rdma_verbs::{Device, DeviceAttributes, DeviceInfo, Transport, devices};

fn main() -> Result<(), Box<dyn Error>> {
    let addresses: Vec<IpAddr> = if_addrs::get_if_addrs()?.iter().map(if_addrs::Interface::ip).collect();
    for device in devices() {
        match device.open() {
            Ok(open) => {
                println!("{}", device.name());
                print_attributes(&open.attributes());
                let its = addresses.iter().filter(|&&address| has_address(&device, address));
                println!("    addresses: {}", its.map(ToString::to_string).collect::<Vec<_>>().join(", "));
            }
            Err(error) => println!("{}: {error}", device.name()),
        }
    }
    Ok(())
}

fn print_attributes(attributes: &DeviceAttributes) {
    let transport = match attributes.transport {
        Transport::InfiniBand => "InfiniBand or RoCE",
        Transport::Iwarp => "iWARP",
    };
    let private_data = attributes.private_data;
    println!("    transport: {transport}");
    println!("    immediate data: {} bits", attributes.immediate);
    println!(
        "    private data: {} bytes in a request, {} in a reply, {} in a reject",
        private_data.request, private_data.reply, private_data.reject
    );
    println!("    longest message: {} bytes", attributes.max_message);
    println!(
        "    longest queues: {} sends, {} receives, {} shared receives, {} completions",
        attributes.max_send_depth,
        attributes.max_recv_depth,
        attributes.max_srq_depth,
        attributes.max_completions
    );
    println!(
        "    targets of reads: {}",
        if attributes.private_read_sinks {
            "any memory of this side"
        } else {
            "regions that the peer may write"
        }
    );
}

/// Whether connections to this address reach the device.
fn has_address(device: &DeviceInfo, address: IpAddr) -> bool {
    // The embedded device uses sockets, so every address of the machine is its own.
    *device == DeviceInfo::Embedded || adapter(address).as_deref() == Some(device.name())
}

/// The device of rdma-core that this address belongs to.
#[cfg(feature = "ibv")]
fn adapter(address: IpAddr) -> Option<String> {
    rdma_verbs::ibv::Device::name_of((address, 0).into())
}

#[cfg(not(feature = "ibv"))]
fn adapter(_: IpAddr) -> Option<String> {
    None
}
