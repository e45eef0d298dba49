//! Whose a TCP socket is, as the kernel's socket diagnostics tell everybody (`sock_diag(7)`).

use std::net::{IpAddr, SocketAddr};

use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// `struct nlmsghdr` with `struct inet_diag_req_v2` behind it.
const QUESTION: usize = HEADER + 56;
/// `struct nlmsghdr` with `struct inet_diag_msg` behind it.
const ANSWER: usize = HEADER + 72;
const HEADER: usize = 16;
/// Where the type of a message is, and the user in an answer.
const TYPE: usize = 4;
const USER: usize = HEADER + 64;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const IPPROTO_TCP: u8 = 6;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// The user who made the socket of a TCP connection in this network namespace: with `connect`, or with
/// `accept`. `ends`: the address of that socket, and of its peer. `None`: there is none, or the kernel does
/// not tell.
pub(crate) fn user_of_socket(ends: (SocketAddr, SocketAddr)) -> Option<u32> {
    let ask = || -> Result<[u8; ANSWER], Errno> {
        let kernel =
            net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, FLAGS, Some(netlink::SOCK_DIAG))?;
        net::send(&kernel, &question(ends), SendFlags::empty())?;
        let mut answer = [0; ANSWER];
        // The kernel has answered when the question is sent.
        net::recv(&kernel, &mut answer, RecvFlags::empty())?;
        Ok(answer)
    };
    let answer = ask().ok()?;
    let is_answer = answer[TYPE..TYPE + 2] == SOCK_DIAG_BY_FAMILY.to_ne_bytes();
    let user = answer[USER..].first_chunk().copied().map(u32::from_ne_bytes);
    user.filter(|_| is_answer)
}

fn question((own, peers): (SocketAddr, SocketAddr)) -> [u8; QUESTION] {
    let (own_ip, peers_ip) = (own.ip().to_canonical(), peers.ip().to_canonical());
    let is_ipv4 = own_ip.is_ipv4() && peers_ip.is_ipv4();
    let family = if is_ipv4 { AddressFamily::INET } else { AddressFamily::INET6 };
    let mut question = Vec::with_capacity(QUESTION);
    // The header: length, type, flags, a number and a sender that nobody needs.
    question.extend((QUESTION as u32).to_ne_bytes());
    question.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    question.extend(NLM_F_REQUEST.to_ne_bytes());
    question.extend([0; 8]);
    // Family, protocol, no extensions, all states.
    question.extend([family.as_raw() as u8, IPPROTO_TCP, 0, 0]);
    question.extend([0xff; 4]);
    // Ports and addresses, any interface, any cookie.
    question.extend(own.port().to_be_bytes());
    question.extend(peers.port().to_be_bytes());
    for ip in [own_ip, peers_ip] {
        question.extend(address(ip, is_ipv4));
    }
    question.extend([0; 4]);
    question.extend([0xff; 8]);
    let mut bytes = [0; QUESTION];
    bytes.copy_from_slice(&question);
    bytes
}

/// An address, in a place that has room for either family.
fn address(ip: IpAddr, is_ipv4: bool) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) if is_ipv4 => {
            let mut place = [0; 16];
            place[..4].copy_from_slice(&ip.octets());
            place
        }
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn both_ends_of_a_connection_have_this_user() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let ends = (one.local_addr().unwrap(), one.peer_addr().unwrap());
            let _other = listener.accept().unwrap();
            let own = Some(rustix::process::geteuid().as_raw());
            assert_eq!(user_of_socket(ends), own, "{address}");
            assert_eq!(user_of_socket((ends.1, ends.0)), own, "{address}");
        }
    }

    #[test]
    fn a_connection_that_does_not_exist_has_no_user() {
        let ends = ("127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap());
        assert_eq!(user_of_socket(ends), None);
    }
}
