//! What travels on a connection, as far as its handshake tells.

use rdmacap::Connection;
use rdmacap::rpc::{NFS_RDMA_PORT, Parameters};
use rstream_protocol::{Hello, Offer};

use crate::text::digits;

/// Ports of protocols that are known by nothing else.
const PORTS: [(u16, &str); 5] = [
    (NFS_RDMA_PORT, "RPC-over-RDMA"),
    (4420, "NVMe over Fabrics"),
    (8009, "NVMe discovery"),
    (3260, "iSER"),
    (5445, "SMB Direct"),
];

/// The protocol on top.
pub(crate) fn of(connection: &Connection) -> Option<&'static str> {
    let data = || connection.private_data.iter().flatten();
    if data().any(|data| Offer::decode(data).is_ok()) {
        return Some("rstream");
    }
    if data().any(|data| Hello::decode(data).is_some()) {
        return Some("rstream messages");
    }
    if data().any(|data| Parameters::parse(data).is_some()) {
        return Some("RPC-over-RDMA");
    }
    PORTS.iter().find(|(port, _)| Some(*port) == connection.service).map(|(_, name)| *name)
}

/// Private data in words, where it is of a protocol that is known.
pub(crate) fn private_data(data: &[u8]) -> Option<String> {
    if let Ok(Offer { ring_address, ring_key, ring_size, receives, .. }) = Offer::decode(data) {
        return Some(format!(
            "a ring of {ring_size} bytes at {ring_address:#x}, key {ring_key:#x}; {receives} receives"
        ));
    }
    if let Some(Hello { tags, user_data }) = Hello::decode(data) {
        let tags = tags.then(|| "messages with tags".to_owned());
        let data = (!user_data.is_empty()).then(|| format!("connection data {}", digits(user_data)));
        return Some(tags.into_iter().chain(data).collect::<Vec<_>>().join("; "));
    }
    let Parameters { invalidation, sends, receives } = Parameters::parse(data)?;
    let keys =
        if invalidation { "sends may invalidate its keys" } else { "sends may not invalidate its keys" };
    Some(format!("sends of up to {sends} bytes, receives of {receives}; {keys}"))
}
