//! The conformance suite over rdma-core: the kernel's soft iWARP and soft RoCE, as `scripts/vm.sh` sets them
//! up. A plain `cargo test` does not run it. `scripts/test.sh rdma-verbs` does, where these devices exist.

use std::net::SocketAddr;

use rdma_testkit::conformance;
use rdma_testkit::suite::rig::Rig;
use rdma_verbs::CompletionStatus;
use rdma_verbs::ibv::Device;

/// Two devices of a kind, and their addresses.
struct IbvRig {
    kind: &'static str,
    addresses: [&'static str; 2],
}

impl IbvRig {
    fn is_iwarp(&self) -> bool {
        self.kind == "siw"
    }
}

impl Rig for IbvRig {
    type Device = Device;

    fn devices(&self) -> (Device, Device) {
        let device = |number| Device::open(&format!("{}{number}", self.kind)).unwrap();
        (device(0), device(1))
    }

    fn listen_address(&self) -> SocketAddr {
        self.addresses[1].parse().unwrap()
    }

    fn connect_address(&self) -> SocketAddr {
        self.addresses[0].parse().unwrap()
    }

    fn private_data_padded(&self) -> bool {
        !self.is_iwarp()
    }

    fn reports_how_it_ended(&self) -> bool {
        false
    }

    fn closes_directions_separately(&self) -> bool {
        false
    }

    fn checks_segments(&self) -> bool {
        false
    }

    /// Soft RoCE of Linux 6.1 reports IBV_WC_LOC_QP_OP_ERR.
    fn truncated_status(&self) -> CompletionStatus {
        if self.is_iwarp() { CompletionStatus::Truncated } else { CompletionStatus::LocalOperation }
    }

    fn cancels_receives(&self) -> bool {
        false
    }

    /// Soft iWARP of Linux 6.1 completes a send before earlier reads. If its response to a read of no bytes
    /// has to wait, the response has the length of the message sent before it, and the reading side ends the
    /// connection.
    fn reads_complete_in_order(&self) -> bool {
        !self.is_iwarp()
    }

    /// Soft iWARP of Linux 6.1 does not respond, and the read never completes.
    fn refuses_wrong_reads(&self) -> bool {
        !self.is_iwarp()
    }

    fn invalidates_keys(&self) -> bool {
        false
    }
}

conformance!(siw, IbvRig { kind: "siw", addresses: ["10.1.0.1:0", "10.1.0.2:0"] });
conformance!(siw_over_ipv6, IbvRig { kind: "siw", addresses: ["[fd01::1]:0", "[fd01::2]:0"] });
conformance!(rxe, IbvRig { kind: "rxe", addresses: ["10.2.0.1:0", "10.2.0.2:0"] });
conformance!(rxe_over_ipv6, IbvRig { kind: "rxe", addresses: ["[fd02::1]:0", "[fd02::2]:0"] });
