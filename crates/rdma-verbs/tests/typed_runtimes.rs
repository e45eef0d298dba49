//! The typed layer's drivers in tokio and async-io, over the embedded device and over devices with faults.

use std::net::SocketAddr;
use std::time::Duration;

use rdma_testkit::faulty::{Faulty, Plan};
use rdma_testkit::sim::{Config, Fabric};
use rdma_verbs::typed::{Connection, Error, Listener, Pool, Result, Shard, TrustedDevice};
use rdma_verbs::{ConnectOptions, QpCapabilities, iwarp};

const LIMIT: Duration = Duration::from_secs(20);
const QUEUES: QpCapabilities =
    QpCapabilities { send_depth: 4, recv_depth: 4, inline: 0, initiator_depth: 1, responder_resources: 1 };
const ROUNDS: u32 = 50;
const SEEDS: u64 = 30;

async fn serve<D: TrustedDevice>(shard: Shard<D>, listener: Listener<D>) {
    let pool = shard.pool(8, 4).unwrap();
    let endpoint = shard.endpoint(QUEUES).unwrap();
    endpoint.post_receives(&pool, 4).unwrap();
    let connection = listener.next().await.unwrap().accept(endpoint, b"").await.unwrap();
    for round in 0..ROUNDS {
        assert_eq!(connection.recv().await.unwrap()[..], round.to_be_bytes());
        send(&connection, &pool, round).await.unwrap();
    }
    let _ = connection.close().await;
}

async fn ask<D: TrustedDevice>(shard: Shard<D>, server: SocketAddr) {
    let pool = shard.pool(8, 4).unwrap();
    let endpoint = shard.endpoint(QUEUES).unwrap();
    endpoint.post_receives(&pool, 4).unwrap();
    let connection = endpoint.connect(server, b"").await.unwrap();
    for round in 0..ROUNDS {
        send(&connection, &pool, round).await.unwrap();
        assert_eq!(connection.recv().await.unwrap()[..], round.to_be_bytes());
    }
    let _ = connection.close().await;
}

/// Sends a number, again if a fault refuses it as if the queue were full.
async fn send<D: TrustedDevice>(connection: &Connection<D>, pool: &Pool, number: u32) -> Result<()> {
    loop {
        match connection.send(pool.copy_of(&number.to_be_bytes())?).await {
            Err(failed) if matches!(failed.error, Error::Verbs(rdma_verbs::Error::QueueFull { .. })) => {}
            outcome => return outcome.map(drop).map_err(Error::from),
        }
    }
}

fn shards_with_faults(seed: u64) -> [Shard<Faulty<rdma_testkit::sim::Device>>; 2] {
    let fabric = Fabric::new();
    let options = ConnectOptions { timeout: LIMIT, keepalive: LIMIT };
    [0, 1].map(|side| {
        let plan = Plan::nuisances(2 * seed + side);
        Shard::with_options(Faulty::new(fabric.device(Config::infiniband()), plan), options.clone()).unwrap()
    })
}

fn embedded() -> [Shard<iwarp::Device>; 2] {
    [(); 2].map(|()| Shard::new(iwarp::Device::default()).unwrap())
}

fn listen<D: TrustedDevice>(shard: &Shard<D>) -> (Listener<D>, SocketAddr) {
    let listener = shard.listen(([127, 0, 0, 1], 0).into(), 1).unwrap();
    let address = listener.local_address();
    (listener, address)
}

async fn exchange_in_tokio<D: TrustedDevice>([client, server]: [Shard<D>; 2]) {
    let drivers = [&client, &server].map(|shard| tokio::spawn(shard.tokio_driver().unwrap()));
    let (listener, address) = listen(&server);
    let sides = [tokio::spawn(serve(server, listener)), tokio::spawn(ask(client, address))];
    let all = async {
        for side in sides {
            side.await.unwrap();
        }
        // With the last handle they end.
        for driver in drivers {
            driver.await.unwrap().unwrap();
        }
    };
    tokio::time::timeout(LIMIT, all).await.expect("a wake-up is lost");
}

/// Tokio reports edges.
#[test]
fn no_wake_up_is_lost_in_tokio() {
    let runtimes = [
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap(),
    ];
    for runtime in runtimes {
        runtime.block_on(async {
            for seed in 0..SEEDS {
                exchange_in_tokio(shards_with_faults(seed)).await;
                exchange_in_tokio(embedded()).await;
            }
        });
    }
}

/// Runs a side and the driver of its shard to their ends.
fn in_async_io<D: TrustedDevice>(
    shard: Shard<D>,
    side: impl FnOnce(Shard<D>) -> Box<dyn Future<Output = ()>>,
) {
    let mut driver = Box::pin(shard.async_io_driver().unwrap());
    let mut side = Box::into_pin(side(shard));
    let (mut side_ended, mut driver_ended) = (false, false);
    async_io::block_on(std::future::poll_fn(|context| {
        side_ended = side_ended || side.as_mut().poll(context).is_ready();
        driver_ended =
            driver_ended || driver.as_mut().poll(context).map(|outcome| outcome.unwrap()).is_ready();
        if side_ended && driver_ended { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    }));
}

fn exchange_in_async_io<D: TrustedDevice>([client, server]: [Shard<D>; 2]) {
    let (done, finished) = std::sync::mpsc::channel();
    let (listener, address) = listen(&server);
    let also_done = done.clone();
    std::thread::spawn(move || {
        in_async_io(server, |shard| Box::new(serve(shard, listener)));
        done.send(()).unwrap();
    });
    std::thread::spawn(move || {
        in_async_io(client, |shard| Box::new(ask(shard, address)));
        also_done.send(()).unwrap();
    });
    for _ in 0..2 {
        finished.recv_timeout(LIMIT).expect("a wake-up is lost");
    }
}

#[test]
fn no_wake_up_is_lost_in_async_io() {
    for seed in 0..SEEDS {
        exchange_in_async_io(shards_with_faults(seed));
        exchange_in_async_io(embedded());
    }
}
