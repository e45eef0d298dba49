//! The conformance suite over the embedded device. `ibv.rs` runs it over the devices of rdma-core.

use rdma_testkit::conformance;
use rdma_testkit::rigs::{FaultyRig, IwarpRig};
use rdma_verbs::iwarp::Config;

conformance!(iwarp, IwarpRig::default());
conformance!(iwarp_with_crc, IwarpRig(Config { crc: true, ..Config::default() }));
conformance!(faulty_iwarp_without_faults, FaultyRig(IwarpRig::default()));
