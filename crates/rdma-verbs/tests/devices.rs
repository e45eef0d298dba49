//! The conformance suite over the embedded device; `ibv.rs` has those of rdma-core.

use rdma_testkit::conformance;
use rdma_testkit::rigs::{FaultyRig, IwarpRig};

conformance!(iwarp, IwarpRig { crc: false });
conformance!(iwarp_with_crc, IwarpRig { crc: true });
conformance!(faulty_iwarp_without_faults, FaultyRig(IwarpRig { crc: false }));
