//! A stream between two sides of one thread: connect, send and receive.

use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rdma_verbs::{ConnectOptions, ConnectionRequest, Device, EventTarget, Listener, WaitSet, iwarp};
use rstream_session::{Connection, Handshake, Outcome, Peer, Settings, Sizes, StreamQueuePair, run};

/// Both sides in one thread, over the embedded device and the loopback interface.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let second = Duration::from_secs(1);
    let settings = Settings {
        sizes: Sizes::DEFAULT,
        force_iwarp: false,
        share_memory: true,
        connect: ConnectOptions { timeout: second, keepalive: second },
        at_cancellation_point: run,
    };
    let device = iwarp::Device::default();
    let wait = Arc::new(WaitSet::new()?);
    let events = || EventTarget::new(&wait);
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut listener = device.listen(any, 1, &settings.connect, events())?;

    let queue_pair = || StreamQueuePair::open(&device, &settings).map(Box::new);
    let (address, attributes) = (listener.local_address(), device.attributes());
    let to = (address, None);
    let active = Handshake::connect(queue_pair()?, to, b"", settings.clone(), attributes.clone(), events());
    let mut active = active.map_err(|(_, error)| error)?;
    let request = loop {
        // The embedded device has no thread of its own: both sides are driven here.
        active = active.poll().err().ok_or("connected without an answer")?;
        if let Some(request) = listener.poll() {
            break request;
        }
    };
    let (peer, _data) = Peer::decode(request.private_data())?;
    let from = (request, peer);
    let passive = Handshake::accept(queue_pair()?, from, b"", settings.clone(), attributes, events());
    let passive = passive.map_err(|(_, error)| error)?;

    let mut sides = [active, passive].map(Some);
    let mut connections: [Option<Connection<_>>; 2] = [None, None];
    while connections.iter().any(Option::is_none) {
        for (side, connection) in sides.iter_mut().zip(&mut connections) {
            match side.take().map(Handshake::poll) {
                Some(Ok(Outcome::Connected(stream, _))) => *connection = Some(*stream),
                Some(Ok(_)) => return Err("no connection".into()),
                Some(Err(waiting)) => *side = Some(waiting),
                None => {}
            }
        }
    }
    let [Some(mut sender), Some(mut receiver)] = connections else { return Err("no connection".into()) };

    sender.send(&[IoSlice::new(b"hello")], 5, false)?;
    let mut bytes = [0; 16];
    let received = loop {
        match receiver.receive(&mut [IoSliceMut::new(&mut bytes)], 16, true) {
            Err(rstream_session::Error::WouldBlock) => sender.progress(),
            other => break other?,
        }
    };
    assert_eq!(&bytes[..received], b"hello");
    Ok(())
}
