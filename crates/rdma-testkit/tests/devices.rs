//! The suite over the devices of this crate.

use rdma_testkit::conformance;
use rdma_testkit::rigs::{FaultyRig, SimRig};

conformance!(sim_iwarp, SimRig::iwarp());
conformance!(sim_infiniband, SimRig::infiniband());
conformance!(sim_without_inline_on_a_narrow_wire, SimRig::narrow());
conformance!(faulty_without_faults, FaultyRig(SimRig::iwarp()));
