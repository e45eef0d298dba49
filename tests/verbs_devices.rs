//! One conformance suite for every RDMA device: what `verbs` promises its consumers, shown by
//! driving two devices the documented way. Here are the devices that every machine has;
//! `verbs_ibv.rs` has the others.
//!
//! A device joins by a `Rig` (`verbs_devices/rig.rs`) and one `conformance!` line.

#[path = "verbs_devices/faults.rs"]
mod faults;
#[path = "verbs_devices/rigs.rs"]
mod rigs;
#[path = "verbs_devices/sim_only.rs"]
mod sim_only;
#[macro_use]
#[path = "verbs_devices/mod.rs"]
mod suite;

conformance!(sim_iwarp, crate::rigs::SimRig::iwarp());
conformance!(sim_infiniband, crate::rigs::SimRig::infiniband());
conformance!(sim_without_inline_on_a_narrow_wire, crate::rigs::SimRig::narrow());
conformance!(faulty_without_faults, crate::rigs::FaultyRig(crate::rigs::SimRig::iwarp()));
conformance!(iwarp, crate::rigs::IwarpRig { crc: false });
conformance!(iwarp_with_crc, crate::rigs::IwarpRig { crc: true });
conformance!(faulty_iwarp_without_faults, crate::rigs::FaultyRig(crate::rigs::IwarpRig { crc: false }));
