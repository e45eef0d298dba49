//! Programs that use the typed layer as it is not meant to be used.

use std::time::Duration;

use rdma_testkit::faulty::Plan;
use rdma_testkit::sim::Config;
use rdma_verbs::typed::{Shard, TrustedDevice};
use rdma_verbs::{ConnectOptions, iwarp};

use super::support::{any_port, connected, done, settle, simulated_with};

#[test]
fn options_may_have_any_length() {
    for length in [Duration::ZERO, Duration::from_secs(1 << 40), Duration::MAX] {
        let options = ConnectOptions { timeout: Duration::MAX, keepalive: length };
        exchange([(); 2].map(|()| Shard::with_options(iwarp::Device::default(), options.clone()).unwrap()));
    }
    exchange(simulated_with(&Config::infiniband(), &Plan::none(), Duration::MAX));
}

fn exchange<D: TrustedDevice>(shards: [Shard<D>; 2]) {
    let [first, second] = connected(shards, any_port(), 1).unwrap();
    let both = [&first.shard, &second.shard];
    done(both, "a send", first.connection.send(first.pool.copy_of(b"text").unwrap())).unwrap();
    assert_eq!(done(both, "a message", second.connection.recv()).unwrap()[..], *b"text");
    drop(first.connection);
    settle(both);
}
